"""Altered trees keep the tags and brackets, and their words occur with those tags."""

from itertools import islice

import pytest
from paths import DATA

from pipelines.parsing import trees
from pipelines.parsing.altered_trees import LEAST, OPEN_TAGS, SHARE, altered
from pipelines.parsing.linear_trees import linear, restored

GUM = DATA / "gum_trees" / "train.ptb.gz"
pytestmark = pytest.mark.skipif(not GUM.exists(), reason=f"needs real trees in {GUM}")


@pytest.fixture(scope="module")
def gold():
    read = islice(map(trees.normalised, trees.read(GUM)), 1500)
    return [tree for tree in read if tree.leaves]


@pytest.fixture(scope="module")
def copies(gold):
    """Return [(original tree, altered tree)]."""
    parts = []
    for tree, following in zip(gold, gold[1:] + gold[:1], strict=True):
        whole = (tree, trees.joined(tree, following))
        parts += [*whole, *whole, *trees.subtrees(tree, LEAST)]
    return list(zip(parts, altered(gold, 2), strict=True))


def test_tags_and_brackets_stay(copies):
    for part, copy in copies:
        assert [leaf.tag for leaf in copy.leaves] == [leaf.tag for leaf in part.leaves]
        assert copy.brackets == part.brackets
        assert restored(linear(copy), copy.words) == copy


def test_a_share_of_open_class_words_is_another_of_the_tag(gold, copies):
    leaves = [pair for part, copy in copies for pair in zip(part.leaves, copy.leaves, strict=True)]
    known = {(leaf.tag, leaf.word.lower()) for tree in gold for leaf in tree.leaves}
    assert all((new.tag, new.word.lower()) in known for _, new in leaves)
    assert all(old == new for old, new in leaves if old.tag not in OPEN_TAGS)
    changed = [old != new for old, new in leaves if old.tag in OPEN_TAGS]
    assert 0.95 * SHARE < sum(changed) / len(changed) <= SHARE  # a draw may give the same word


def test_sentences_begin_as_they_did(copies):
    for part, copy in copies:
        old, new = part.leaves[0].word, copy.leaves[0].word
        assert not old[0].isupper() or new[0] == new[0].upper()


def test_the_same_every_time_and_each_copy_another(gold):
    longest = [max(gold, key=lambda tree: len(tree.leaves))]
    copies = list(altered(longest, 3))
    assert copies == list(altered(longest, 3))
    alone, pairs = copies[:6:2], copies[1:6:2]
    assert len({*alone, *pairs, *longest}) == 7
