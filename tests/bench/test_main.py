"""The quick benchmarks as real commands, and errors for wrong flags; speeds are not checked."""

import json
import math
import subprocess
import sys

import pytest
from paths import ROOT

from t2t_repro.bench.__main__ import _for_json


def bench(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "t2t_repro.bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_input_prints_one_json_object():
    ended = bench("input", "--repeats=1", "--json")
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    kinds = [*2 * ["plan"], *2 * ["bucket_by_sequence_length"], "stream"]
    assert [row["method"].split(",")[0] for row in rows] == kinds
    for row in rows:
        assert row["data"] == "toy_ende"
        assert row["tokens_per_s"] > 0
        assert 0 < row["padding_share"] < 0.2
        assert row["shapes"] > 10
    ours = rows[1]
    assert ours["shapes"] <= 64
    assert 0.3 < ours["neighbour_distance"] < 0.37
    assert 0 < ours["meet_again_share"] < 0.5
    assert ours["prepared_sentences_per_cpu_s"] > 0
    assert ours["sentencepiece_sentences_per_cpu_s"] > 0


def test_flags_of_a_text_are_refused_where_none_is_read():
    ended = bench("train", "--vocabulary_size=300")
    assert ended.returncode == 2
    assert ended.stderr == "error: --vocabulary_size: only for input, vocabulary, table3\n"


def test_repeats_below_one_are_refused():
    ended = bench("input", "--repeats=0")
    assert ended.returncode == 2
    assert ended.stderr == (
        "error: argument --repeats: wanted a whole number from 1 to 1,000, got '0'\n"
    )


def test_vocabulary_wants_text_to_learn_from_and_to_test_on():
    ended = bench("vocabulary", "--source_files=x.en")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: wanted --source_files to learn from and --dev_source")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode", "--account"], "--account: only for train"),
        (["input", "--backend=jax"], "--backend: only for train"),
        (["train", "--pairs=10"], "--pairs: only for input"),
        (["decode", "--problem=wmt14_ende"], "--problem: only for input, table3"),
        (["table3", "--repeats=9"], "--repeats: only for train, decode, input, table1, serve"),
        (["train", "--backend=jax", "--account"], "--account: only for --backend=tensorflow"),
        (["vocabulary", "--max_length=9"], "--max_length: vocabulary does not read it"),
        (["input", "--vocabulary=v.model"], "--vocabulary: input does not read it"),
        (["input", "--max_ratio=2"], "--max_ratio: input does not read it"),
    ],
)
def test_contradictory_flags_of_train(arguments, message):
    ended = bench(*arguments)
    assert ended.returncode == 2
    assert ended.stderr == f"error: {message}\n"


def test_train_measures_no_worker_of_a_job(monkeypatch):
    workers = {"worker": ["localhost:1", "localhost:2"]}
    job = {"cluster": workers, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(job))
    ended = bench("train")
    assert ended.returncode == 2
    *_, line = ended.stderr.splitlines()
    assert line.startswith("error: bench train measures one process alone; unset TF_CONFIG")


def test_json_has_null_for_what_was_not_measured():
    assert _for_json({"share": math.nan, "shapes": 3}) == {"share": None, "shapes": 3}
