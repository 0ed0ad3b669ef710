"""Table 1's benchmark: the arithmetic, the paths, and one real measurement."""

import itertools
import math

import pytest

from t2t_repro.bench import table1 as bench_table1
from t2t_repro.bench.table1 import HEAD, exponents, layers_between_ends
from t2t_repro.model.table1_layers import Convolution, RestrictedSelfAttention

LENGTHS, WIDTHS = (8, 16, 32, 64), (64, 128)


def costs(n, d):
    return {"n": n, "d": d, "ms": 3 * n**2 * d, "mib": 5 * n * d**0.5}


def test_exponents_of_a_power_law():
    found = exponents([costs(n, d) for n in LENGTHS for d in WIDTHS])
    assert found == pytest.approx({"time_n": 2, "time_d": 1, "memory_n": 1, "memory_d": 0.5})


def test_exponents_are_of_the_upper_half_of_the_lengths():
    rows = [costs(n, d) for n in LENGTHS for d in WIDTHS]
    short = [row | {"ms": 1e6} if row["n"] <= 16 else row for row in rows]
    assert exponents(short)["time_n"] == pytest.approx(2)


def test_rows(monkeypatch):
    """Full attention costs n^2 d, every other layer 4 n d: the ratio is n / 4 at the greatest n."""
    monkeypatch.setattr(bench_table1, "LENGTHS", LENGTHS)
    monkeypatch.setattr(bench_table1, "WIDTHS", WIDTHS)
    monkeypatch.setattr(bench_table1, "PATHS", {})

    def cost(name, n, d, repeats):
        taken = n**2 * d if name == "self-attention" else 4 * n * d
        return {"ms": float(taken), "mib": 2.0 * taken}

    monkeypatch.setattr(bench_table1, "_in_own_process", cost)
    rows = list(bench_table1.rows(1))
    points = [row for row in rows if "ms" in row]
    assert [(row["n"], row["d"]) for row in points] == 5 * [
        (n, d) for d, n in itertools.product(WIDTHS, LENGTHS)
    ]
    fits = {row["layer"]: row for row in rows if "complexity" in row}
    assert fits["self-attention"]["complexity"] == "O(n^2 d)"
    assert fits["self-attention"]["time_n"] == pytest.approx(2)
    assert fits["restricted self-attention"]["memory_n"] == pytest.approx(1)
    ratios = [row for row in rows if "ms_ratio" in row]
    assert [(row["n"], row["d"]) for row in ratios] == [(64, 64), (64, 128)]
    assert {row["ms_ratio"] for row in ratios} == {row["mib_ratio"] for row in ratios} == {16.0}


def layers(name, n):
    path = bench_table1.PATHS[name]
    return layers_between_ends(lambda index: path.make(index, HEAD, dtype="float64"), n)


def test_one_layer_of_full_attention_or_of_recurrence_connects_the_ends():
    assert layers("self-attention", 40) == layers("recurrent", 40) == 1


@pytest.mark.parametrize("n", [13, 14, 40])
def test_contiguous_kernels_reach_three_positions_a_layer(n):
    assert layers("convolutional", n) == math.ceil((n - 1) / 3)


def by_sets(n):
    """Count layers of kernel 7 and dilations 1, 7, 49, 1 ... until offsets lead from n - 1 to 0."""
    reached = {n - 1}
    for count in itertools.count():
        if 0 in reached:
            return count
        steps = [7 ** (count % 3) * offset for offset in range(-3, 4)]
        reached = {i + step for i in reached for step in steps} & set(range(n))


@pytest.mark.parametrize("n", [40, 172, 173, 256])
def test_dilated_kernels_reach_further_in_fewer_layers(n):
    assert layers("convolutional, dilated", n) == by_sets(n) < math.ceil((n - 1) / 3)


def test_restricted_attention_reaches_half_of_r_a_layer():
    def make(index):
        heads = {"d_model": HEAD, "num_heads": 1, "d_k": 8, "d_v": 8}
        return RestrictedSelfAttention(8, **heads, dtype="float64")

    assert [layers_between_ends(make, n) for n in (5, 6, 9, 10)] == [1, 2, 2, 3]


def test_a_kernel_of_the_whole_length_needs_one_layer():
    assert layers_between_ends(lambda index: Convolution(19, HEAD, dtype="float64"), 10) == 1


def least_mib(n):
    """Return the least of three measurements; some peaks are higher by one n x n array."""
    return min(bench_table1._in_own_process("self-attention", n, 64, 1)["mib"] for _ in range(3))


@pytest.mark.slow
def test_a_measurement_in_a_process_of_its_own():
    assert bench_table1._in_own_process("self-attention", 64, 64, 1)["ms"] > 0
    # Long enough that a few MiB of noise do not matter.
    small, large = least_mib(2048), least_mib(4096)
    # Weights, logits and their gradients: several arrays of n x n float32.
    assert 3 * 16 < small < 8 * 16
    assert 3 < large / small < 5
