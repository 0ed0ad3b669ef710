"""User errors: status 2, one line that names the problem and a remedy, and nothing is lost.

Most commands run in this process, because importing TensorFlow takes seconds; the last tests start
real processes.
"""

import errno
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import commands
import pytest

import t2t_repro
from pipelines.toy import toy_ende
from t2t_repro.training.checkpoints import Checkpoints
from t2t_repro.workdir import Workdir

SIZE = [
    *("--num_layers=1", "--d_model=8", "--d_ff=8", "--num_heads=1", "--d_k=4", "--d_v=4"),
    *("--vocabulary_size=400", "--held_out_share=0.1", "--tokens_per_batch=512"),
    *("--train_steps=2", "--checkpoint_steps=1", "--eval_sentences=0"),
]
# Prefixes of the lines that a command may print before it finds the mistake.
PROGRESS = ("vocabulary: ", "train: ", "dev: ", "test: ", "model: ", "weights: ")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return a folder with 300 pairs and with faulty copies of such files."""
    folder = tmp_path_factory.mktemp("text")
    pairs = list(islice(toy_ende.examples("dev"), 300))
    sources, targets = ([pair[side] + "\n" for pair in pairs] for side in ("source", "target"))
    tsv = (f"{source[:-1]}\t{target}" for source, target in zip(sources, targets, strict=True))
    contents = {"pairs.tsv": tsv, "en": sources, "de": targets, "de.short": targets[:-1]}
    for name, lines in contents.items():
        (folder / name).write_text("".join(lines), encoding="utf-8")
    (folder / "empty").touch()
    (folder / "latin1").write_bytes("".join(targets).encode("latin-1"))
    return folder


def _train_parallel_text(text, workdir, *flags):
    flags = SIZE + list(flags)
    flags += [
        "--problem=parallel_text",
        f"--tsv_files={text / 'pairs.tsv'}",
        "--embedding_rows=none",
    ]
    assert commands.call("train", *flags, f"--workdir={workdir}") == 0
    return workdir


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    return _train_parallel_text(text, tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="module")
def wider(text, tmp_path_factory):
    return _train_parallel_text(text, tmp_path_factory.mktemp("wider") / "run", "--d_model=16")


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported") / "export"
    assert commands.call("export", f"--workdir={trained}", f"--export_dir={directory}") == 0
    return directory


@pytest.fixture
def run(trained, tmp_path):
    """Return a copy of a trained run that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def export(exported, tmp_path):
    return Path(shutil.copytree(exported, tmp_path / "export"))


def _error(stdout, stderr):
    """Return the one error line of a failing command; only PROGRESS lines may come before it."""
    assert stdout == ""
    lines = [line for line in stderr.splitlines() if not line.startswith(PROGRESS)]
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture
def refusal(capsys):
    """Return a function that calls a command in this process and returns its error message."""

    def refusal(name, *flags):
        capsys.readouterr()
        status = commands.call(name, *flags, stdin=b"hello\n")
        message = _error(*capsys.readouterr())
        assert status == 2
        return message

    return refusal


