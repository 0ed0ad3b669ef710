"""IBM model 1 against an implementation of its equations, and on text with known links."""

from collections import defaultdict

import numpy as np

from pipelines.augmentation.alignment import lexicon, links

BOOK = [
    (["the", "house"], ["das", "haus"]),
    (["the", "book"], ["das", "buch"]),
    (["a", "book"], ["ein", "buch"]),
]


def expected(pairs, rounds=6):
    """Return t(f|e) after a number of rounds, by the paper's equations, for co-occurring (e, f)."""
    likelihood = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        counts, totals = defaultdict(float), defaultdict(float)
        for origins, words in pairs:
            for word in words:
                norm = sum(likelihood[origin, word] for origin in origins)
                for origin in origins:
                    counts[origin, word] += likelihood[origin, word] / norm
                    totals[origin] += likelihood[origin, word] / norm
        for (origin, word), count in counts.items():
            likelihood[origin, word] = count / totals[origin]
    return likelihood


def linked(pairs):
    """Return the links that both directions agree on, by `expected`."""
    forward, back = expected(pairs), expected([(t, s) for s, t in pairs])
    return [
        [pair, i, j]
        for pair, (source, target) in enumerate(pairs)
        for i, s in enumerate(source)
        for j, t in enumerate(target)
        if i == source.index(max(source, key=lambda e: forward[e, t]))
        and j == target.index(max(target, key=lambda f: back[f, s]))
    ]


def random_pairs(rng, count):
    """Word n is translated as word n, in another order; a tenth of the words are noise."""
    for _ in range(count):
        source = rng.integers(0, 40, rng.integers(1, 9))
        target = rng.permutation(np.where(rng.random(len(source)) < 0.1, 0, source))
        yield [f"e{n}" for n in source], [f"f{n}" for n in target]


def test_words_are_told_apart_by_the_pairs_that_they_share():
    assert links(BOOK).tolist() == [[pair, word, word] for pair in range(3) for word in range(2)]


def test_a_lexicon_has_what_is_linked_more_than_once():
    sources, targets = np.array([[3, 2], [7, 0], [3, 2], [3, 0], [0, 5], [0, 5], [0, 5]]).T
    assert lexicon(sources, targets).tolist() == [[0, 5], [3, 2]]
    assert lexicon(sources[:0], targets[:0]).tolist() == []


def test_links_are_those_of_the_equations():
    pairs = list(random_pairs(np.random.default_rng(1), 200))
    assert links(pairs).tolist() == linked(pairs)


def test_words_in_another_order_are_found():
    pairs = list(random_pairs(np.random.default_rng(2), 500))
    right = [pairs[pair][0][s][1:] == pairs[pair][1][t][1:] for pair, s, t in links(pairs)]
    assert np.mean(right) > 0.95
    assert sum(right) > 0.8 * sum(len(source) for source, _ in pairs)


def test_a_pair_may_lack_a_side():
    pairs = [([], ["nichts"]), *BOOK, (["nothing"], []), ([], [])]
    assert links(pairs)[:, 0].tolist() == [1, 1, 2, 2, 3, 3]


def test_no_word_has_two_links():
    pairs = [(["no", "no"], ["nein", "nein", "nein"]), *BOOK]
    found = links(pairs)
    assert found[found[:, 0] == 0].tolist() == [[0, 0, 0]]
    found = links(list(random_pairs(np.random.default_rng(3), 300)))
    for side in (found[:, [0, 1]], found[:, [0, 2]]):
        assert len(np.unique(side, axis=0)) == len(side) > 300
