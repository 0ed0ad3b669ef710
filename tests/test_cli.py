"""The commands as a shell sees them: exit status, stdout and stderr of real processes."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import commands
import pytest
import tensorflow as tf
from paths import ROOT

from t2t_repro import cli, config, evaluate, export, serve, translate, visualize
from t2t_repro.bench import __main__ as bench
from t2t_repro.model import flops
from t2t_repro.workdir import Workdir

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
        (["--num_layers=[1"], "num_layers: wanted a whole number, got '[1'"),
        (["--dropout"], "--dropout: expected one argument"),
        (["toy_ende"], "unknown argument 'toy_ende'"),
    ],
)
def test_bad_value(arguments, words):
    assert words in refusal("train", *arguments)


def test_home_is_expanded_in_the_value_of_a_flag(tmp_path, monkeypatch):
    """As in --workdir=~/run, where a shell does not; a sentence stays as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    parser = cli.Parser("python -m t2t_repro.train")
    parser.add_argument("--workdir")
    parser.add_argument("--sentence")
    given = parser.parse_args(["--workdir=~/run", "--sentence=~ 5 ~/x"])
    assert (given.workdir, given.sentence) == (str(tmp_path / "run"), "~ 5 ~/x")


def test_files_may_be_given_in_several_flags():
    parser = cli.Parser("python -m t2t_repro.train")
    cli.add_settings(parser, ["data"])
    flags = ["--source_files=a", "--source_files", "b", "c", "--target_files=d"]
    given = cli.settings(parser.parse_args(flags))
    assert given == {"source_files": ["a", "b", "c"], "target_files": ["d"]}


def test_a_variant_is_that_of_the_run_in_the_work_directory(tmp_path):
    settings = config.resolve("wsj_parsing", "small_treebank", {})
    Workdir(tmp_path).save_config(settings)
    given = argparse.Namespace(workdir=tmp_path, variant="small_treebank")
    assert cli.run_of(given).variant == "small_treebank"


def test_a_mistake_leaves_no_work_directory(tmp_path):
    refusal("train", f"--workdir={tmp_path / 'run'}", "--d_model=7")
    assert not list(tmp_path.iterdir())


# Numbers that cannot be


def test_every_numeric_setting_has_two_bounds_that_help_states():
    numbers = {name: field for name, field in config.FIELDS.items() if is_number(name)}
    assert len(numbers) > 30
    text = " ".join(run("train", "--help").stdout.split())
    for name, field in numbers.items():
        bounds = field.metadata
        assert bounds["low"] is not None, name
        assert (bounds["high"] is None) != (bounds["below"] is None), name
        last = f"below {bounds['below']:,}" if bounds["high"] is None else f"{bounds['high']:,}"
        assert f"({bounds['low']:,} to {last})" in text


def is_number(name):
    kinds = {int, float, int | None, float | None}
    return config._TYPES[name] in kinds


@pytest.mark.parametrize("command", [evaluate, translate, export, serve, visualize, bench])
def test_every_numeric_flag_is_bounded(command):
    """No other flag takes a number, so that no infinity and no 5,000 digits get through."""
    for action in command.parser()._actions:
        assert action.type not in (int, float), action.option_strings
        if action.type not in (None, Path):
            assert re.search(r"\([\d.,]+ to [\d,]+\)", action.help), action.option_strings
            for word in ("inf", "nan", "-1e308", "9" * 5000, "", "two"):
                with pytest.raises(argparse.ArgumentTypeError, match="wanted a"):
                    action.type(word)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--num_layers=1000000000"], "num_layers: wanted at most 1,000, got 1000000000"),
        (["--d_model=100000000"], "d_model: wanted at most 65,536, got 100000000"),
        (["--tokens_per_batch=99999999999999999999"], "tokens_per_batch: wanted at most"),
        (["--max_extra_length=99999999999999"], "max_extra_length: wanted at most 10,000, got"),
        (["--beam_size=100000"], "beam_size: wanted at most 1,000, got 100000"),
        (["--seed=4294967296"], "seed: wanted at most 4,294,967,295, got 4294967296"),
        ([f"--seed={'9' * 5000}"], "seed: wanted a whole number, got '999"),
        (["--alpha=inf"], "alpha: wanted at most 10, got inf"),
        (["--alpha=nan"], "alpha: wanted at least 0, got nan"),
        (["--alpha=1e308"], "alpha: wanted at most 10, got 1e+308"),
        (["--problem="], "--problem: the value is empty"),
        (["--workdir", ""], "--workdir: the value is empty"),
        (["--workdir=a\udcff"], r"--workdir=a\udcff': wanted UTF-8"),
        (["--problem=a\x1b[31m"], r"'a\x1b[31m'"),
        (["--num_layers=1000", "--d_model=65536"], "parameters; wanted at most 100,000,000,000"),
    ],
)
def test_flags_that_ask_for_the_impossible(capsys, arguments, words):
    assert commands.call("train", *arguments) == 2
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    (line,) = stderr.splitlines()
    assert words in line


