"""BPE dropout: the training text in other pieces in each epoch. Not in the paper.

Provilkov et al. 2020, arXiv:1910.13267. Each merge of a sentence is left out with some probability.
A word is then seen as many sequences of pieces, and a piece is learnt from more words. Text to be
translated is encoded without dropout, so the last part of a run reads the training text without
it, too (`altered_share`; by default, the cool-down).
"""

import dataclasses

import numpy as np

from pipelines.augmentation.blocks import in_blocks
from pipelines.shards import EncodedSplit, as_shard
from pipelines.vocabulary import EOS, Vocabulary


@dataclasses.dataclass(frozen=True)
class BpeDropout:
    """An alteration that writes a split in other pieces; a function of (seed, epoch)."""

    vocabulary: Vocabulary
    dropout: float  # the probability that a merge is left out
    max_length: int  # most pieces on a side; a sentence that would have more is left unaltered
    seed: int

    def __call__(self, split: EncodedSplit, epoch: int) -> EncodedSplit:
        """Return the split in the epoch's pieces, in memory; 30,000 Multi30k pairs per second."""
        return in_blocks(split, lambda pairs: self._block(split, pairs, epoch))

    def _block(
        self, split: EncodedSplit, pairs: np.ndarray, epoch: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return some of the pairs in other pieces, as a shard: ids, lengths."""
        generator = np.random.default_rng([self.seed, epoch, int(pairs[0])])
        sides = zip(*split.sentences(pairs), strict=True)
        altered = [self._altered(np.concatenate(side), generator) for side in sides]
        return as_shard(zip(*altered, strict=True), split.ids[0].dtype)

    def _altered(self, ids: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
        """Return sentences, given one after another, each in other pieces."""
        altered = self.vocabulary.merges.leave_out(ids, self.dropout, generator)
        return [
            new if len(new) <= self.max_length else old
            for old, new in zip(_sentences(ids), _sentences(altered), strict=True)
        ]


def _sentences(ids: np.ndarray) -> list[np.ndarray]:
    return np.split(ids, np.flatnonzero(ids == EOS)[:-1] + 1)
