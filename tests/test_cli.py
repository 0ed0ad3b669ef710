"""The commands as a shell sees them: exit status, stdout and stderr of real processes."""

import os
import subprocess
import sys

import pytest
from paths import ROOT

from t2t_repro import config
from t2t_repro.model import flops

# The environment of a shell; importing Keras, as other tests do, sets this variable.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
TIMED = ("-X", "importtime")  # makes Python list its imports on stderr
COMMANDS = ("train", "evaluate", "translate", "export", "bench")


def run(command, *arguments, python=()):
    return subprocess.run(
        [sys.executable, *python, "-m", f"t2t_repro.{command}", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def refusal(command, *arguments):
    """Return the one line that a command prints when it ends with exit status 2."""
    ended = run(command, *arguments)
    assert (ended.returncode, ended.stdout) == (2, ""), ended
    (line,) = ended.stderr.splitlines()
    return line


# --help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_comes_without_the_slow_imports(command):
    ended = run(command, "--help", python=TIMED)
    imported = {line.split("|")[-1].strip() for line in ended.stderr.splitlines()}
    assert "t2t_repro.config" in imported
    assert not imported & {"tensorflow", "keras", "tensorflow_text", "sentencepiece"}
    assert ended.returncode == 0
    assert f"usage: python -m t2t_repro.{command}" in ended.stdout


def test_help_of_train_is_the_table_of_hyperparameters():
    text = " ".join(run("train", "--help").stdout.split())
    for name, field in config.FIELDS.items():
        assert f"--{name} " in text
        assert field.metadata["help"] in text


def test_list_variants_prints_every_row():
    ended = run("train", "--list_variants")
    assert ended.returncode == 0
    assert [line.split()[0] for line in ended.stdout.splitlines()] == list(config.variants())
    assert "d_k 512, d_v 512" in ended.stdout
    base, *_, big = (line.split() for line in ended.stdout.splitlines())
    assert base[:5] == ["base", "65,110,016", "65", "4.92", "25.8"]
    assert big[:5] == ["big", "218,300,416", "213", "4.33", "26.4"]
    assert "unresolved" in ended.stderr


def test_list_variants_counts_for_the_problem_and_the_flags():
    ended = run("train", "--list_variants", "--problem=toy_ende", "--d_ff=20", python=TIMED)
    imported = {line.split("|")[-1].strip() for line in ended.stderr.splitlines()}
    assert not imported & {"tensorflow", "keras"}
    resolved = config.resolve("toy_ende", "C1", {"d_ff": 20})
    count = flops.trainable_parameters(resolved.model, resolved.data.vocabulary_size)
    c1 = next(line.split() for line in ended.stdout.splitlines() if line.startswith("C1 "))
    assert c1[1] == f"{count:,}"


# Mistakes


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_flag_is_answered_with_the_nearest(command):
    needed = {"export": ["--workdir=a", "--export_dir=b"], "bench": ["input"]}.get(command, [])
    known = "--repeats" if command == "bench" else "--beam_size"
    wrong = known.replace("s", "z")
    assert f"'{wrong}'; did you mean '{known}'?" in refusal(command, *needed, f"{wrong}=4")


@pytest.mark.parametrize("flag", ["--train_step=5", "--prob=toy_ende", "--list"])
def test_flags_cannot_be_abbreviated(flag):
    assert f"unknown argument '{flag.split('=')[0]}'" in refusal("train", flag)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--problem=toy_end"], "unknown problem 'toy_end'; did you mean 'toy_ende'?"),
        (["--variant=bigg"], "unknown variant 'bigg'; did you mean 'big'?"),
        (["--num_layers=two"], "num_layers: wanted a whole number, got 'two'"),
        (["--num_layers=[1"], "num_layers: wanted a whole number, got '[1'"),
        (["--dropout=1"], "dropout: wanted less than 1, got 1.0"),
        (["--dropout"], "--dropout: expected one argument"),
        (["toy_ende"], "unknown argument 'toy_ende'"),
    ],
)
def test_bad_value(arguments, words):
    assert words in refusal("train", *arguments)


def test_a_mistake_leaves_no_work_directory(tmp_path):
    refusal("train", f"--workdir={tmp_path / 'run'}", "--d_model=7")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "arguments", "wanted"),
    [
        ("evaluate", [], "wanted --workdir, or --problem with"),
        ("evaluate", ["--split=train"], "invalid choice: 'train'"),
        ("translate", [], "wanted one of --workdir, --saved_model and --litert"),
        ("translate", ["--saved_model=e", "--beam_size=2"], "--beam_size: an export has its"),
        ("export", ["--workdir=w"], "required: --export_dir"),
    ],
)
def test_missing_or_contradictory_flags(command, arguments, wanted):
    assert wanted in refusal(command, *arguments)


def test_work_directory_without_a_run(tmp_path):
    assert f"{tmp_path}: no run there" in refusal("translate", f"--workdir={tmp_path}")
