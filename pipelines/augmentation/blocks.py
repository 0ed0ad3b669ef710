"""An epoch's altered text made block by block, so that few pairs are in memory as lists."""

from collections.abc import Callable

import numpy as np

from pipelines.shards import EncodedSplit

_BLOCK = 10_000  # pairs altered at a time


def in_blocks(
    split: EncodedSplit, altered: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
) -> EncodedSplit:
    """Return a split of altered pairs, in memory.

    Args:
        split: The pairs.
        altered: Returns the pairs with these numbers, altered, as a shard: ids, lengths.
    """
    count = len(split)
    blocks = [
        altered(np.arange(first, min(first + _BLOCK, count))) for first in range(0, count, _BLOCK)
    ]
    ids, lengths = zip(*blocks, strict=True)
    return EncodedSplit.from_shards(ids, lengths, split.manifest)
