"""Auxiliary tasks: each training pair a second time, with an unnatural target. Not in the paper.

After Sanchez-Cartagena et al. 2021 (arXiv:2109.03645). Nobody would write the target of a second
pair, so the words before a word say little about it, and the decoder has to look at the source.
Half of the second pairs have the words of the target in reverse order. In the other half, about
half of the linked words are replaced, on both sides, by two other words that translate each other.
A mark at the start of the source names the task. Text to be translated has no mark, so the last
part of a run, in which the learning rate falls to 0, reads the original pairs alone.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path

import numpy as np

from pipelines.augmentation.alignment import Words, lexicon
from pipelines.augmentation.links_file import Links, read_or_align
from pipelines.errors import BadInput
from pipelines.shards import EncodedSplit, as_shard
from pipelines.vocabulary import MARKS, Vocabulary

_REVERSED, _REPLACED = MARKS
_SHARE = 0.5  # of the links have their words replaced; the article's alpha
# Source pieces times target pieces, summed over the pairs; aligning this many takes at most 13 GB.
_MOST_CELLS = 10**8


@dataclasses.dataclass(frozen=True)
class AuxiliaryTasks:
    """An alteration that adds second pairs to a split; they are a function of (seed, epoch).

    Raises:
        BadInput: The split is too large for its words to be aligned in memory.
    """

    vocabulary: Vocabulary
    split: EncodedSplit  # the pairs to derive second pairs from
    max_length: int  # most pieces on a side; longer second pairs are left out
    seed: int
    links_file: Path  # where the word alignment is kept

    def __post_init__(self) -> None:
        cells = int(self.split.lengths.astype(np.int64).prod(1).sum())
        if cells > _MOST_CELLS:
            raise BadInput(
                "auxiliary_tasks: wanted a small corpus, at most about 400,000 captions; this one "
                f"has {len(self.split):,} pairs, which are too many or too long: leave it out"
            )

    def __call__(self, split: EncodedSplit, epoch: int) -> EncodedSplit:
        """Return the split followed by the epoch's second pairs; 29,000 of them take a second.

        Args:
            split: The same pairs as `self.split`, in any pieces.
            epoch: The epoch's number.
        """
        # The third number separates these draws from the draws that shuffle the batches.
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
        short = [pair for pair in pairs if max(map(len, pair)) <= self.max_length]
        return split.with_shard(*as_shard(short, split.ids[0].dtype))

    @cached_property
    def _words(self) -> list[Words]:
        """The words of each pair of the split."""
        pairs, (s, t) = np.arange(len(self.split)), self.split.lengths.max(0)
        sides = (self.vocabulary.decode(side.tolist()) for side in self.split.padded(pairs, s, t))
        return [(source.split(), target.split()) for source, target in zip(*sides, strict=True)]

    @cached_property
    def links(self) -> Links:
        """The word alignment of each pair, read from its file or computed."""
        return read_or_align(self.links_file, self._words)

    @cached_property
    def _lexicon(self) -> list[tuple[str, str]]:
        return lexicon(self._words, self.links)

    def _replaced(self, index: int, rng: np.random.Generator) -> Words:
        source, target = (list(side) for side in self._words[index])
        for s, t in self.links[index]:
            if self._lexicon and rng.random() < _SHARE:
                source[s], target[t] = self._lexicon[rng.integers(len(self._lexicon))]
        return source, target