def test_a_line_keeps_both_ends_in_500_characters():
    line = cli.shortened(f"error: a/file: {'x' * 10_000_000}\nfound\x07; give another --workdir")
    assert len(line) == 500 - 1
    assert line.startswith("error: a/file: xxx")
    assert line.endswith(r"x found\x07; give another --workdir")
    assert len(cli.shortened("\x07" * 1000)) <= 500


# Streams that cannot be used

TRAIN = f"{sys.executable} -m t2t_repro.train"


def shell(line, **options):
    """Return (exit status, stdout, stderr) of a line of shell."""
    ended = subprocess.run(
        ["sh", "-c", line],
        env=commands.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("line", "status", "stderr"),
    [
        ("{} --help > /dev/full", 2, "error: stdout: No space left on device\n"),
        ("{} --help >&-", 2, "error: stdout: Bad file descriptor\n"),
        ("{} --num_layers=0 >&- <&-", 2, "error: flag: num_layers: wanted at least 1, got 0\n"),
        ("{} --num_layers=0 2>&-", 2, ""),
        ("{} --num_layers=0 2> /dev/full", 2, ""),
        ("{} --list_variants > /dev/null 2> /dev/full", 0, ""),
        ("env -u HOME LANG=C {} --help > /dev/null", 0, ""),
        ("{} --help <&- >&- 2>&-", 2, ""),
    ],
)
def test_closed_and_full_streams(line, status, stderr):
    assert shell(line.format(TRAIN)) == (status, "", stderr)


def test_messages_do_not_go_to_stdout_when_stderr_is_closed():
    status, stdout, _ = shell(f"{TRAIN} --list_variants 2>&-")
    assert status == 0
    assert [line.split()[0] for line in stdout.splitlines()] == list(config.variants())


def test_a_reader_that_leaves():
    status, stdout, stderr = shell(f"{TRAIN} --help | head -1")
    assert (status, stdout.count("\n")) == (0, 1)
    assert stderr in ("", "stdout was closed\n")


def test_a_reader_of_the_messages_that_leaves(tmp_path):
    line = f"{{ {TRAIN} --num_layers=0; echo $? > status; }} 2>&1 | true; cat status"
    assert shell(line, cwd=tmp_path) == (0, "2\n", "")


def test_a_directory_that_has_been_deleted(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    status, stdout, stderr = shell(f"rmdir {gone} && {TRAIN} --list_variants", cwd=gone)
    assert (status, stdout) == (2, "")
    assert stderr == "error: the current directory has been deleted; cd to another one\n"


def test_too_little_address_space_for_tensorflow(tmp_path):
    status, stdout, stderr = shell(f"ulimit -v 1000000; {TRAIN} --workdir={tmp_path / 'run'}")
    assert (status, stdout) == (2, "")
    (line,) = stderr.splitlines()
    assert "1.0 GB of address space" in line
    assert "ulimit -v unlimited" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "error: too little memory (an allocation failed); end other programs"),
        (ImportError("Advice\nlib.so: failed to map segment"), "(lib.so: failed to map segment)"),
        (tf.errors.ResourceExhaustedError(None, None, "OOM\nmore"), "too little memory (OOM);"),
        (OSError(28, "No space left on device", "a/b"), "error: a/b: No space left on device"),
        (FileNotFoundError("No usable temporary directory"), "error: No usable temporary dir"),
    ],
)
def test_what_the_system_refuses_is_one_line(capsys, error, words):
    def main():
        raise error

    with pytest.raises(SystemExit) as end:
        cli.run(main)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_ctrl_c_in_the_import_of_a_module_in_c_is_an_interruption():
    code = (
        "from t2t_repro import cli\n"
        "def load():\n"
        "    try:\n"
        "        raise KeyboardInterrupt\n"
        "    except KeyboardInterrupt as error:\n"
        "        raise ImportError('initialization failed') from error\n"
        "def main():\n"
        "    try:\n"
        "        load()\n"
        "    except ImportError:\n"
        "        raise ImportError('Failed to load the native TensorFlow runtime.')\n"
        "cli.run(main)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (1, "interrupted\n")
