"""Data augmentation for a small treebank: other words, parts of trees, joined trees.

This is not in the paper. In a treebank of a few thousand trees many words occur once, and a model
memorises them where it should learn to copy. Words of open classes are replaced by others with the
same tag, so that the tree stays correct. The model also loses its place in long sentences, of which
there are few; joining two trees makes more of them.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from pipelines.parsing.trees import Leaf, Tree, joined, subtrees

OPEN_TAGS = {"NN", "NNS", "NNP", "NNPS", "JJ", "JJR", "JJS", "RB"}
OPEN_TAGS |= {"VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "CD"}
SHARE = 0.3  # of the words with these tags are replaced
LEAST = 4  # the fewest words of a part
_SEED = 1  # fixed: the training text is read several times and must be the same each time

_Words = dict[str, tuple[list[str], list[str]]]  # {tag: (all its words, its distinct words)}


def altered(gold: Sequence[Tree], copies: int) -> Iterator[Tree]:
    """Yield altered copies of each tree, copies joined with the next tree, and the tree's parts.

    All of them have other words. The parts of a tree are its brackets over at least `LEAST` words
    but not over all; each part comes once. GUM's 3,707 trees have 26,595 parts.

    Args:
        gold: The treebank's trees.
        copies: The number of copies of each tree, and likewise of joined copies.
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
    """Replace a share of the words: half by frequency, half uniformly among those with the tag."""
    leaves = []
    for place, leaf in enumerate(tree.leaves):
        word = leaf.word
        if leaf.tag in OPEN_TAGS and draw.random() < SHARE:
            word = draw.choice(draw.choice(words[leaf.tag]))
            if place == 0 and leaf.word[0].isupper():
                word = word[0].upper() + word[1:]
        leaves.append(Leaf(leaf.tag, word))
    return Tree(tuple(leaves), tree.brackets)
