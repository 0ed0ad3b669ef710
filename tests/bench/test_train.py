"""The training benchmark on tiny models; speeds are not checked."""

import itertools

import numpy as np
import pytest

from t2t_repro.bench import train as bench_train
from t2t_repro.bench.train import Workload
from t2t_repro.config import Model
from t2t_repro.distributed import machine

TINY = Model(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4)
WORKLOAD = Workload(TINY, rows=64, batch=12, length=5)


@pytest.fixture(scope="module")
def split():
    return bench_train.equal_length_split(WORKLOAD)


def test_flops_are_six_for_each_weight_of_a_matrix_and_target_token():
    """The workloads of other toolkits, counted by hand: 6 x 6 x (12 + 4 x 4) d^2 and so on."""
    base, tiny = bench_train.WORKLOADS["base"], bench_train.WORKLOADS["tiny"]
    assert (base.tokens, tiny.tokens) == (32 * 64, 128 * 24)
    assert base.flops == 6 * (6 * (12 * 512**2 + 4 * 512 * 2048) + 32_000 * 512) * 2048
    assert tiny.flops == 6 * (4 * (12 * 128**2 + 4 * 128 * 256) + 10_000 * 128) * 3072


def test_batches_come_through_the_input_pipeline_without_padding(split):
    training = bench_train.Training(WORKLOAD, "float32", split)
    epoch = list(itertools.islice(training.batches, bench_train._BATCHES))
    pairs = set()
    for source, target in epoch:
        assert source.shape == target.shape == (12, 5)
        for side in (source.numpy(), target.numpy()):
            assert (side[:, :-1] >= 3).all()
            assert (side[:, :-1] < 64).all()
            np.testing.assert_array_equal(side[:, -1], 1)
        pairs |= {row.tobytes() for row in np.concatenate([source, target], axis=1)}
    assert len(pairs) == 12 * bench_train._BATCHES  # every pair once, then the next epoch
    assert next(training.batches)[0].shape == (12, 5)


def test_a_call_is_a_step_of_the_trainer(split):
    training = bench_train.Training(WORKLOAD, "float32", split)
    before = training.model.trainable_variables[0].numpy()
    _, _, tokens, _ = training()
    assert tokens == 60
    assert training.trainer.optimizer.iterations == 1
    assert np.abs(training.model.trainable_variables[0].numpy() - before).max() > 0


def check(row):
    assert row["size"] == "base"
    assert row["target_tokens_per_s"] == pytest.approx(60e3 / row["step_ms"])
    assert row["gflops"] == pytest.approx(WORKLOAD.flops / row["step_ms"] / 1e6)
    assert row["matmul_share"] == pytest.approx(row["gflops"] / row["matmul_gflops"])


@pytest.mark.slow
def test_a_row_for_each_workload_and_precision(monkeypatch):
    monkeypatch.setattr(bench_train, "WORKLOADS", {"base": WORKLOAD})
    monkeypatch.setattr(machine, "MATRIX", 256)
    rows = list(bench_train.rows(1, account=False))
    assert [row["precision"] for row in rows] == ["float32", "bfloat16"]
    for row in rows:
        check(row)
        assert "optimizer_ms" not in row


@pytest.mark.slow
def test_account_of_what_a_step_spends_where(monkeypatch):
    monkeypatch.setattr(bench_train, "WORKLOADS", {"base": WORKLOAD})
    monkeypatch.setattr(bench_train, "PRECISIONS", ("float32",))
    monkeypatch.setattr(bench_train, "matmul_gflops", lambda dtype, repeats: 10.0)

    def try_step(model, rows, train, shape):
        """7 bytes a piece; tests/training/test_memory_fit.py measures it in processes."""
        return 1000 + 7 * shape[0] * shape[1]

    monkeypatch.setattr(bench_train.memory_fit, "try_step", try_step)
    (row,) = bench_train.rows(1, account=True)
    check(row)
    assert row["padding_share"] == 0
    assert row["products_ms"] == pytest.approx(row["step_ms"] * row["matmul_share"])
    assert row["output_products_ms"] == pytest.approx(6 * 64 * 8 * 60 / 10.0 / 1e6)
    # 12 sentences, 3 attentions of 5 x 5 pairs, 2 heads of width 4 + 4.
    assert row["attention_ms"] == pytest.approx(6 * 12 * 3 * 25 * 2 * 8 / 10.0 / 1e6)
    assert row["bytes_per_token"] == 7
    assert row["optimizer_ms"] > 0
    assert {"dropout_ms", "vocabulary_ms", "pipeline_ms"} <= row.keys()
