"""Byte-pair merges, applied one by one so that some can be left out.

Sennrich et al. 2016, arXiv:1508.07909; Provilkov et al. 2020, arXiv:1910.13267. sentencepiece does
this too, but since 0.2.2 the same seed gives other pieces in each process, so that a resumed run
would not read what the interrupted run would have read.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import chain, repeat

import numpy as np

_NEVER = float("inf")
_CACHED_WORDS = 1 << 17  # 48 MB with Multi30k's words
_CACHED_PIECES = 8  # a longer word, such as a sentence without spaces, hardly occurs twice

_Pair = tuple[float, int, str, str]  # rank, place of the first symbol, the two symbols


class Merges:
    """The merges of a vocabulary: two neighbours become one piece, the best-scored pair first.

    Args:
        symbols: For each id, the symbols from which its piece is merged: its characters, or the
            piece itself if no merge makes it.
        scores: The score of each id's piece.
        begins: Whether each id begins a word; pieces of two words are never merged. [size] bool
    """

    def __init__(
        self, symbols: Sequence[Sequence[str]], scores: Sequence[float], begins: np.ndarray
    ):
        self._symbols, self._begins = symbols, begins
        self._id_of = {"".join(parts): i for i, parts in enumerate(symbols)}
        self._rank_of = {
            "".join(parts): -score
            for parts, score in zip(symbols, scores, strict=True)
            if len(parts) > 1
        }
        self._merges = np.array([len(parts) - 1 for parts in symbols])
        self._without_one = lru_cache(_CACHED_WORDS)(self._without_one_merge)

    def leave_out(
        self, ids: np.ndarray, dropout: float, generator: np.random.Generator
    ) -> np.ndarray:
        """Return a text's pieces as if each merge had been left out with probability `dropout`.

        The numbers of merges before the first and before the second one left out are drawn for all
        words at once. Only the words that change, 19 % of Multi30k's at a dropout of 0.05, are
        merged again, and short ones with one merge left out are cached.

        Args:
            ids: The pieces with all merges applied, of any number of sentences: [pieces] int.
            dropout: Above 0, at most 1.
            generator: Draws which merges are left out.
        """
        starts = np.flatnonzero(self._begins[ids])
        ends = np.append(starts[1:], len(ids))
        merges = np.add.reduceat(self._merges[ids], starts)
        most = merges + ends - starts - 1  # if the word became one piece
        gaps = generator.geometric(dropout, (2, len(starts))) - 1
        words = np.stack([starts, ends, *gaps, gaps.sum(0) < most])[:, gaps[0] < merges]
        later = (int(generator.geometric(dropout)) - 1 for _ in repeat(None))
        old, new, done = ids.tolist(), [], 0
        for start, end, first, second, several in words.T.tolist():
            word = tuple(old[start:end])
            new += old[done:start]
            if several or len(word) > _CACHED_PIECES:
                new += self._merged(word, chain([first, second], later))
            else:
                new += self._without_one(word, first)
            done = end
        return np.array(new + old[done:], ids.dtype)

    def _without_one_merge(self, word: tuple[int, ...], before: int) -> list[int]:
        """Return a word's pieces with the one merge left out that comes after `before` others."""
        return self._merged(word, iter([before, _NEVER]))

    def _merged(self, word: tuple[int, ...], gaps: Iterator[float]) -> list[int]:
        """Return a word's pieces, merged from its symbols; n of them take n log n time.

        Text without spaces is one word. A pair that is left out can be merged only after one of its
        sides has grown.

        Args:
            word: The pieces with all merges applied.
            gaps: The number of merges before the first that is left out, and between each and the
                next.
        """
        symbols = [symbol for i in word for symbol in self._symbols[i]]
        count = len(symbols)
        before, after = list(range(-1, count - 1)), list(range(1, count + 1))  # neighbours' places
        pairs: list[_Pair] = []
        for place in range(count - 1):
            self._add_pair(pairs, symbols, place, place + 1)
        merges = next(gaps)
        while pairs:
            _, place, *both = heappop(pairs)
            other = after[place]
            if other == count or both != [symbols[place], symbols[other]]:
                continue  # one of the two has grown
            if not merges:
                merges = next(gaps)
                continue
            merges -= 1
            symbols[place], symbols[other] = symbols[place] + symbols[other], ""
            after[place] = after[other]
            if after[place] < count:
                before[after[place]] = place
                self._add_pair(pairs, symbols, place, after[place])
            if place:
                self._add_pair(pairs, symbols, before[place], place)
        return [self._id_of[symbol] for symbol in symbols if symbol]

    def _add_pair(self, pairs: list[_Pair], symbols: list[str], place: int, other: int) -> None:
        """Add two neighbours to a heap of pairs, the best first, if a merge joins them."""
        left, right = symbols[place], symbols[other]
        rank = self._rank_of.get(left + right)
        if rank is not None:
            heappush(pairs, (rank, place, left, right))