def files(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# Flags


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("train", "--problem=toy_endee", "did you mean 'toy_ende'?"),
        ("train", "--variant=bigg", "did you mean 'big'?"),
        ("train", "--num_layer=3", "did you mean '--num_layers'?"),
        ("train", "--num_layers=two", "num_layers: wanted a whole number"),
        ("train", "--dropout=1", "dropout: wanted less than 1, got 1"),
        ("train", "--d_model=33", "d_model: wanted an even number, got 33"),
        ("evaluate", "", "wanted --workdir, or --problem with --hypotheses and --references"),
        ("evaluate", "--workdir=x --hypotheses=y", "--hypotheses: does not go with --workdir"),
        ("evaluate", "--workdir=x --split=train", "choose from 'test', 'dev'"),
        ("translate", "", "wanted one of --workdir, --saved_model and --litert"),
        (
            "translate",
            "--workdir=x --saved_model=y",
            "wanted one of --workdir, --saved_model and --litert",
        ),
        ("translate", "--saved_model=x --beam_size=2", "an export has its decode settings in it"),
        ("translate", "--litert=x --sampling_topk=5", "--sampling_topk: an export has no input"),
        ("translate", "--saved_model=x --prefixes=y", "--prefixes: an export has no input"),
        ("translate", "--saved_model=x --alignments=y", "--alignments: an export has no input"),
        ("translate", "--workdir=x --seed=5", "wanted --sampling_topk=K too"),
        ("translate", "--workdir=x --sampling_topk=5 --beam_size=2", "sampling has no beam"),
        ("translate", "--workdir=x --json --score", "--json: it has scores"),
        ("translate", "--workdir=x --checkpoint=7 --average_last=2", "--checkpoint=7 takes one"),
        ("score", "--workdir=x --sources=y", "wanted both --sources and --targets, or neither"),
        ("export", "--workdir=x", "--export_dir"),
        ("export", "--workdir=x --export_dir=", "--export_dir: the value is empty"),
        (
            "export",
            "--workdir=x --export_dir=y --export_version=-1",
            "--export_version: wanted a whole number",
        ),
        ("evaluate", "--workdir=", "--workdir: the value is empty"),
        ("evaluate", "--compare x y --references=z --alpha=1", "--alpha: only runs have it"),
        (
            "evaluate",
            "--problem=toy_ende --hypotheses=x --references=y --split=dev",
            "--split: only runs have it",
        ),
        ("visualize", "--workdir=x --output= --sentence=y", "--output: the value is empty"),
        ("visualize", "--workdir=x --output=y.png --sentence=y --layer=0", "from 1 to 1,000"),
        ("visualize", "--workdir=x --output=y.png --sentence=y --heads=99999", "from 1 to 1,024"),
        ("translate", "--workdir=x --nbest=99999999999999", "from 1 to 1,000, got"),
        ("serve", "--export_dir=", "--export_dir: the value is empty"),
        ("prepare", "--beam_pipeline_options=", "--beam_pipeline_options: the value is empty"),
    ],
)
def test_flags(refusal, tmp_path, monkeypatch, name, flags, expected):
    monkeypatch.chdir(tmp_path)
    assert expected in refusal(name, *flags.split())
    assert not list(tmp_path.iterdir())


# Text


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "wanted one kind: --source_files with --target_files, or --tsv_files"),
        ("--tsv_files={}/absent", "absent: no such file"),
        ("--tsv_files={}/empty", "empty: empty file"),
        ("--source_files={0}/en --target_files={0}/de.short", "300 lines, but {}/de.short: 299"),
        ("--source_files={0}/en --target_files={0}/latin1", "not UTF-8"),
        ("--tsv_files={}/pairs.tsv --vocabulary_size=30000", "at most"),
        ("--tsv_files={}/pairs.tsv --vocabulary_size=261", "at least"),
        ("--tsv_files={}/pairs.tsv --embedding_rows=300", "embedding_rows: wanted at least"),
        ("--tsv_files={}/pairs.tsv --held_out_share=0", "or --held_out_share=0.01"),
        ("--tsv_files={}/pairs.tsv --max_length=2", "no sentence pair is left"),
    ],
)
def test_text_to_train_on(refusal, text, tmp_path, flags, expected):
    flags = [*SIZE, *flags.format(text, text).split()]
    message = refusal("train", "--problem=parallel_text", *flags, f"--workdir={tmp_path}")
    assert expected.format(text) in message
    assert not (tmp_path / "config.yaml").exists()  # so the corrected command can start here


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--tsv_files={}/pairs.tsv", "none can be held out; give --dev_source_files"),
        ("--tsv_files={}/absent --held_out_share=0", "absent: no such file"),
        ("--tsv_files={}/pairs.tsv --xla", "--stream with --xla"),
        ("--tsv_files={}/pairs.tsv --auxiliary_tasks", "--stream with --auxiliary_tasks"),
        ("--tsv_files={}/pairs.tsv --misspelt_share=1", "--stream out, or --misspelt_share=0.0"),
        ("--tsv_files={}/pairs.tsv --max_ratio=2", "--stream with --max_ratio"),
        (
            "--source_files {0}/en {0}/en --target_files {0}/de --held_out_share=0",
            "--source_files names 2 files, --target_files 1",
        ),
    ],
)
def test_text_that_cannot_be_streamed(refusal, text, tmp_path, flags, expected):
    flags = ["--problem=parallel_text", *SIZE, "--stream", *flags.format(text).split()]
    assert expected in refusal("train", *flags, f"--workdir={tmp_path}")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--problem=toy_ende --stream", "toy_ende has no files that it could read"),
        ("--problem=wmt14_ende --tokenized", "wmt14_ende does not read it; leave it out, or give"),
        ("--problem=toy_ende --gold_repeats=2", "another --problem, such as wsj_parsing"),
        ("--problem=wsj_parsing --held_out_share=0", "another --problem, such as parallel_text"),
        ("--problem=toy_ende --data_dir=x", "--data_dir: toy_ende does not read it"),
    ],
)
def test_text_settings_that_are_another_problems(refusal, tmp_path, flags, expected):
    assert expected in refusal("train", *flags.split(), f"--workdir={tmp_path}")


