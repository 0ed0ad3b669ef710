"""The ids of a prepared split, read back."""

import numpy as np


def pieces(split):
    """Of every pair of a split, in order: (source, target) without padding."""
    sides = split.padded(np.arange(len(split)), *split.lengths.max(0))
    return [
        tuple([i for i in row if i != 0] for row in pair)
        for pair in zip(*(side.tolist() for side in sides), strict=True)
    ]
