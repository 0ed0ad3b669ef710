"""A translated line, and the type of the functions that translate lines. TensorFlow stays out."""

import typing
from collections.abc import Callable, Iterable, Iterator


class Line(typing.NamedTuple):
    """A translation of one line."""

    translation: str  # the text, or the tree in brackets
    score: float  # log-probability and length reward over length penalty
    cut: bool  # whether the source was too long and lost its end


# Called with lines of text and the number of lines to read before the first result; yields the
# n best translations of each line, best first.
Lines = Callable[[Iterable[str], int], Iterator[list[Line]]]
