"""More training trees out of few: other words, parts of trees, two in one. Not in the paper.

A treebank of a few thousand trees has many of its words once, and a model learns them by heart
where it should learn to copy. Words of the classes that take in new ones are exchanged for others
with the same tag, so that the tree stays right. It loses its place in long sentences, of which
there are few: two trees joined, one after the other, make more.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from pipelines.parsing.trees import Leaf, Tree, joined, subtrees

OPEN_TAGS = {"NN", "NNS", "NNP", "NNPS", "JJ", "JJR", "JJS", "RB"}
OPEN_TAGS |= {"VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "CD"}
SHARE = 0.3  # of the words with these tags that are drawn anew
LEAST = 4  # words of a part
_SEED = 1  # the training text is read more than once, and has to be the same

_Words = dict[str, tuple[list[str], list[str]]]  # {tag: (as often as they are there, each once)}


def altered(gold: Sequence[Tree], copies: int) -> Iterator[Tree]:
    """Yields, of each tree, `copies` alone, as many joined with the tree after it, and its parts.

    All have other words. Each part comes once: the brackets over at least LEAST words but not over
    all; of GUM's 3,707 trees 26,595.
    """
    draw = random.Random(_SEED)
    words = _words_by_tag(gold)
    for tree, following in zip(gold, [*gold[1:], *gold[:1]], strict=True):
        whole = [tree, joined(tree, following)] * copies
        for part in (*whole, *subtrees(tree, LEAST)):
            yield _with_other_words(part, words, draw)


def _words_by_tag(gold: Sequence[Tree]) -> _Words:
    words: dict[str, list[str]] = defaultdict(list)
    for tree in gold:
        for leaf in tree.leaves:
            words[leaf.tag].append(leaf.word)
    return {tag: (every, sorted(set(every))) for tag, every in words.items()}


def _with_other_words(tree: Tree, words: _Words, draw: random.Random) -> Tree:
    """Half of the new words are drawn by how frequent they are, half are any with the tag."""
    leaves = []
    for place, leaf in enumerate(tree.leaves):
        word = leaf.word
        if leaf.tag in OPEN_TAGS and draw.random() < SHARE:
            word = draw.choice(draw.choice(words[leaf.tag]))
            if place == 0 and leaf.word[0].isupper():
                word = word[0].upper() + word[1:]
        leaves.append(Leaf(leaf.tag, word))
    return Tree(tuple(leaves), tree.brackets)
