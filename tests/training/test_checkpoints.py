"""Saving, restoring and averaging checkpoints, and the errors for damaged ones."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from pipelines.errors import BadInput
from t2t_repro.config import Train
from t2t_repro.training.checkpoints import Checkpoints, average_last
from t2t_repro.training.optimizer import make_optimizer


@pytest.fixture(scope="module")
def model(build):
    return build()


def fill(model, value):
    """Set every weight to a multiple of `value` of its own, so that a swap of two weights shows."""
    for index, variable in enumerate(model.trainable_variables):
        variable.assign(np.full(variable.shape, value * (1 + index), np.float32))


def held(model):
    """Return the value that `fill` was called with."""
    values = {
        float(value) / (1 + index)
        for index, variable in enumerate(model.trainable_variables)
        for value in np.unique(variable.numpy())
    }
    assert max(values) == pytest.approx(min(values))
    return max(values)


def checkpoints_of(model, directory, keep=20, position=None):
    optimizer = make_optimizer(Train(), model.config.d_model)
    optimizer.build(model.trainable_variables)
    if position is None:
        position = tf.Variable([0, 0], dtype=tf.int64)
    return Checkpoints(directory, keep, model, optimizer, position, tf.Variable(0.0, tf.float64))


@pytest.fixture
def saved(model, tmp_path):
    """Return a directory of checkpoints of steps 10, 20, 30 and 40 with weights 1, 2, 4 and 8."""
    checkpoints = checkpoints_of(model, tmp_path / "run")
    for step, value in ((10, 1), (20, 2), (30, 4), (40, 8)):
        fill(model, value)
        checkpoints.save(step)
    fill(model, 0)
    return tmp_path / "run"


# Averaging


@pytest.mark.parametrize(("last", "mean"), [(1, 8), (2, (4 + 8) / 2), (3, (2 + 4 + 8) / 3)])
def test_average_is_the_mean_of_the_last_n(model, saved, last, mean):
    assert len(average_last(model, saved, last)) == last
    assert held(model) == pytest.approx(mean)


def test_fewer_than_n_are_all_averaged(model, saved):
    assert len(average_last(model, saved, 20)) == 4
    assert held(model) == pytest.approx((1 + 2 + 4 + 8) / 4)


def test_run_that_was_moved_is_averaged(model, saved):
    shutil.move(saved, saved.with_name("moved"))
    average_last(model, saved.with_name("moved"), 2)
    assert held(model) == pytest.approx(6)


def test_only_the_last_are_kept(model, tmp_path):
    checkpoints = checkpoints_of(model, tmp_path, keep=2)
    for step in (10, 20, 30):
        fill(model, step)
        checkpoints.save(step)
    assert {path.name for path in tmp_path.glob("*.index")} == {"step-20.index", "step-30.index"}
    assert len(average_last(model, tmp_path, 20)) == 2
    assert held(model) == pytest.approx(25)


def test_keeping_goes_on_after_a_restart(model, tmp_path):
    for step in (10, 20, 30):
        checkpoints = checkpoints_of(model, tmp_path, keep=2)
        checkpoints.restore_latest()
        checkpoints.save(step)
    assert {path.name for path in tmp_path.glob("*.index")} == {"step-20.index", "step-30.index"}


# Restoring


def test_newest_is_restored_with_its_place_in_the_data(model, saved):
    position = tf.Variable([3, 7], dtype=tf.int64)
    fill(model, 16)
    checkpoints_of(model, saved, position=position).save(50)
    fill(model, 0)
    position.assign([0, 0])
    assert checkpoints_of(model, saved, position=position).restore_latest()
    assert held(model) == 16
    assert position.numpy().tolist() == [3, 7]


def test_nothing_to_restore(model, tmp_path):
    fill(model, 5)
    assert not checkpoints_of(model, tmp_path / "none").restore_latest()
    assert held(model) == 5


# Damage


def refusal(function, *arguments):
    with pytest.raises(BadInput) as raised:
        function(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_no_checkpoint_to_average(model, tmp_path):
    assert f"{tmp_path}: no checkpoint in it yet" in refusal(average_last, model, tmp_path, 5)


@pytest.mark.parametrize("change", [{"d_model": 14}, {"num_layers": 3}, {"embedding_rows": 24}])
def test_model_of_another_shape(build, saved, change):
    other = build(**change)
    assert "step-40: cannot be restored" in refusal(average_last, other, saved, 1)
    assert "train in another --workdir" in refusal(checkpoints_of(other, saved).restore_latest)


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [halve, os.remove])
@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
def test_damaged_file_is_named(model, saved, damage, part):
    damage(saved / f"step-30.{part}")
    assert f"{saved / 'step-30'}: cannot be restored" in refusal(average_last, model, saved, 2)
    assert len(average_last(model, saved, 1)) == 1


def test_damaged_newest_is_not_trained_on(model, saved):
    halve(saved / "step-40.data-00000-of-00001")
    message = refusal(checkpoints_of(model, saved).restore_latest)
    assert f"{saved / 'step-40'}: cannot be restored" in message


def test_directory_that_cannot_be_written(model, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    message = refusal(checkpoints_of(model, tmp_path / "file" / "checkpoints").save, 10)
    assert "the checkpoint of step 10 could not be written" in message


def test_failed_save_leaves_the_checkpoint_before_in_force(model, saved, monkeypatch):
    checkpoints = checkpoints_of(model, saved)

    def disk_full(*arguments, **options):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.train.CheckpointManager, "save", disk_full)
    assert "No space left on device. Make room" in refusal(checkpoints.save, 50)
    assert len(average_last(model, saved, 1)) == 1
    assert held(model) == 8
