"""How often the words of a text occur, in bounded memory: what a vocabulary is learnt from."""

import sys
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, islice
from operator import itemgetter

from tqdm import tqdm

# Sentences counted by one call of Counter.update, which is slow to begin: 400,000 sentences of news
# a second; one at a time it is 300,000.
_COUNTED_AT_ONCE = 256
# What sentencepiece is given at most: it takes 56 bytes for each character of each distinct word.
_MOST_WORDS, _MOST_CHARACTERS = 1 << 23, 100_000_000


def word_counts(sentences: Iterable[str]) -> Counter[str]:
    """How often each word occurs; a word is what stands between spaces, be it nothing."""
    counts: Counter[str] = Counter()
    iterator = iter(sentences)
    # Drawn ten times a second for a person, twice a minute for a log file; not if it is soon done.
    interval = 0.1 if sys.stderr.isatty() else 30
    bar = tqdm(desc="vocabulary", unit=" sentences", unit_scale=True, delay=2, mininterval=interval)
    with bar:
        while some := list(islice(iterator, _COUNTED_AT_ONCE)):
            counts.update(" ".join(some).split(" "))
            bar.update(len(some))
            if len(counts) > 2 * _MOST_WORDS:
                counts = _most_frequent(counts)
    return _most_frequent(counts)


def _most_frequent(counts: Counter[str]) -> Counter[str]:
    """As many words as sentencepiece has room for; of equally frequent ones those read first."""
    if len(counts) <= _MOST_WORDS and sum(map(len, counts)) <= _MOST_CHARACTERS:
        return counts
    ranked = sorted(counts.items(), key=itemgetter(1), reverse=True)[:_MOST_WORDS]
    ends = accumulate(len(word) for word, _ in ranked)
    return Counter(dict(ranked[: sum(end <= _MOST_CHARACTERS for end in ends)]))
