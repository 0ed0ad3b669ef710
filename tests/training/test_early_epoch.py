"""The first epoch of a prepared run, made by another process."""

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path

import commands
import numpy as np
import pytest

from pipelines import workers
from pipelines.toy import toy_ende
from t2t_repro import config as configs
from t2t_repro import experiment, run_text
from t2t_repro.training import early_epoch
from t2t_repro.workdir import Workdir

SETTINGS = {"bpe_dropout": 0.2, "auxiliary_tasks": True, "tokens_per_batch": 600}
SETTINGS |= {"vocabulary_size": 400, "num_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A work directory that `prepare` has filled with 500 pairs, which are to be altered."""
    folder = tmp_path_factory.mktemp("run")
    pairs = list(islice(toy_ende.examples("train"), 500))
    for side in ("source", "target"):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / side).write_text(text, encoding="utf-8")
    files = {f"{side}_files": [str(folder / side)] for side in ("source", "target")}
    config = configs.resolve("parallel_text", overrides=SETTINGS | files)
    experiment.prepare(config, Workdir(folder / "run"))
    return Workdir(folder / "run")


@pytest.fixture
def copy(prepared, tmp_path):
    """A copy of it, to be changed."""
    shutil.copytree(prepared.path, tmp_path / "run")
    return Workdir(tmp_path / "run")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """On one core no epoch is made early."""
    monkeypatch.setattr(early_epoch, "cores", lambda: 2)


def taken(workdir, **overrides):
    """Return the first epoch of the run in a work directory as another process makes it."""
    with early_epoch.begun(None, None, workdir, overrides) as early:
        return early and early.take(workdir.config())


def is_begun(workdir, **overrides):
    """Return whether there is a process that makes the first epoch."""
    with early_epoch.begun(None, None, workdir, overrides) as early:
        return early is not None


def batches_of(workdir, first_epoch=None):
    """Return a run's training batches."""
    config = workdir.config()
    corpus = run_text.corpus_of(config, workdir)
    return run_text.training_batches(config, corpus, first_epoch=first_epoch)


def rows(batching):
    """Return the batches of epoch 0."""
    return [batching.split.padded(*batch) for batch in batching.plan(0)]


def test_it_is_the_epoch_that_would_be_made_here(prepared):
    own, made = batches_of(prepared).for_epoch(0, 0), taken(prepared)
    assert len(made.split) == len(own.split) == 2 * len(batches_of(prepared).split)
    for mine, other in zip(rows(own), rows(made), strict=True):
        for side, expected in zip(mine, other, strict=True):
            np.testing.assert_array_equal(side, expected)
    assert "buckets" in vars(made)


def test_only_epoch_0_is_taken_and_only_while_epochs_are_altered(prepared):
    asked = []
    made = object()
    own = batches_of(prepared, first_epoch=lambda: asked.append(1) or made)
    assert own.for_epoch(1, 0) is not made
    assert own.for_epoch(0, own.altered_updates) is own
    assert not asked
    assert own.for_epoch(0, 0) is made
    none = batches_of(prepared, first_epoch=lambda: None)
    assert len(none.for_epoch(0, 0).split) == 2 * len(own.split)


def test_train_takes_it(copy, monkeypatch):
    epochs = []
    take = early_epoch.EarlyEpoch.take
    monkeypatch.setattr(
        early_epoch.EarlyEpoch, "take", lambda self, config: epochs.append(take(self, config))
    )
    flags = ["--train_steps=1", "--eval_sentences=0", "--log_steps=1"]
    assert commands.call("train", f"--workdir={copy.path}", *flags) == 0
    assert [len(epoch.split) for epoch in epochs] == [2 * batches_of(copy).pairs]


def test_none_is_begun_if_no_update_has_altered_text(copy):
    assert is_begun(copy)
    text = copy.config_file.read_text(encoding="utf-8")
    assert "altered_share: null" in text
    never = text.replace("altered_share: null", "altered_share: 0.0")
    copy.config_file.write_text(never, encoding="utf-8")
    assert not is_begun(copy)


def test_that_of_another_configuration_is_not_taken(prepared):
    config = prepared.config()
    with early_epoch.begun(None, None, prepared, {}) as early:
        assert early.take(configs.override(config, {"train_steps": 2})) is None
        assert early.take(config)


