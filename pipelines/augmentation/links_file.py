"""A file with the word alignment of a split, which takes longer to compute than to read."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipelines import storage
from pipelines.augmentation.alignment import Words, links
from pipelines.shard_files import checksum


def read_or_align(path: Path, words: Sequence[Words]) -> np.ndarray:
    """Return what `alignment.links` finds in a split, and keep it in a file.

    Args:
        path: The file. It is made anew if it is missing, damaged, or of other pairs.
        words: The words of each pair of the split.

    Raises:
        BadInput: The file cannot be read or written.
    """
    found = _parsed(storage.read(str(path.parent), path.name) or b"", words)
    if found is None:
        found = links(words)
        storage.write(str(path.parent), path.name, _content(found))
    return found


def _content(found: np.ndarray) -> bytes:
    """Return a checksum, and then each link as three numbers: pair, source word, target word."""
    numbers = found.astype("<i4").tobytes()
    return checksum(numbers).encode() + numbers


def _parsed(content: bytes, words: Sequence[Words]) -> np.ndarray | None:
    """Return the links that a file holds; None if they cannot be those of the pairs."""
    digest, numbers = content[:16], content[16:]
    if checksum(numbers).encode() != digest or len(numbers) % 12:
        return None
    rows = np.frombuffer(numbers, "<i4").reshape(-1, 3)
    lengths = np.array([(len(source), len(target)) for source, target in words])
    if len(rows) and (rows.min() < 0 or rows[:, 0].max() >= len(words)):
        return None
    if (rows[:, 1:] >= lengths[rows[:, 0]]).any():
        return None
    return rows