@pytest.mark.parametrize("name", ["source_files", "dev_target_files"])
def test_text_in_a_pipe(refusal, text, tmp_path, name):
    os.mkfifo(pipe := tmp_path / "pipe")
    given = {f"{split}_files": text / "en" for split in ("source", "target")}
    given |= {f"dev_{split}_files": text / "en" for split in ("source", "target")} | {name: pipe}
    flags = [f"--{name}={path}" for name, path in given.items()]
    message = refusal("train", "--problem=parallel_text", *flags, f"--workdir={tmp_path / 'run'}")
    assert f"--{name}: {pipe} is no regular file, and is read more than once" in message


@pytest.mark.parametrize("name", ["early_stopping", "keep_best"])
def test_dev_scores_are_wanted_and_have_no_time(refusal, tmp_path, name):
    message = refusal("train", f"--{name}=2", "--eval_share=0", f"--workdir={tmp_path}")
    assert f"--{name} with --eval_share=0: only the last checkpoint has dev scores" in message


def test_a_stream_is_not_encoded_on_beam(refusal, text, tmp_path):
    flags = ["--problem=parallel_text", f"--tsv_files={text}/pairs.tsv", "--stream"]
    flags += [f"--{split}_files={text}/en" for split in ("dev_source", "dev_target")]
    beam = "--beam_pipeline_options=runner=DirectRunner"
    message = refusal("prepare", *flags, "--held_out_share=0", beam, f"--workdir={tmp_path}")
    assert "--beam_pipeline_options with --stream" in message


@pytest.mark.slow
def test_a_failed_start_does_not_hinder_the_next(refusal, text, tmp_path):
    """This holds even if it failed after learning the vocabulary and encoding the training text."""
    tsv = f"--tsv_files={text / 'pairs.tsv'}"
    wrong = [
        "--vocabulary_size=350",
        f"--dev_source_files={text}/no",
        f"--dev_target_files={text}/de",
    ]
    flags = ["--problem=parallel_text", tsv, *SIZE, *wrong, f"--workdir={tmp_path}"]
    assert "no: no such file" in refusal("train", *flags)
    assert list(tmp_path.glob("prepared/train-*"))
    _train_parallel_text(text, tmp_path)
    listing = (tmp_path / "vocabulary.vocab").read_text(encoding="utf-8")
    assert listing.count("\n") == 400


def test_a_data_directory_without_the_data(refusal, tmp_path):
    message = refusal(
        *("train", "--problem=multi30k_ende", f"--data_dir={tmp_path}"),
        f"--workdir={tmp_path / 'run'}",
    )
    assert f"--data_dir={tmp_path}: holds no Multi30k" in message
    assert "or leave --data_dir out to download" in message


@pytest.mark.parametrize(
    ("hypotheses", "expected"),
    [("de.short", "299 hypotheses and 300 references"), ("absent", "absent: no such file")],
)
def test_files_to_score(refusal, text, hypotheses, expected):
    given = [f"--hypotheses={text / hypotheses}", f"--references={text / 'de'}"]
    assert expected in refusal("evaluate", "--problem=toy_ende", *given)


# Work directories


