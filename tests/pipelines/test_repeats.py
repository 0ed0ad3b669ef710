"""Repeated pairs are those that a set of all earlier pairs would find, block by block."""

import random

from pipelines.repeats import Repeats


def test_repeats_are_those_of_a_set():
    rng = random.Random(1)
    repeats, seen = Repeats(), set()
    for size in (0, 1, 700, 3, 50, 400, 1, 0, 900, 20):
        block = [
            {"source": str(rng.randrange(60)), "target": str(rng.randrange(60))}
            for _ in range(size)
        ]
        expected = []
        for pair in block:
            key = pair["source"], pair["target"]
            expected.append(key in seen)
            seen.add(key)
        assert repeats.among(block).tolist() == expected
    assert sum(map(len, repeats._seen)) == len(seen)  # memory grows with distinct pairs only


def test_a_tab_in_a_line_does_not_move_to_the_other_side():
    pairs = [{"source": "a\tb", "target": "c"}, {"source": "a", "target": "b\tc"}]
    assert Repeats().among(pairs).tolist() == [False, False]
