"""Training text in other pieces in each epoch. Not in the paper.

BPE dropout (Provilkov et al. 2020, arXiv:1910.13267): while a sentence is encoded each merge is
left out by some chance, so that a word is seen as many sequences of pieces, and what a piece means
is learnt from more words. What is translated later is encoded without; so the last part of a run,
in which the learning rate falls to 0, reads the text without, too.
"""

import dataclasses

import numpy as np

from pipelines.shards import EncodedSplit, as_shard
from pipelines.vocabulary import Vocabulary

_BLOCK = 10_000  # pairs that are encoded at a time


@dataclasses.dataclass(frozen=True)
class BpeDropout:
    """Encodes a split anew. An epoch gets the same pieces whenever it is read."""

    vocabulary: Vocabulary
    chance: float  # of a merge to be left out
    most: int  # pieces of a side; a sentence that would have more stays as it is
    seed: int

    def __call__(self, split: EncodedSplit, epoch: int) -> EncodedSplit:
        """The split in the pieces of an epoch, in memory. 24,000 pairs of Multi30k a second."""
        blocks = [
            self._block(split, np.arange(first, min(first + _BLOCK, len(split))), epoch)
            for first in range(0, len(split), _BLOCK)
        ]
        ids, lengths = zip(*blocks, strict=True)
        return EncodedSplit.from_shards(ids, lengths, split.manifest)

    def _block(
        self, split: EncodedSplit, pairs: np.ndarray, epoch: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Some of the pairs as a shard: ids, lengths."""
        seeds = np.random.SeedSequence([self.seed, epoch, int(pairs[0])]).generate_state(2)
        sides = split.padded(pairs, *split.lengths[pairs].max(0))
        cut = [self._cut(rows, int(seed)) for rows, seed in zip(sides, seeds, strict=True)]
        return as_shard(zip(*cut, strict=True), split.ids[0].dtype)

    def _cut(self, rows: np.ndarray, seed: int) -> list[np.ndarray]:
        """Padded rows in other pieces, without padding."""
        texts = self.vocabulary.decode(rows.tolist())
        return [
            np.array(new) if len(new) <= self.most else old[: np.count_nonzero(old)]
            for old, new in zip(
                rows, self.vocabulary.encode_at_random(texts, self.chance, seed), strict=True
            )
        ]
