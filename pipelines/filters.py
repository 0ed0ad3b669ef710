"""Which training pairs are left out, beside those that are empty or too long; not in the paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Filters:
    """The filters of a training text; by default all are off.

    Args:
        max_ratio: The most pieces on one side for each piece on the other, with EOS counted on
            both, as `max_length` counts them; None for any number.
        drop_duplicates: Whether a pair that repeats an earlier one is left out.
        drop_copies: Whether a pair whose target is its source is left out.
    """

    max_ratio: float | None = None
    drop_duplicates: bool = False
    drop_copies: bool = False

    @property
    def used(self) -> dict[str, Any]:
        """The filters that are on, by name, for the description of what they made."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    def reasons(
        self, pairs: Sequence[Mapping[str, str]], lengths: np.ndarray, repeated: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Return {reason to leave pairs out: which ones, bool [pairs]} for the filters in use.

        Args:
            pairs: The pairs.
            lengths: Int [pairs, 2], the pieces of both sides, EOS included.
            repeated: The indices of pairs that repeat an earlier pair of the text.
        """
        found = {}
        if self.max_ratio is not None:
            unequal = lengths.max(axis=1) > self.max_ratio * lengths.min(axis=1)
            found[f"with a length ratio above {self.max_ratio:g}"] = unequal
        if self.drop_copies:
            found["copied from source to target"] = copies(pairs)
        if self.drop_duplicates:
            found["repeated"] = np.isin(np.arange(len(pairs)), repeated)
        return found


NO_FILTERS = Filters()


def copies(pairs: Sequence[Mapping[str, str]]) -> np.ndarray:
    """Return which pairs have the source as their target, letter for letter: bool [pairs]."""
    return np.fromiter((pair["source"] == pair["target"] for pair in pairs), bool, len(pairs))
