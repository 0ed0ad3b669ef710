"""A file with the word alignment of a split, which takes longer to compute than to read."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipelines import storage
from pipelines.augmentation.alignment import Words, links
from pipelines.shard_files import checksum

Links = list[list[tuple[int, int]]]  # of each pair, see `alignment.links`


def read_or_align(path: Path, words: Sequence[Words]) -> Links:
    """Return the links of a split's pairs, and keep them in a file.

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


def _content(found: Links) -> bytes:
    """Return a checksum, and then each link as three numbers: pair, source word, target word."""
    rows = [(pair, s, t) for pair, some in enumerate(found) for s, t in some]
    numbers = np.array(rows, "<i4").tobytes()
    return checksum(numbers).encode() + numbers


def _parsed(content: bytes, words: Sequence[Words]) -> Links | None:
    """Return the links that a file holds; None if they cannot be those of the pairs."""
    digest, numbers = content[:16], content[16:]
    if checksum(numbers).encode() != digest or len(numbers) % 12:
        return None
    rows = np.frombuffer(numbers, "<i4").reshape(-1, 3)
    lengths = np.array([(len(source), len(target)) for source, target in words])
    pair = rows[:, 0]
    if len(rows) and (rows.min() < 0 or pair.max() >= len(words)):
        return None
    if (rows[:, 1:] >= lengths[pair]).any():
        return None
    found: Links = [[] for _ in words]
    for index, s, t in rows.tolist():
        found[index].append((s, t))
    return found
