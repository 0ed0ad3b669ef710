"""COMET runs in a Python of its own; a package on disk with COMET's functions stands in for it."""

import json
import sys

import commands
import pytest

STAND_IN = """
import json, sys
from pathlib import Path
from types import SimpleNamespace

def load_from_checkpoint(path):
    return Model(json.loads(Path(path).read_text()))

class Model:
    def __init__(self, weights):
        self.weight = weights["weight"]

    def predict(self, samples, batch_size, gpus, progress_bar):
        print("a line that COMET prints")
        sys.stderr.buffer.write(b"50 \\xff\\n")  # a mark of progress, not in UTF-8
        scores = [
            self.weight * len(set(s["src"] + s["ref"]) & set(s["mt"])) / len(s["mt"])
            for s in samples
        ]
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))
"""
TORCH = "from types import SimpleNamespace\ncuda = SimpleNamespace(device_count=lambda: 0)\n"


@pytest.fixture
def evaluate(tmp_path, monkeypatch, capsys):
    """Return a function that scores two lines with more flags -> (status, stdout, stderr)."""
    for name, code in (("comet", STAND_IN), ("torch", TORCH)):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    texts = {"en": "x\nab", "out": "xy\nab", "de": "y\nz", "short": "x"}
    texts |= {"model.ckpt": '{"weight": 0.5}', "nan.ckpt": '{"weight": NaN}'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    def evaluate(*flags):
        files = [f"--hypotheses={tmp_path / 'out'}", f"--references={tmp_path / 'de'}"]
        given = [flag.format(tmp_path) for flag in flags]
        status = commands.call("evaluate", "--problem=parallel_text", *files, *given)
        return status, *capsys.readouterr()

    return evaluate


def test_the_score_is_of_sources_outputs_and_references(evaluate):
    status, stdout, _ = evaluate("--comet={}/model.ckpt", "--sources={}/en", "--ter", "--json")
    assert status == 0
    scores = json.loads(stdout)
    assert next(iter(scores)) == "sacrebleu"
    assert scores["comet"] == 0.5  # 0.5 * (2 of 2 + 2 of 2) / 2; 0.25 if sides were swapped
    assert scores["comet_model"].endswith("model.ckpt")
    assert scores["ter"] == 100.0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--comet={}/model.ckpt"], "--comet: wanted --sources too"),
        (["--comet_python={}/python"], "--comet_python: wanted --comet with it"),
        (["--comet={}/none", "--sources={}/en"], "none: no such file; wanted the model.ckpt"),
        (["--comet={}/model.ckpt", "--sources={}/short"], "--sources: 1 lines, but 2 references"),
        (
            ["--comet={}/model.ckpt", "--sources={}/en", "--comet_python={}/python"],
            "python: No such file or directory; wanted a Python",
        ),
    ],
)
def test_what_cannot_be_scored(evaluate, flags, expected):
    status, stdout, stderr = evaluate(*flags)
    assert (status, stdout) == (2, "")
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert expected in stderr


@pytest.mark.parametrize(
    ("model", "expected"),
    [("en", "JSONDecodeError: Expecting value"), ("nan.ckpt", "wanted a model that")],
)
def test_the_other_scores_are_not_lost_if_comet_fails(evaluate, model, expected):
    flags = f"--comet={{}}/{model}", "--sources={}/en", "--ter", "--json"
    status, stdout, stderr = evaluate(*flags)
    assert status == 2
    assert {"sacrebleu", "chrf", "ter"} <= json.loads(stdout).keys()
    assert expected in stderr
    assert stderr.count("\n") == 1


def test_a_python_in_the_current_folder(evaluate, monkeypatch, tmp_path):
    """ "./python3" is that file, and not what PATH has under this name."""
    monkeypatch.chdir(tmp_path)
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 0.25\n")
    python.chmod(0o755)
    flags = ["--comet={}/model.ckpt", "--sources={}/en", "--comet_python=./python3", "--json"]
    status, stdout, stderr = evaluate(*flags)
    assert status == 0, stderr
    assert json.loads(stdout)["comet"] == 0.25


def test_comet_is_not_installed(evaluate, monkeypatch, tmp_path):
    monkeypatch.delenv("PYTHONPATH")
    (tmp_path / "comet").mkdir()  # as the environment that the message asks for
    monkeypatch.chdir(tmp_path)
    status, _, stderr = evaluate("--comet={}/model.ckpt", "--sources={}/en")
    assert status == 2
    assert f"unbabel-comet is not installed in {sys.executable}; python3 -m venv comet" in stderr
