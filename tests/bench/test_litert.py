"""The benchmark of LiteRT beside CTranslate2: its arithmetic, and a run on a tiny model."""

import numpy as np
import pytest

from t2t_repro.bench import litert as bench_litert
from t2t_repro.bench.litert import Call
from t2t_repro.config import Model


def test_a_ratio_is_of_tokens_per_second():
    ours = [Call(seconds=seconds, tokens=30) for seconds in (0.5, 1.0, 9.0)]
    theirs = [Call(seconds=2.0, tokens=40)] * 3  # an engine may produce another number of tokens
    row = bench_litert._speeds([ours, theirs, [Call(seconds=1.0, tokens=60)]])
    assert row["target_tokens_per_s"] == 30  # the median, which a single slow call does not change
    assert row["ratio"] == pytest.approx(30 / 20)
    assert row["ratio_one_thread"] == pytest.approx(0.5)


def test_latencies_are_percentiles_in_milliseconds():
    ours = [Call(seconds=n / 1000, tokens=1) for n in range(1, 102)]  # 1 to 101 ms
    theirs = [Call(seconds=0.102, tokens=1)]
    row = bench_litert._latencies([ours, theirs, theirs])
    assert (row["p50_ms"], row["p99_ms"]) == (pytest.approx(51), pytest.approx(100))
    assert row["ratio"] == row["ratio_one_thread"] == pytest.approx(2)


@pytest.mark.slow
def test_every_engine_decodes_every_workload(monkeypatch):
    pytest.importorskip("ctranslate2")
    pytest.importorskip("ai_edge_litert")
    tiny = Model(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4)
    monkeypatch.setattr(bench_litert.config, "Model", lambda: tiny)
    for name, value in {"ROWS": 600, "BATCHES": (1, 3), "LENGTH": 4, "LENGTHS": (2, 5)}.items():
        monkeypatch.setattr(bench_litert, name, value)
    monkeypatch.setattr(bench_litert, "CALLS", 2)
    monkeypatch.setattr(bench_litert, "MIXED", np.array([4, 2, 3]))
    monkeypatch.setattr(
        bench_litert, "sources", lambda lengths: np.where(np.arange(5) < lengths[:, None], 1, 0)
    )
    start, *rows = bench_litert.rows(repeats=1)
    assert start["load_s"] < start["first_translation_s"]
    assert [row.get("batch", row.get("length")) for row in rows] == [1, 3, 2, 5, "mixed"]
    assert all(row["ratio"] > 0 and row["ratio_one_thread"] > 0 for row in rows)
