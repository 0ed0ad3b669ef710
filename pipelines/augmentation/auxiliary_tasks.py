"""Every training pair a second time, as another task. Not in the paper.

After Sanchez-Cartagena et al. 2021 (arXiv:2109.03645): the second pair's target is one that nobody
would write, so that what is before a word says little about it, and the decoder has to look at the
source. Half of these have the words of the target in reverse order; in the others about half of the
words that translate each other give way, on both sides, to other words that do. A mark in front of
the source says which. What is translated later has none; so the last part of a run, in which the
learning rate falls to 0, reads the pairs alone.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from pipelines.augmentation.alignment import Words, lexicon, links
from pipelines.errors import BadInput
from pipelines.shards import EncodedSplit, as_shard
from pipelines.vocabulary import MARKS, Vocabulary

_REVERSED, _REPLACED = MARKS
_SHARE = 0.5  # of the links whose words are replaced; the paper's alpha
# Source times target pieces of a pair, summed; to align as many takes 13 GB at most.
_MOST_CELLS = 10**8


@dataclasses.dataclass(frozen=True)
class AuxiliaryTasks:
    """Adds to a split. An epoch gets the same pairs whenever it is read.

    Raises:
        BadInput: the split is too large for its words to be aligned in memory.
    """

    vocabulary: Vocabulary
    split: EncodedSplit  # the split, in any pieces
    most: int  # pieces of a side; a second pair that would have more is left out
    seed: int

    def __post_init__(self) -> None:
        cells = int(self.split.lengths.astype(np.int64).prod(1).sum())
        if cells > _MOST_CELLS:
            raise BadInput(
                "auxiliary_tasks: for small corpora, up to about 400,000 captions; this one has "
                f"{len(self.split):,} pairs, too long or too many: leave it out"
            )

    def __call__(self, split: EncodedSplit, epoch: int) -> EncodedSplit:
        """The split and, behind it, the second pairs of an epoch; 29,000 of these a second."""
        # The third number keeps these draws apart from those that shuffle the batches.
        rng = np.random.default_rng([self.seed, epoch, 1])
        reverse = rng.random(len(self._words)) < 0.5
        texts = [
            (source, target[::-1]) if reverse[index] else self._replaced(index, rng)
            for index, (source, target) in enumerate(self._words)
        ]
        sides = [self.vocabulary.encode([" ".join(words) for words in side])
                 for side in zip(*texts, strict=True)]  # fmt: skip
        marks = np.where(reverse, _REVERSED, _REPLACED).tolist()
        pairs = [([mark, *s], t) for mark, s, t in zip(marks, *sides, strict=True)]
        short = [pair for pair in pairs if max(map(len, pair)) <= self.most]
        return split.with_shard(*as_shard(short, split.ids[0].dtype))

    @cached_property
    def _words(self) -> list[Words]:
        """The text that the split was made from."""
        pairs, (s, t) = np.arange(len(self.split)), self.split.lengths.max(0)
        sides = (self.vocabulary.decode(side.tolist()) for side in self.split.padded(pairs, s, t))
        return [(source.split(), target.split()) for source, target in zip(*sides, strict=True)]

    @cached_property
    def _links(self) -> list[list[tuple[int, int]]]:
        return links(self._words)

    @cached_property
    def _lexicon(self) -> list[tuple[str, str]]:
        return lexicon(self._words, self._links)

    def _replaced(self, index: int, rng: np.random.Generator) -> Words:
        source, target = (list(side) for side in self._words[index])
        for s, t in self._links[index]:
            if self._lexicon and rng.random() < _SHARE:
                source[s], target[t] = self._lexicon[rng.integers(len(self._lexicon))]
        return source, target
