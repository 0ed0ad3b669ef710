"""`evaluate` of several runs: one table, and each run's results.json."""

import json

import commands
import pytest

from pipelines.errors import BadInput
from t2t_repro import config, evaluate

SCORES = {
    "a": {"sacrebleu": 20.5, "sacrebleu_signature": "x", "perplexity": 100.25, "lines": 3},
    "b": {"sacrebleu": 9.0, "ter": 70.125, "perplexity": 4.0, "lines": 3},
}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Return the directories of two runs whose scores are SCORES."""
    for name in SCORES:
        (tmp_path / name).mkdir()
        config.save(config.resolve("toy_ende"), tmp_path / name / "config.yaml")
    monkeypatch.setattr(evaluate, "_score_run", lambda _, path, __: SCORES[path.name])
    return [tmp_path / name for name in SCORES]


def saved(run):
    return json.loads((run / "results.json").read_text())["test"]


def test_a_row_for_each_run_and_a_column_for_each_score(runs, capsys):
    assert commands.call("evaluate", "--workdir", *runs) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["sacrebleu", "perplexity", "ter"],
        [str(runs[0]), "20.50", "100.25", "-"],
        [str(runs[1]), "9.00", "4.00", "70.12"],
    ]
    assert [saved(run) for run in runs] == list(SCORES.values())


def test_json_is_one_object(runs, capsys):
    assert commands.call("evaluate", "--workdir", *runs, "--json") == 0
    expected = {str(run): SCORES[run.name] for run in runs}
    assert json.loads(capsys.readouterr().out) == expected


def test_scores_before_a_failure_are_kept(runs, capsys, monkeypatch):
    def score(given, path, failures):
        if path.name == "b":
            raise BadInput("no checkpoint")
        return SCORES[path.name]

    monkeypatch.setattr(evaluate, "_score_run", score)
    assert commands.call("evaluate", "--workdir", *runs) == 2
    assert capsys.readouterr().out.splitlines()[1].split()[0] == str(runs[0])
    assert saved(runs[0]) == SCORES["a"]
    assert not (runs[1] / "results.json").exists()


def test_a_mistake_in_any_run_is_found_before_the_first_is_scored(runs, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "_score_run", lambda *_: pytest.fail("scored"))
    assert commands.call("evaluate", "--workdir", *runs, runs[0].parent / "none") == 2
    assert "none: no run there" in capsys.readouterr().err
    assert commands.call("evaluate", "--table2", "--workdir", *runs) == 2
    assert "--table2: wanted --workdir" in capsys.readouterr().err
