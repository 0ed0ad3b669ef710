"""The decode benchmark on a tiny model; speeds are not checked."""

import keras
import numpy as np
import pytest

from t2t_repro.bench import decode as bench_decode
from t2t_repro.config import Model

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="measures tf.function"
)


@pytest.fixture
def rows(monkeypatch):
    tiny = Model(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4)
    monkeypatch.setattr(bench_decode.config, "Model", lambda: tiny)
    monkeypatch.setattr(bench_decode, "ROWS", 64)
    monkeypatch.setattr(bench_decode, "LENGTH", 3)
    monkeypatch.setattr(bench_decode, "BATCHES", (1, 2))
    monkeypatch.setattr(bench_decode, "PRECISIONS", ("float32",))
    monkeypatch.setattr(bench_decode, "MIXED", np.repeat([4, 2], 64))
    return list(bench_decode.rows(repeats=1))


@pytest.mark.slow
def test_a_row_for_each_batch_and_one_for_the_file(rows):
    assert [row["batch"] for row in rows] == [1, 2, "mixed"]
    assert {row["precision"] for row in rows} == {"float32"}
    for row, tokens in zip(rows, (3, 3, 3), strict=True):  # the file's average is 3, too
        per_sentence = row["target_tokens_per_s"] / row["sentences_per_s"]
        assert per_sentence == pytest.approx(tokens)
    for row in rows[:2]:
        assert row["step_ms"] == pytest.approx(row["batch"] * 1e3 / row["target_tokens_per_s"])
        assert row["products_share"] == pytest.approx(row["products_ms"] / row["step_ms"])
        assert len(row["operation_ms"]) == bench_decode.OPERATIONS
        assert "MatMul" in row["operation_ms"]


def test_floors_count_the_decoders_matrices(monkeypatch):
    """Base applies 22.0M weights of layers and 16.4M of the output matrix per target; beam 4."""
    monkeypatch.setattr(bench_decode, "read_gb_per_s", lambda repeats: 1.0)
    monkeypatch.setattr(bench_decode, "matmul_gflops", lambda dtype, repeats: 1.0)
    weights = 6 * (6 * 512 * 512 + 2 * 512 * 2048) + 32_000 * 512
    memory, arithmetic = bench_decode._floors_ms("float32", 1)
    assert memory == pytest.approx(weights * 4 / 1e6)
    assert arithmetic == pytest.approx(weights * 2 * 4 / 1e6)
    assert bench_decode._floors_ms("mixed_bfloat16", 1).memory == pytest.approx(memory / 2)


def test_sources_end_with_eos_and_are_padded():
    sources = bench_decode.sources(np.array([3, 1]))
    assert (sources[0, :2] >= 3).all()
    assert sources[0, 2] == sources[1, 0] == bench_decode.EOS
    np.testing.assert_array_equal(sources[1, 1:], [0, 0])