@pytest.mark.parametrize("place", ["{}/a_file", "{}/a_file/run", "/proc/run"])
def test_a_work_directory_that_cannot_be(refusal, tmp_path, place):
    (tmp_path / "a_file").write_text("precious")
    workdir = place.format(tmp_path)
    message = refusal("train", f"--workdir={workdir}")
    assert f"{workdir}: cannot be written to" in message
    assert "give another --workdir" in message
    assert (tmp_path / "a_file").read_text() == "precious"


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--problem=toy_ende", "holds a run of parallel_text"),
        ("--variant=big", "holds a run of parallel_text, variant base"),
        ("--d_model=16", "d_model: 16 (the run has 8)"),
    ],
)
@pytest.mark.slow
def test_a_work_directory_of_another_run(refusal, run, flag, expected):
    before = files(run)
    message = refusal("train", flag, f"--workdir={run}")
    assert expected in message
    assert "use another --workdir" in message
    assert files(run) == before


@pytest.mark.parametrize("name", ["evaluate", "translate", "export"])
@pytest.mark.parametrize("missing", ["config.yaml", "checkpoints"])
def test_a_work_directory_without_a_run(refusal, run, name, missing):
    shutil.rmtree(run / "checkpoints")
    if missing == "config.yaml":
        (run / missing).unlink()
    before = files(run.parent)
    flags = [f"--export_dir={run.parent / 'export'}"] if name == "export" else []
    message = refusal(name, f"--workdir={run}", *flags)
    assert missing in message
    assert "train" in message
    assert files(run.parent) == before


def _replace(name, old, new):
    def spoil(run):
        content = (run / name).read_bytes()
        assert old in content
        (run / name).write_bytes(content.replace(old, new))

    return spoil


def _cut(pattern, size):
    def spoil(run):
        for path in run.glob(pattern):
            os.truncate(path, size)

    return spoil


def _write(name, content):
    return lambda run: (run / name).write_bytes(content)


def _pipe(name):
    def spoil(run):
        (run / name).unlink()
        os.mkfifo(run / name)

    return spoil


def _remove(name):
    return lambda run: (run / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_replace("config.yaml", b"d_model", b"d_modl"), "'d_modl'; did you mean 'd_model'?"),
        (_replace("config.yaml", b"d_model: 8", b"d_model: eight"), "d_model: wanted a whole"),
        (_replace("config.yaml", b": parallel", b": paralel"), "did you mean 'parallel_text'?"),
        (_replace("config.yaml", b"\nd_ff: 8\n", b"\n"), "config.yaml: no 'd_ff' in it"),
        (_cut("config.yaml", 0), "config.yaml: no 'problem' in it"),
        (_write("config.yaml", b"a: [\n"), "config.yaml: cannot be read"),
        (_write("config.yaml", b"a: \xe9\n"), "config.yaml: cannot be read"),
        (_write("vocabulary.model", b"?"), "vocabulary.model (damaged"),
        (_cut("vocabulary.model", 3000), "vocabulary.model (damaged"),
        (_remove("vocabulary.model"), "vocabulary.model (No such file"),
        (_cut("checkpoints/*.data*", 1000), "no other checkpoint is good"),
        (_cut("checkpoints/*.index", 50), "no other checkpoint is good"),
    ],
)
@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_a_damaged_run(refusal, run, name, spoil, expected):
    spoil(run)
    before = files(run)
    assert expected in refusal(name, f"--workdir={run}")
    assert files(run) == before


@pytest.mark.parametrize(
    ("make", "reason"),
    [(Path.mkdir, "Is a directory"), (os.mkfifo, "a pipe or a device, not a file")],
)
@pytest.mark.parametrize("name", ["train", "translate"])
def test_something_else_in_the_place_of_a_configuration(refusal, run, name, make, reason):
    (run / "config.yaml").unlink()
    make(run / "config.yaml")
    message = refusal(name, f"--workdir={run}")
    assert f"{run / 'config.yaml'}: cannot be read: {reason}" in message


@pytest.mark.parametrize("content", ["a: &a [*a]\n", f"a: {'[' * 3000}", "null: 1\n", "!!int a"])
def test_yaml_that_no_command_writes(refusal, run, content):
    (run / "config.yaml").write_text(content)
    assert f"{run / 'config.yaml'}: " in refusal("translate", f"--workdir={run}")


