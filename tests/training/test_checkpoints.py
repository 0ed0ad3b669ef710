"""Saving, restoring and averaging checkpoints, and the errors for damaged ones."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines.errors import BadInput
from t2t_repro.config import Train
from t2t_repro.training.checkpoint_files import CheckpointFiles
from t2t_repro.training.checkpoints import (
    Checkpoints,
    average_last,
    restore_best,
    restore_step,
)
from t2t_repro.training.optimizer import make_optimizer
from t2t_repro.training.score_history import ScoreHistory


@pytest.fixture(scope="module")
def model(build):
    return build(num_layers=1)


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


@pytest.fixture(scope="module")
def four(model, tmp_path_factory):
    """Return a directory of checkpoints of steps 10, 20, 30 and 40 with weights 1, 2, 4 and 8."""
    directory = tmp_path_factory.mktemp("four")
    checkpoints = checkpoints_of(model, directory)
    for step, value in ((10, 1), (20, 2), (30, 4), (40, 8)):
        fill(model, value)
        checkpoints.save(step)
    return directory


@pytest.fixture
def saved(model, four, tmp_path):
    """Return a copy of `four` that a test may change; the model's weights are 0."""
    fill(model, 0)
    return Path(shutil.copytree(four, tmp_path / "run"))


# Averaging


@pytest.mark.parametrize(("last", "mean"), [(1, 8), (2, (4 + 8) / 2), (3, (2 + 4 + 8) / 3)])
def test_average_is_the_mean_of_the_last_n(model, saved, last, mean):
    assert len(average_last(model, saved, last)) == last
    assert held(model) == pytest.approx(mean)


def test_fewer_than_n_are_all_averaged(model, saved):
    assert len(average_last(model, saved, 20)) == 4
    assert held(model) == pytest.approx((1 + 2 + 4 + 8) / 4)


@pytest.mark.parametrize(
    ("since", "mean"),
    [(0, 15 / 4), (10, 14 / 3), (25, (4 + 8) / 2), (39, 8), (40, 15 / 4), (99, 15 / 4)],
)
def test_checkpoints_before_the_cooldown_are_not_averaged_with_later_ones(
    model, saved, since, mean
):
    """If the last one is not later either, the run has not reached its cool-down."""
    average_last(model, saved, 20, since=since)
    assert held(model) == pytest.approx(mean)


def test_the_best_are_kept_beside_the_last_and_not_averaged_with_them(model, saved):
    checkpoints = checkpoints_of(model, saved, keep=2)
    checkpoints.restore_latest()
    checkpoints.best = [10]
    fill(model, 16)
    checkpoints.save(50)
    assert checkpoints.steps == (10, 40, 50)
    assert average_last(model, saved, 5, keep=2) == ("step-40", "step-50")
    assert held(model) == pytest.approx((8 + 16) / 2)
    for step in (40, 50):
        os.truncate(saved / f"step-{step}.data-00000-of-00001", 100)
    assert average_last(model, saved, 5, keep=2) == ("step-10",)


def test_one_checkpoint_by_its_step_or_its_score(model, saved, capsys):
    scores = ScoreHistory(saved)
    assert "none of its checkpoints has a dev score" in refusal(restore_best, model, saved)
    for step, value in ((5, 9.0), (10, 4.0), (20, 7.0), (30, 8.0)):
        scores.add(step, {"sacrebleu": value})
    assert restore_best(model, saved) == ("step-30",)
    assert restore_step(model, saved, 10) == ("step-10",)
    assert held(model) == pytest.approx(1)
    assert "no checkpoint of step 5; there are 10, 20, 30" in refusal(restore_step, model, saved, 5)
    os.truncate(saved / "step-30.data-00000-of-00001", 100)
    message = refusal(restore_step, model, saved, 30)
    assert "step-30: damaged (" in message
    assert message.endswith("copy it back from elsewhere, or give another --checkpoint")
    assert "step-30: damaged (" in refusal(restore_best, model, saved, True)
    assert restore_best(model, saved) == ("step-20",)
    assert capsys.readouterr().err.endswith("used instead: step-20\n")


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
    assert checkpoints_of(model, saved, position=position).restore_latest() == []
    assert held(model) == 16
    assert position.numpy().tolist() == [3, 7]


def test_nothing_to_restore(model, tmp_path):
    fill(model, 5)
    assert checkpoints_of(model, tmp_path / "none").restore_latest() == []
    assert held(model) == 5


# Damage


