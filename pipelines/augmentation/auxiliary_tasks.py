"""Auxiliary tasks: each training pair a second time, with an unnatural target. Not in the paper.

After Sanchez-Cartagena et al. 2021 (arXiv:2109.03645). Nobody would write the target of a second
pair, so the words before a word say little about it, and the decoder has to look at the source.
Half of the second pairs have the words of the target in reverse order. In the other half, about
half of the linked words are replaced, on both sides, by two other words that translate each other.
A mark at the start of the source names the task. Text to be translated has no mark, so the last
part of a run reads the original pairs alone (`altered_share`; by default, the cool-down).
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path

import numpy as np

from pipelines.augmentation.alignment import Words, lexicon
from pipelines.augmentation.links_file import read_or_align
from pipelines.augmentation.numbered_pairs import NumberedPairs
from pipelines.errors import BadInput
from pipelines.shards import EncodedSplit
from pipelines.vocabulary import MARKS, Vocabulary

_MARK_NUMBERS = 1, 2  # of MARKS in `NumberedPairs`: reversed, replaced
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
                f"has {len(self.split):,} pairs, which are too many or too long: give "
                "--auxiliary_tasks=false"
            )

    def __call__(self, split: EncodedSplit, epoch: int) -> EncodedSplit:
        """Return the split followed by the epoch's second pairs.

        29,000 pairs take 0.04 s, the first time 0.9 s.

        Args:
            split: The same pairs as `self.split`, in any pieces.
            epoch: The epoch's number.
        """
        # The third number separates these draws from the draws that shuffle the batches.
        rng = np.random.default_rng([self.seed, epoch, 1])
        text = self._text
        reverse = rng.random(len(text.marks)) < 0.5
        numbers = self._with_words_replaced(~reverse, rng)
        numbers[text.marks] = np.where(reverse, *_MARK_NUMBERS)
        ids, lengths = text.pieces(text.with_targets_reversed(numbers, reverse))
        short = lengths.max(1) <= self.max_length
        return split.with_shard(ids[np.repeat(short, lengths.sum(1))], lengths[short])

    @cached_property
    def _words(self) -> list[Words]:
        """The words of each pair of the split."""
        pairs = self.split.sentences(np.arange(len(self.split)))
        sides = map(self.vocabulary.decode, zip(*pairs, strict=True))
        return [(source.split(), target.split()) for source, target in zip(*sides, strict=True)]

    @cached_property
    def _text(self) -> NumberedPairs:
        return NumberedPairs(self._words, self.vocabulary, MARKS)

    @cached_property
    def links(self) -> np.ndarray:
        """The word alignment, read from its file or computed; see `alignment.links`."""
        return read_or_align(self.links_file, self._words)

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """The places of the links' source words and target words in the text's numbers."""
        pair, s, t = self.links.T
        return self._text.sources[pair] + s, self._text.targets[pair] + t

    @cached_property
    def _lexicon(self) -> np.ndarray:
        return lexicon(*(self._text.numbers[places] for places in self._places))

    def _with_words_replaced(self, which: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the text's numbers with about half of the links of some pairs replaced.

        Args:
            which: The pairs: bool [p].
            rng: Draws the links and the words that take their place.
        """
        numbers = self._text.numbers.copy()
        chosen = which[self.links[:, 0]] & (rng.random(len(self.links)) < _SHARE)
        if len(self._lexicon):
            drawn = rng.integers(len(self._lexicon), size=chosen.sum())
            for places, words in zip(self._places, self._lexicon[drawn].T, strict=True):
                numbers[places[chosen]] = words
        return numbers