@pytest.mark.parametrize("name", ["train", "prepare"])
def test_fewer_updates_than_were_made(refusal, run, name):
    before = files(run)
    message = refusal(name, f"--workdir={run}", "--train_steps=1")
    assert f"--train_steps=1: {run} has made 2 updates; wanted as many or more" in message
    assert files(run) == before


def test_a_trained_run_without_its_checkpoints(refusal, run):
    Workdir(run).add_result("cost", {"seconds": 1})
    shutil.rmtree(run / "checkpoints")
    before = files(run)
    message = refusal("train", f"--workdir={run}")
    assert f"{run / 'checkpoints'}: no checkpoint, but results.json has the cost" in message
    assert files(run) == before


@pytest.mark.parametrize("name", ["translate", "evaluate"])
def test_a_beam_as_wide_as_the_vocabulary(refusal, run, name):
    message = refusal(name, f"--workdir={run}", "--beam_size=400")
    assert "beam_size: wanted less than the vocabulary's 400, got 400" in message


# The commands that read checkpoints, with the flags that they need.
READERS = {
    "train": ["--train_steps=3"],
    "evaluate": ["--average_last=1"],
    "translate": ["--average_last=1"],
    "export": ["--average_last=1", "--export_dir={}/export"],
    "visualize": ["--average_last=1", "--sentence=The house.", "--output={}/a.html"],
}
DAMAGED = [
    (_cut("checkpoints/step-2.data*", 1000), "step-2", "step-1"),
    (_remove("checkpoints/step-2.index"), "step-2", "step-1"),
    (_write("checkpoints/checkpoint", b"\xff"), "checkpoint", "step-2"),
    (_pipe("checkpoints/step-2.index"), "step-2", "step-1"),
    (_pipe("checkpoints/checkpoint"), "checkpoint", "step-2"),
    (_remove("checkpoints/checkpoint"), "checkpoint", "step-2"),
]


def _flags(name, run):
    return [f"--workdir={run}", *(flag.format(run.parent) for flag in READERS[name])]


@pytest.mark.parametrize(("spoil", "bad", "good"), DAMAGED)
@pytest.mark.parametrize(
    "name",
    [name if name == "train" else pytest.param(name, marks=pytest.mark.slow) for name in READERS],
)
def test_a_damaged_newest_checkpoint_is_refused_if_asked(refusal, run, name, spoil, bad, good):
    spoil(run)
    before = files(run / "checkpoints")
    message = refusal(name, *_flags(name, run), "--strict")
    assert f"{run}/checkpoints/{bad}: " in message
    assert "leave --strict out" in message
    assert files(run / "checkpoints") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spoil", "bad", "good"),
    [
        *((name, *case) for name in ("train", "translate") for case in DAMAGED),
        *((name, *DAMAGED[0]) for name in ("evaluate", "export", "visualize")),
    ],
)
def test_the_newest_good_checkpoint_is_used(run, name, capsys, spoil, bad, good):
    spoil(run)
    capsys.readouterr()
    assert commands.call(name, *_flags(name, run), stdin=b"hello\n") == 0
    lines = capsys.readouterr().err.splitlines()
    (warning,) = [line for line in lines if line.startswith("warning: ")]
    assert warning.startswith(f"warning: {run}/checkpoints/{bad}: ")
    assert warning.endswith(f"used instead: {good}")


@pytest.mark.slow
def test_the_newest_good_checkpoint_is_used_by_the_library(run, capsys):
    _cut("checkpoints/step-2.data*", 1000)(run)
    (translation,) = t2t_repro.load(run).translate(["hello"])
    assert isinstance(translation, str)
    assert "step-2: damaged (" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_work_directory_that_vanishes_is_not_made_again(capsys, run, is_replaced, monkeypatch):
    save, moved = Checkpoints.save, run.with_name("moved")

    def save_and_vanish(self, step):
        save(self, step)
        run.rename(moved)
        if is_replaced:
            shutil.copytree(moved, run)

    monkeypatch.setattr(Checkpoints, "save", save_and_vanish)
    assert commands.call("train", "--train_steps=5", f"--workdir={run}") == 2
    *_, message = capsys.readouterr().err.splitlines()
    assert message.startswith(f"error: {run}: deleted, moved or replaced")
    if is_replaced:
        assert not (run / "checkpoints" / "step-4.index").exists()
    else:
        assert not run.exists()
    monkeypatch.undo()
    shutil.rmtree(run, ignore_errors=True)
    moved.rename(run)
    assert commands.call("train", "--train_steps=5", f"--workdir={run}") == 0


