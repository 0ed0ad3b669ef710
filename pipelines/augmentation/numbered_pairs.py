"""The words of sentence pairs as numbers in one array, so that NumPy alters all pairs at once."""

from collections.abc import Sequence

import numpy as np

from pipelines.augmentation.alignment import Words
from pipelines.vocabulary import EOS, Vocabulary

_END = 0  # the number that ends a side


class NumberedPairs:
    """The words of p pairs. Each pair is a mark, its source, an end, its target, an end.

    Args:
        pairs: The words of each pair.
        vocabulary: Encodes the words.
        marks: The ids that may stand before a source.
    """

    def __init__(self, pairs: Sequence[Words], vocabulary: Vocabulary, marks: Sequence[int]):
        # The marks have the numbers from 1 on, the words those that follow.
        number = {word: 1 + len(marks) + i for i, word in enumerate(_kinds(pairs))}
        self.numbers = np.array(
            [i for s, t in pairs for i in (1, *map(number.get, s), _END, *map(number.get, t), _END)]
        )
        sizes = np.array([(len(s), len(t)) for s, t in pairs])
        self.marks = np.cumsum(sizes.sum(1) + 3) - sizes.sum(1) - 3  # place of each mark: [p]
        self.sources = self.marks + 1  # place of each first word
        self.targets = self.sources + sizes[:, 0] + 1
        self._lengths = sizes.sum(1) + 3
        self._mirrored = _mirrored(self.targets, sizes[:, 1], len(self.numbers))
        ids, lengths = vocabulary.encode_flat(list(number))
        self._ids = np.concatenate([[EOS, *marks], ids[ids != EOS]]).astype(ids.dtype)
        self._sizes = np.concatenate([[1] * (1 + len(marks)), lengths - 1])  # pieces of each number

    def with_targets_reversed(self, numbers: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Return the numbers with the words of some targets in reverse order.

        Args:
            numbers: As `numbers`, perhaps with other words.
            which: Bool [p].
        """
        return np.where(np.repeat(which, self._lengths), numbers[self._mirrored], numbers)

    def pieces(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers laid out as `numbers` is as the arrays of a shard: ids, lengths."""
        sizes = self._sizes[numbers]
        first = (np.cumsum(self._sizes) - self._sizes)[numbers]  # place of a word's ids in _ids
        places = np.arange(sizes.sum()) + np.repeat(first - np.cumsum(sizes) + sizes, sizes)
        sides = np.stack([self.marks, self.targets], axis=1)
        lengths = np.add.reduceat(sizes, sides.ravel()).reshape(sides.shape)
        return self._ids[places], lengths.astype(np.int32)


def _kinds(pairs: Sequence[Words]) -> list[str]:
    """Return the different words, in order of their first occurrence."""
    return list(dict.fromkeys(word for pair in pairs for side in pair for word in side))


def _mirrored(starts: np.ndarray, sizes: np.ndarray, length: int) -> np.ndarray:
    """Return the places 0 to `length` - 1, those of each stretch in reverse order."""
    places = np.arange(length)
    inside = places[: sizes.sum()] - np.repeat(np.cumsum(sizes) - sizes, sizes)
    first, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    places[first + inside] = first + size - 1 - inside
    return places
