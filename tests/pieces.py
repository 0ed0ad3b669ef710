"""Read the ids of an encoded split back."""

import numpy as np


def pieces(split):
    """Return (source, target) of every pair of a split, in order, without padding."""
    sides = split.padded(np.arange(len(split)), *split.lengths.max(0))
    return [
        tuple([i for i in row if i != 0] for row in pair)
        for pair in zip(*(side.tolist() for side in sides), strict=True)
    ]