def refusal(function, *arguments):
    with pytest.raises(BadInput) as raised:
        function(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_no_checkpoint_to_average(model, tmp_path):
    assert f"{tmp_path}: no checkpoint in it yet" in refusal(average_last, model, tmp_path, 5)


@pytest.mark.parametrize("change", [{"d_model": 14}, {"num_layers": 2}, {"embedding_rows": 24}])
def test_model_of_another_shape(build, saved, change):
    other = build(**{"num_layers": 1} | change)
    assert "step-40: cannot be restored" in refusal(average_last, other, saved, 1)
    told = refusal(checkpoints_of(other, saved).restore_latest)
    assert "train in another --workdir" in told
    assert ("weights, the model" in told) == ("num_layers" in change)


def test_another_shape_is_not_passed_over(build, model, saved):
    """The checkpoint before it may be of this shape, but the run has been changed since."""
    checkpoints_of(build(num_layers=1, d_model=14), saved).save(50)
    assert "step-50: cannot be restored" in refusal(average_last, model, saved, 1)
    assert "step-50: cannot be restored" in refusal(checkpoints_of(model, saved).restore_latest)


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) * 9 // 10] ^= 1  # among the weights, which come last
    path.write_bytes(content)


def empty(path):
    os.truncate(path, 0)


parts = pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
damages = pytest.mark.parametrize("damage", [halve, flip, empty, os.remove])


@damages
@parts
def test_average_passes_over_a_damaged_one(model, saved, damage, part, capsys):
    damage(saved / f"step-30.{part}")
    assert average_last(model, saved, 2) == ("step-20", "step-40")
    assert held(model) == pytest.approx((2 + 8) / 2)
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {saved / 'step-30'}: damaged (")
    assert warning.endswith("used instead: step-20 to step-40")
    assert "{{" not in warning  # TensorFlow's name of the operation


def test_a_damaged_one_that_is_not_needed_is_not_read(model, saved, capsys):
    halve(saved / "step-30.index")
    assert average_last(model, saved, 1) == ("step-40",)
    assert capsys.readouterr().err == ""


@damages
@parts
def test_training_goes_on_from_the_newest_good_one(model, saved, damage, part):
    for step in (40, 30):
        damage(saved / f"step-{step}.{part}")
    warnings = checkpoints_of(model, saved).restore_latest()
    assert held(model) == 2
    starts = [f"warning: {saved / name}: damaged (" for name in ("step-40", "step-30")]
    for warning, start in zip(warnings, starts, strict=True):
        assert warning.startswith(start)
        assert warning.endswith("used instead: step-20")


@damages
@parts
def test_none_is_good(model, saved, damage, part):
    for path in saved.glob(f"*.{part}"):
        damage(path)
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    for message in (
        refusal(checkpoints_of(model, saved).restore_latest),
        refusal(average_last, model, saved, 2),
    ):
        assert f"{saved / 'step-40'}: damaged (" in message
        assert "no other checkpoint is good; copy one back" in message
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


@parts
def test_strict_refuses_a_damaged_one(model, saved, part):
    halve(saved / f"step-40.{part}")
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    for message in (
        refusal(checkpoints_of(model, saved).restore_latest, True),
        refusal(average_last, model, saved, 2, True),
    ):
        assert f"{saved / 'step-40'}: damaged (" in message
        assert "or leave --strict out" in message
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(saved / f"step-30.{suffix}", saved / f"step-40.{suffix}")
    assert checkpoints_of(model, saved).restore_latest(True) == []


def test_a_damaged_one_is_kept_aside_and_costs_no_good_one(model, saved):
    flip(saved / "step-40.data-00000-of-00001")
    flipped = (saved / "step-40.data-00000-of-00001").read_bytes()
    checkpoints = checkpoints_of(model, saved, keep=3)
    assert len(checkpoints.restore_latest()) == 1
    assert (saved / "step-40.index").exists()  # other workers may not have read it yet
    checkpoints.tidy()
    assert not [*saved.glob("step-40.*")]
    for step in (32, 34):
        checkpoints.save(step)
    assert {path.name for path in saved.glob("step-*.index")} == {
        *("step-30.index", "step-32.index", "step-34.index")
    }
    assert (saved / "damaged-step-40.data-00000-of-00001").read_bytes() == flipped
    assert checkpoints_of(model, saved).restore_latest(strict=True) == []
    checkpoints.save(40)  # a new one of that step is one like any other
    assert average_last(model, saved, 2, strict=True) == ("step-34", "step-40")


def test_what_a_killed_save_has_left_is_cleared(model, saved):
    (saved / "step-50_temp").mkdir()
    (saved / "step-50_temp" / "part-00000-of-00001.index").write_text("begun")
    for name in ("step-50.data-00000-of-00001", "step-60.index", "checkpoint.tmp1234"):
        (saved / name).touch()
    before = {path.name for path in saved.glob("step-[1-4]0.*")}
    checkpoints = checkpoints_of(model, saved)
    assert checkpoints.restore_latest(strict=True) == []
    checkpoints.tidy()
    assert {path.name for path in saved.iterdir()} == before | {"checkpoint"}


def test_a_killed_deletion_leaves_no_checkpoint_without_the_places_of_its_workers(
    saved, monkeypatch
):
    for suffix in ("index", "data-00000-of-00001"):
        (saved / f"step-10.worker-1.{suffix}").touch()
    deleted = []
    monkeypatch.setattr(Path, "unlink", lambda path, **_: deleted.append(path.name))
    CheckpointFiles(saved).remove(10)
    assert deleted[0] == "step-10.index"
    assert {path.name for path in saved.glob("step-10.*")} <= {*deleted}


def test_list_as_tensorflow_reads_it(model, saved):
    assert tf.train.latest_checkpoint(str(saved)) == str(saved / "step-40")
    paths = tf.train.get_checkpoint_state(str(saved)).all_model_checkpoint_paths
    assert list(paths) == [str(saved / f"step-{step}") for step in (10, 20, 30, 40)]


def test_checkpoints_of_tensorflows_manager_are_read(model, tmp_path):
    """Runs of earlier versions have them."""
    checkpoint = checkpoints_of(model, tmp_path)._checkpoint
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), 5, checkpoint_name="step")
    for step in (10, 20):
        fill(model, step)
        manager.save(checkpoint_number=step)
    fill(model, 0)
    assert checkpoints_of(model, tmp_path).restore_latest(strict=True) == []
    assert held(model) == 20
    assert average_last(model, tmp_path, 2, strict=True) == ("step-10", "step-20")


