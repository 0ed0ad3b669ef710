"""The patches of docs/extending.md apply to the code, and their additions work."""

import json
import re
import shutil
import subprocess
import sys

import commands
import pytest
from paths import ROOT

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
PATCHES = {
    title.removeprefix("A ").split()[-1]: patch
    for title, patch in re.findall(
        r"^## (.*?)\n.*?```diff\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE
    )
}
TINY = [
    *("--num_layers=1", "--d_model=16", "--d_ff=16", "--num_heads=2", "--d_k=8", "--d_v=8"),
    *("--tokens_per_batch=512", "--train_steps=4", "--checkpoint_steps=4", "--eval_sentences=0"),
    *("--beam_size=1", "--max_extra_length=2"),
]

# Another test's process may be writing it.
NO_BYTECODE = shutil.ignore_patterns("__pycache__")


def apply(patch, tree):
    """Apply a patch to a copy of the packages."""
    for folder in ("t2t_repro", "pipelines", "configs"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=NO_BYTECODE)
    subprocess.run(["git", "apply", "-"], input=patch, cwd=tree, text=True, check=True)


@pytest.fixture
def patched(request, tmp_path):
    """Return the folder of a patched copy of the packages."""
    tree = tmp_path / "tree"
    tree.mkdir()
    apply(PATCHES[request.param], tree)
    return tree


def run(tree, *arguments, stdin=b""):
    return commands.python(*arguments, stdin=stdin, cwd=tree, PYTHONPATH=str(tree)).stdout.decode()


def example(name):
    return pytest.mark.parametrize("patched", [name], indirect=True)


def test_there_is_an_example_of_each():
    assert list(PATCHES) == ["problem", "layer", "metric", "schedule", "strategy"]


@pytest.mark.parametrize("patched", PATCHES, indirect=True)
def test_each_touches_at_most_two_existing_files(patched):
    paths = [path.relative_to(patched) for path in patched.rglob("*.py")]
    existing = [path for path in paths if (ROOT / path).exists()]
    touched = [p for p in existing if (ROOT / p).read_bytes() != (patched / p).read_bytes()]
    assert 1 <= len(touched) <= 2


@pytest.mark.slow
@example("problem")
def test_problem(patched, tmp_path):
    workdir = tmp_path / "run"
    run(patched, "-m", "t2t_repro.train", "--problem=sorted_digits", f"--workdir={workdir}", *TINY)
    scores = json.loads(run(patched, "-m", "t2t_repro.evaluate", f"--workdir={workdir}", "--json"))
    assert scores["lines"] == 100


@pytest.fixture
def text(toy_pairs, tmp_path):
    """Return the flags of a run on a file of 300 pairs."""
    lines = (f"{pair['source']}\t{pair['target']}\n" for pair in toy_pairs)
    (tmp_path / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    files = f"--tsv_files={tmp_path / 'pairs.tsv'}"
    return ["--problem=parallel_text", files, "--held_out_share=0.1", "--vocabulary_size=400"]


@pytest.mark.slow
@example("layer")
def test_layer(patched, text, tmp_path):
    flags = [f"--workdir={tmp_path / 'run'}", *text, "--neighbourhood=4", *TINY]
    flags += ["--eval_sentences=2"]  # draws attention if the layer returns its weights
    run(patched, "-m", "t2t_repro.train", *flags)
    code = (
        "from pathlib import Path\nfrom t2t_repro import experiment\n"
        "from t2t_repro.workdir import Workdir\n"
        f"run = experiment.restore(Workdir(Path({str(tmp_path / 'run')!r})), {{}})\n"
        "print(type(run.model.encoder[0].self_attention).__name__, run.model.encoder[0]."
        "self_attention.r)"
    )
    assert run(patched, "-c", code) == "RestrictedSelfAttention 4\n"
    drawing = [
        f"--workdir={tmp_path / 'run'}",
        "--sentence=A dog.",
        f"--output={tmp_path / 'f.png'}",
    ]
    refused = subprocess.run(
        [sys.executable, "-m", "t2t_repro.visualize", *drawing],
        cwd=patched,
        env=commands.environment() | {"PYTHONPATH": str(patched)},
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2
    assert "the encoder has no full self-attention" in refused.stderr.splitlines()[-1]


@pytest.mark.slow
@example("metric")
def test_metric(patched, tiny_run, tmp_path):
    workdir = shutil.copytree(tiny_run, tmp_path / "run")
    arguments = [f"--workdir={workdir}", "--beam_size=1", "--json"]
    scores = json.loads(run(patched, "-m", "t2t_repro.evaluate", *arguments))
    assert 0 < scores["copied_words"] < 50


@pytest.mark.slow
@example("schedule")
def test_schedule(patched, text, tmp_path):
    flags = [f"--workdir={tmp_path / 'run'}", *text, "--schedule=cosine", *TINY]
    run(patched, "-m", "t2t_repro.train", *flags)
    code = (
        "from t2t_repro.config import Train\n"
        "from t2t_repro.training.schedule import make_schedule\n"
        "rate = make_schedule(Train(schedule='cosine', warmup_steps=10, train_steps=100), 512)\n"
        "print([round(float(rate(n)) * 1e3, 3) for n in (0, 5, 10, 55, 100)])"
    )
    assert json.loads(run(patched, "-c", code)) == [0, 0.5, 1, 0.5, 0]


@pytest.mark.slow
@example("strategy")
def test_decoding_strategy(patched, tiny_run, tmp_path):
    workdir = shutil.copytree(tiny_run, tmp_path / "run")
    with (workdir / "config.yaml").open("a") as config:
        config.write("greedy: false\n")
    arguments = ["-m", "t2t_repro.translate", f"--workdir={workdir}"]
    lines = b"The old house is not small.\nYes.\nMy sister called the doctor.\n"
    greedy = run(patched, *arguments, "--greedy", stdin=lines)
    assert greedy == run(patched, *arguments, "--sampling_topk=1", stdin=lines)
    assert greedy.count("\n") == 3
