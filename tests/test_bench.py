"""`bench` for real, where it is quick; the figures themselves are not judged."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def bench(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "t2t_repro.bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_input_prints_one_json_object():
    ended = bench("input", "--repeats=1", "--json")
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)["rows"]
    assert row["data"] == "toy_ende"
    assert row["tokens_per_s"] > 0
    assert 0 < row["padding_share"] < 0.1
    assert row["shapes"] > 10


def test_repeats_below_one_are_refused():
    ended = bench("input", "--repeats=0")
    assert ended.returncode == 2
    assert ended.stderr == "error: --repeats: wanted at least 1, got 0\n"