NAMES_OTHERS = b'model_checkpoint_path: "step-9"\nall_model_checkpoint_paths: "step-9"\n'


@pytest.mark.parametrize("content", [None, b"", b"\xff", NAMES_OTHERS])
def test_without_a_list_the_files_names_say_what_there_is(model, saved, content):
    if content is None:
        (saved / "checkpoint").unlink()
    else:
        (saved / "checkpoint").write_bytes(content)
    assert f"{saved / 'checkpoint'}: " in refusal(average_last, model, saved, 2, True)
    assert average_last(model, saved, 2) == ("step-30", "step-40")
    checkpoints = checkpoints_of(model, saved)
    (warning,) = checkpoints.restore_latest()
    assert warning.startswith(f"warning: {saved / 'checkpoint'}: ")
    assert warning.endswith("used instead: step-40")
    checkpoints.tidy()
    assert checkpoints_of(model, saved).restore_latest(strict=True) == []


def test_a_newest_one_without_files_is_named(model, saved):
    for path in saved.glob("step-40.*"):
        path.unlink()
    (warning,) = checkpoints_of(model, saved).restore_latest()
    assert warning.startswith(f"warning: {saved / 'step-40'}: damaged (")
    assert warning.endswith("used instead: step-30")


def test_a_list_without_any_checkpoint(model, tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "step-90"\n')
    assert "step-90: damaged (" in refusal(checkpoints_of(model, tmp_path).restore_latest)
    assert "step-90: damaged (" in refusal(average_last, model, tmp_path, 1)


def test_a_list_edited_by_hand_goes_back_for_training_and_for_the_rest(model, saved):
    (saved / "checkpoint").write_text('model_checkpoint_path: "step-20"\n')
    assert average_last(model, saved, 20) == ("step-10", "step-20")
    checkpoints = checkpoints_of(model, saved)
    assert checkpoints.restore_latest() == []
    assert held(model) == 2
    checkpoints.tidy()
    checkpoints.save(25)
    assert average_last(model, saved, 20) == ("step-10", "step-20", "step-25")
    assert (saved / "step-40.index").exists()


def test_directory_that_cannot_be_written(model, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    message = refusal(checkpoints_of(model, tmp_path / "file" / "checkpoints").save, 10)
    assert "the checkpoint of step 10 could not be written" in message


def test_failed_save_leaves_the_checkpoint_before_in_force(model, saved, monkeypatch):
    checkpoints = checkpoints_of(model, saved)

    def disk_full(*arguments, **options):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(CheckpointFiles, "record", disk_full)
    assert "No space left on device. Make room" in refusal(checkpoints.save, 50)
    assert not [*saved.glob("step-50*")]
    assert len(average_last(model, saved, 1)) == 1
    assert held(model) == 8