def test_none_is_begun_where_there_is_none(prepared, copy, tmp_path, monkeypatch):
    assert is_begun(prepared)
    assert not is_begun(Workdir(tmp_path / "new"))
    assert not is_begun(prepared, seed=2)  # refused later, in one line
    assert not is_begun(prepared, train_steps=1, cooldown_share=1.0)
    copy.checkpoints.mkdir()
    (copy.checkpoints / "checkpoint").write_text('model_checkpoint_path: "step-7"\n')
    assert not is_begun(copy)
    plain = Workdir(tmp_path / "plain")
    plain.path.mkdir()
    plain.save_config(configs.resolve("toy_ende"))
    assert not is_begun(plain)
    monkeypatch.setattr(early_epoch, "cores", lambda: 1)
    assert not is_begun(prepared)


def test_none_is_begun_where_no_process_can_be(prepared, monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert not is_begun(prepared)


def test_a_large_epoch_is_left_to_the_run_itself(prepared, monkeypatch):
    config = prepared.config()
    assert early_epoch.first_epoch(config, prepared.path)
    monkeypatch.setattr(early_epoch, "_MOST_PAIRS", batches_of(prepared).pairs - 1)
    assert early_epoch.first_epoch(config, prepared.path) is None


def test_a_damaged_or_missing_file_is_none_and_nothing_is_written(copy, capfd):
    (split,) = copy.path.glob("prepared/train-*")
    (links,) = copy.path.glob("prepared/links-*")
    (ids,) = split.glob("*ids.npy")
    content, kept = ids.read_bytes(), links.read_bytes()
    ids.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    files = [(path, path.stat().st_mtime_ns) for path in sorted(copy.path.rglob("*"))]
    assert taken(copy) is None
    assert [(path, path.stat().st_mtime_ns) for path in sorted(copy.path.rglob("*"))] == files
    ids.write_bytes(content)
    assert taken(copy)
    links.unlink()
    assert taken(copy) is None
    assert not links.exists()
    links.write_bytes(kept)
    shutil.rmtree(split)
    assert taken(copy) is None
    assert not split.exists()
    assert capfd.readouterr().err == ""


def test_that_process_has_the_code_of_this_one(prepared, tmp_path, monkeypatch):
    """Whatever lies in the current directory."""
    package = tmp_path / "t2t_repro" / "training"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "early_epoch.py").write_text("print('another program')")
    monkeypatch.chdir(tmp_path)
    assert len(taken(prepared).split) == 2 * batches_of(prepared).pairs


def test_that_process_needs_no_tensorflow(prepared):
    code = """
import sys
from pathlib import Path
from t2t_repro.training import early_epoch
from t2t_repro.workdir import Workdir
workdir = Workdir(Path(sys.argv[1]))
print(len(early_epoch.first_epoch(workdir.config(), workdir.path).split))
print(*{"tensorflow", "keras"} & sys.modules.keys())
"""
    printed = commands.python("-c", code, prepared.path).stdout.decode().splitlines()
    assert printed == [str(2 * batches_of(prepared).pairs), ""]


@pytest.mark.skipif(workers.cores() < 2, reason="with one core no other process draws it")
@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGINT, 0.0), (signal.SIGKILL, 0.2)])
def test_an_interrupted_train_leaves_no_process_and_no_complaint(copy, number, seconds):
    train = subprocess.Popen(
        [sys.executable, "-m", "t2t_repro.train", f"--workdir={copy.path}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=commands.environment(),
        process_group=0,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # as in a terminal
        text=True,
    )
    try:
        while not (started := children(train.pid)):
            assert train.poll() is None
            time.sleep(0.001)
        time.sleep(seconds)
        os.killpg(train.pid, number)
        _, said = train.communicate(timeout=60)
    finally:
        train.kill()
    assert said == ("interrupted\n" if number == signal.SIGINT else "")
    until = time.monotonic() + 60
    while any(map(runs, started)):
        assert time.monotonic() < until
        time.sleep(0.05)


def runs(process):
    """Return whether a process runs; one that has ended may still be listed, as a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(process):
    """Return the processes that a process has started."""
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()