@pytest.mark.parametrize("name", ["train", "translate"])
@pytest.mark.slow
def test_checkpoints_of_another_shape(refusal, run, wider, name):
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(wider / "checkpoints", run / "checkpoints")
    before = files(run)
    message = refusal(name, f"--workdir={run}")
    assert "(400, 16)" in message
    assert "(400, 8)" in message
    assert "train in another --workdir" in message
    assert files(run) == before


def test_training_does_not_start_anew_over_checkpoints(refusal, run):
    (run / "config.yaml").unlink()
    before = files(run)
    assert "config.yaml: missing, beside checkpoints" in refusal("train", f"--workdir={run}")
    assert files(run) == before


# Full disks, see tests/pipelines/test_storage.py for the way in which files are written


@pytest.fixture
def full_disk(monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)


@pytest.mark.slow
def test_a_full_disk_does_not_cost_the_scores(capsys, run, full_disk):
    (run / "results.json").write_text('{"dev": {"sacrebleu": 1.5}}')
    before = files(run)
    capsys.readouterr()
    assert commands.call("evaluate", f"--workdir={run}") == 2
    stdout, stderr = capsys.readouterr()
    assert {"sacrebleu", "perplexity"} <= {line.split()[0] for line in stdout.splitlines()}
    message = f"error: {run}/results.json: cannot be written (No space left on device)"
    assert message in stderr.splitlines()[-1]
    assert files(run) == before


@pytest.mark.slow
def test_a_full_disk_does_not_cost_the_old_page(refusal, run, tmp_path, full_disk):
    (page := tmp_path / "page.html").write_text("old")
    message = refusal(
        "visualize", f"--workdir={run}", "--sentence=The house is old.", f"--output={page}"
    )
    assert f"{page}: cannot be written (No space left on device)" in message
    assert page.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run"]


# Exports


def test_an_export_is_not_overwritten(refusal, trained, export):
    before = files(export)
    message = refusal("export", f"--workdir={trained}", f"--export_dir={export}")
    assert "exists; give --export_version=2 or another --export_dir" in message
    assert files(export) == before


@pytest.mark.parametrize(
    "spoil",
    [
        shutil.rmtree,
        _write("1/saved_model.pb", b"garbage"),
        _cut("1/saved_model.pb", 0),
        _cut("1/variables/variables.data*", 500),
        lambda export: shutil.rmtree(export / "1" / "variables"),
    ],
)
def test_an_unusable_export(refusal, export, spoil):
    spoil(export)
    message = refusal("translate", f"--saved_model={export}")
    assert f"error: {export}" in message
    assert "not a usable export (" in message
    assert "python -m t2t_repro.export" in message


def test_an_export_of_something_else(refusal, tmp_path):
    import tensorflow as tf

    module = tf.Module()
    module.double = tf.function(lambda x: {"y": 2 * x}, [tf.TensorSpec([None])])
    tf.saved_model.save(module, str(tmp_path), {"serving_default": module.double})
    assert "not a usable export" in refusal("translate", f"--saved_model={tmp_path}")


# Whole processes: TensorFlow's own lines, warnings and tracebacks would show here


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("train", "--num_layer=3", "did you mean '--num_layers'?"),
        ("translate", "--workdir=absent", "absent: no run there"),
        ("score", "--workdir=absent", "absent: no run there"),
        ("translate", "--saved_model=absent", "absent: not a usable export"),
        pytest.param(
            *("train", "--problem=parallel_text --tsv_files=absent", "absent: no such file"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_child_process(tmp_path, name, flags, expected):
    done = subprocess.run(
        [sys.executable, "-m", f"t2t_repro.{name}", *flags.split()],
        capture_output=True,
        cwd=tmp_path,
        env=commands.environment(),
        input="",
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert expected in _error(done.stdout, done.stderr)
