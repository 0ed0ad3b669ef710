"""Training text in other pieces each time it is read. Not in the paper.

BPE dropout (Provilkov et al. 2020, arXiv:1910.13267): while a sentence is encoded each merge is
left out by some chance, so that a word is seen as many sequences of pieces, and what a piece means
is learnt from more words. What is translated later is encoded without; so the last part of a run,
in which the learning rate falls to 0, reads the text without, too.
"""

import dataclasses

import numpy as np

from pipelines.vocabulary import PAD, Vocabulary


@dataclasses.dataclass(frozen=True)
class BpeDropout:
    """Encodes batches anew. Axes: b rows, s and t pieces of source and target.

    A run's batch gets the same pieces whenever it is read.
    """

    vocabulary: Vocabulary
    chance: float  # of a merge to be left out
    batches: int  # of the run, from its first on; those after them stay as they are
    most: int  # pieces of a side; a sentence that would have more stays as it is
    seed: int

    def __call__(
        self, number: int, source: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The run's batch `number`, from 0: int32 [b, s] and [b, t], and as wide as they get."""
        if number >= self.batches:
            return source, target
        seeds = np.random.SeedSequence([self.seed, number]).generate_state(2)
        return self._cut(source, int(seeds[0])), self._cut(target, int(seeds[1]))

    def _cut(self, rows: np.ndarray, seed: int) -> np.ndarray:
        """Rows [b, s] in other pieces; an empty row stays empty."""
        texts = self.vocabulary.decode(rows.tolist())
        cut = self.vocabulary.encode_at_random(texts, self.chance, seed)
        kept = [
            new if old[0] != PAD and len(new) <= self.most else old[: np.count_nonzero(old)]
            for old, new in zip(rows, cut, strict=True)
        ]
        result = np.full((len(rows), max(map(len, kept))), PAD, np.int32)
        for row, ids in zip(result, kept, strict=True):
            row[: len(ids)] = ids
        return result
