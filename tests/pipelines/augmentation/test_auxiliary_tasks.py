"""Auxiliary tasks add a second pair for each pair; the text has a known lexicon."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from pieces import pieces, toy_batches

from pipelines.augmentation import auxiliary_tasks
from pipelines.augmentation.alignment import links
from pipelines.augmentation.auxiliary_tasks import AuxiliaryTasks
from pipelines.augmentation.bpe_dropout import BpeDropout
from pipelines.encode import encode_split
from pipelines.errors import BadInput
from pipelines.shards import EncodedSplit
from pipelines.vocabulary import EOS, MARKS

MOST = 256
COUNT = 300


@pytest.fixture(scope="module")
def texts(toy_pairs):
    return [tuple(pair.values()) for pair in toy_pairs]


@pytest.fixture
def tasks(toy_vocabulary, toy_split, tmp_path):
    return AuxiliaryTasks(toy_vocabulary, toy_split, MOST, 1, tmp_path / "links")


def second(tasks, epoch=0):
    """Return the added pairs as (mark, words of the source, words of the target)."""
    decode = tasks.vocabulary.decode
    return [
        (mark, *(text.split() for text in decode([source, target])))
        for (mark, *source), target in pieces(tasks(tasks.split, epoch))[COUNT:]
    ]


def test_the_pairs_themselves_come_first_and_unmarked(toy_split, tasks):
    both = pieces(tasks(toy_split, epoch=0))
    assert both[:COUNT] == pieces(toy_split)
    assert len(both) == 2 * COUNT
    assert not {i for pair in both[:COUNT] for side in pair for i in side} & set(MARKS)
    for source, target in both[COUNT:]:
        assert source[0] in MARKS
        assert (source[-1], target[-1], source.count(EOS), target.count(EOS)) == (EOS, EOS, 1, 1)


def test_second_pairs_are_in_the_pieces_of_their_text(tasks):
    vocabulary = tasks.vocabulary
    for (_, *source), target in pieces(tasks(tasks.split, epoch=0))[COUNT:]:
        assert vocabulary.encode(vocabulary.decode([source, target])) == [source, target]


def test_half_have_the_targets_words_reversed(texts, tasks):
    kept = [
        (source.split(), target.split()[::-1]) == (s, t)
        for (source, target), (mark, s, t) in zip(texts, second(tasks), strict=True)
        if mark == MARKS[0]
    ]
    assert 0.4 * COUNT < len(kept) < 0.6 * COUNT
    assert all(kept)


def test_in_the_others_words_give_way_to_their_like(texts, tasks):
    words = [(source.split(), target.split()) for source, target in texts]
    found = [[] for _ in words]
    for pair, i, j in links(words).tolist():
        found[pair].append((i, j))
    times = Counter(
        (source[i], target[j])
        for (source, target), some in zip(words, found, strict=True)
        for i, j in some
    )
    known, replaced = {both for both, count in times.items() if count > 1}, []
    for (source, target), some, (mark, s, t) in zip(words, found, second(tasks), strict=True):
        if mark == MARKS[0]:
            continue
        assert (len(source), len(target)) == (len(s), len(t))
        for place, old, new in [(0, source, s), (1, target, t)]:
            linked = {link[place] for link in some}
            assert all(i in linked for i in range(len(old)) if old[i] != new[i])
        for i, j in some:
            changed = (source[i], target[j]) != (s[i], t[j])
            assert not changed or (s[i], t[j]) in known
            replaced.append(changed)
    assert 0.4 < np.mean(replaced) < 0.55  # a draw may give the same words


def test_each_epoch_has_others_and_a_restart_the_same(tasks):
    again = dataclasses.replace(tasks)
    assert second(tasks, epoch=3) == second(again, epoch=3)
    other = dataclasses.replace(tasks, seed=2)
    for drawn in (second(tasks, epoch=4), second(other, epoch=3)):
        same = [old == new for old, new in zip(second(tasks, epoch=3), drawn, strict=True)]
        assert np.mean(same) < 0.5


def test_what_a_mark_makes_too_long_is_left_out(toy_split, tasks):
    longest = int(toy_split.lengths[:, 0].max())
    added = pieces(dataclasses.replace(tasks, max_length=longest)(toy_split, 0))[COUNT:]
    assert 0 < len(added) < COUNT
    assert max(len(side) for pair in added for side in pair) <= longest


def test_a_corpus_too_large_to_be_aligned_is_refused(tasks, monkeypatch):
    monkeypatch.setattr(auxiliary_tasks, "_MOST_CELLS", 10)
    with pytest.raises(BadInput, match=f"auxiliary_tasks: .* has {COUNT} pairs"):
        dataclasses.replace(tasks)


@pytest.mark.slow
def test_it_comes_behind_bpe_dropout_and_before_a_cool_down(tmp_path):
    """The pieces of BPE dropout are kept, and alignment uses the words that they spell."""
    settings = {"train_steps": 100, "cooldown_share": 0.25, "bpe_dropout": 0.1}
    settings |= {"auxiliary_tasks": True, "tokens_per_batch": 600, "max_length": 99}
    own = toy_batches(tmp_path, settings)
    dropout, tasks = own.alterations
    assert isinstance(dropout, BpeDropout)
    assert (tasks.max_length, own.altered_updates) == (99, 75)
    first = own.for_epoch(epoch=0, updates_before=0).split
    drawn = dropout(own.split, 0)
    assert np.array_equal(first.lengths[: len(drawn)], drawn.lengths)
    assert np.array_equal(first.lengths[len(drawn) :], tasks(own.split, 0).lengths[len(drawn) :])
    assert len(first) == 2 * len(own.split)
    assert own.for_epoch(epoch=9, updates_before=75) is own


def test_words_stay_if_no_two_are_linked_twice(toy_vocabulary, tmp_path):
    source, target = "a small cat", "der Hund schläft"
    encode_split(lambda: [{"source": source, "target": target}], toy_vocabulary, MOST, tmp_path)
    split = EncodedSplit.load(tmp_path)
    tasks = AuxiliaryTasks(toy_vocabulary, split, MOST, 1, tmp_path / "links")
    for epoch in range(4):
        (mark, *s), t = pieces(tasks(split, epoch))[-1]
        words = target.split()[::-1] if mark == MARKS[0] else target.split()
        assert toy_vocabulary.decode([s, t]) == [source, " ".join(words)]
