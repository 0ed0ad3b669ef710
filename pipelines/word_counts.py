"""Word counts of a text, in bounded memory; the vocabulary is learnt from them."""

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, islice
from operator import itemgetter

from tqdm import tqdm

from pipelines import progress

# Sentences per call of Counter.update, which has a high overhead: it counts 400,000 sentences of
# news text per second this way, and 300,000 one at a time.
_COUNTED_AT_ONCE = 256
# The most that sentencepiece is given; it takes 56 bytes per character of each distinct word.
_MOST_WORDS, _MOST_CHARACTERS = 1 << 23, 100_000_000


def word_counts(sentences: Iterable[str]) -> Counter[str]:
    """Count the words of the sentences, split at each space; empty words are counted, too."""
    counts: Counter[str] = Counter()
    iterator, characters = iter(sentences), 0
    interval = progress.interval()
    bar = tqdm(desc="vocabulary", unit=" sentences", unit_scale=True, delay=2, mininterval=interval)
    with bar:
        while some := list(islice(iterator, _COUNTED_AT_ONCE)):
            text = " ".join(some)
            counts.update(text.split(" "))
            bar.update(len(some))
            characters += len(text)
            # A text of fewer but huge words, such as one without spaces, fills memory, too.
            if characters > 4 * _MOST_CHARACTERS:
                characters = sum(map(len, counts))
            if len(counts) > 2 * _MOST_WORDS or characters > 4 * _MOST_CHARACTERS:
                counts, characters = _most_frequent(counts), 0
    return _most_frequent(counts)


def _most_frequent(counts: Counter[str]) -> Counter[str]:
    """Return the most frequent words that sentencepiece has room for; the first read win ties."""
    if len(counts) <= _MOST_WORDS and sum(map(len, counts)) <= _MOST_CHARACTERS:
        return counts
    ranked = sorted(counts.items(), key=itemgetter(1), reverse=True)[:_MOST_WORDS]
    ends = accumulate(len(word) for word, _ in ranked)
    return Counter(dict(ranked[: sum(end <= _MOST_CHARACTERS for end in ends)]))
