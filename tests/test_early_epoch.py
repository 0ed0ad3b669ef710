"""The first epoch of a prepared run, made by another process."""

import os
import shutil
import signal
import subprocess
import sys
from itertools import islice

import commands
import numpy as np
import pytest

from pipelines.toy import toy_ende
from pipelines.workers import in_background
from t2t_repro import config as configs
from t2t_repro import early_epoch, experiment, run_text
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


def begin(workdir, **overrides):
    """Begin the first epoch of the run in a work directory."""
    return early_epoch.begin(None, None, workdir, overrides)


def batches_of(workdir, first_epoch=None):
    """Return a run's training batches."""
    config = workdir.config()
    corpus = run_text.corpus_of(config, workdir)
    return run_text.training_batches(config, corpus, first_epoch=first_epoch)


def rows(batching):
    """Return the batches of epoch 0."""
    return [batching.split.padded(*batch) for batch in batching.plan(0)]


def test_it_is_the_epoch_that_would_be_made_here(prepared):
    early = begin(prepared)
    assert early.config == prepared.config()
    own, made = batches_of(prepared).for_epoch(0, 0), early.take()
    assert len(made.split) == len(own.split) == 2 * len(batches_of(prepared).split)
    for mine, other in zip(rows(own), rows(made), strict=True):
        for side, expected in zip(mine, other, strict=True):
            np.testing.assert_array_equal(side, expected)
    assert "buckets" in vars(made)
    assert early.take() is None  # the epoch is not kept


def test_only_epoch_0_is_taken_and_only_while_epochs_are_altered(prepared):
    taken = []
    made = object()
    own = batches_of(prepared, first_epoch=lambda: taken.append(1) or made)
    assert own.for_epoch(1, 0) is not made
    assert own.for_epoch(0, own.altered_updates) is own
    assert not taken
    assert own.for_epoch(0, 0) is made
    none = batches_of(prepared, first_epoch=lambda: None)
    assert len(none.for_epoch(0, 0).split) == 2 * len(own.split)


def test_the_loop_takes_that_of_its_own_configuration(copy):
    config = copy.config()
    early = early_epoch.EarlyEpoch(config, in_background(os.getpid))
    run = experiment.build(config, copy, experiment.tf.distribute.get_strategy())
    loop = experiment.make_loop(run, early=early)
    assert loop.batching.first_epoch == early.take
    other = early_epoch.EarlyEpoch(configs.override(config, {"seed": 2}), early._made)
    assert experiment.make_loop(run, early=other).batching.first_epoch is None


def test_none_is_begun_where_there_is_none(prepared, copy, tmp_path):
    assert begin(Workdir(tmp_path / "new")) is None
    assert begin(prepared, seed=2) is None  # refused later, in one line
    copy.checkpoints.mkdir()
    (copy.checkpoints / "checkpoint").write_text('model_checkpoint_path: "step-7"\n')
    assert begin(copy) is None
    plain = Workdir(tmp_path / "plain")
    plain.path.mkdir()
    plain.save_config(configs.resolve("toy_ende"))
    assert begin(plain) is None


@pytest.mark.parametrize("error", [BlockingIOError, NotImplementedError])
def test_none_is_begun_where_no_process_can_be(prepared, monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(early_epoch, "in_background", refuse)
    assert begin(prepared) is None


def test_a_failure_over_there_is_none_and_says_nothing(copy, capfd):
    (split,) = copy.path.glob("prepared/train-*")
    for file in split.glob("*.npy"):
        file.write_bytes(b"damaged")
    assert begin(copy).take() is None
    shutil.rmtree(split)
    assert begin(copy).take() is None
    assert not list(copy.path.glob("prepared/train-*"))  # nothing was written either
    assert capfd.readouterr().err == ""


def test_that_process_needs_no_tensorflow(prepared):
    code = """
import sys
from pathlib import Path
from t2t_repro import early_epoch
from t2t_repro.workdir import Workdir
workdir = Workdir(Path(sys.argv[1]))
print(len(early_epoch._first_epoch(workdir.config(), workdir.path).split))
print(*{"tensorflow", "keras"} & sys.modules.keys())
"""
    printed = commands.python("-c", code, prepared.path).stdout.decode().splitlines()
    assert printed == [str(2 * len(batches_of(prepared).split)), ""]


def test_a_call_in_the_background_is_made_by_another_process(capfd):
    assert in_background(os.getpid).recv() != os.getpid()
    with pytest.raises(EOFError):
        in_background(int, "no number").recv()
    assert capfd.readouterr().err == ""


def test_that_process_ends_with_this_one(tmp_path):
    """A killed command leaves no process, which would keep its pipes open, and no complaint."""
    code = """
import os, signal, time
from pipelines.workers import in_background
if __name__ == "__main__":
    connection = in_background(time.sleep, 600)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    program = tmp_path / "program.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, env=commands.environment(), timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stderr == b""
