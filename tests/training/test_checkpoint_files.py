"""Which checkpoints count, from any files and any list; without TensorFlow."""

import os

import numpy as np
import pytest

from t2t_repro.training.checkpoint_files import CheckpointFiles


def files_of(directory, *steps):
    files = CheckpointFiles(directory)
    for step in steps:
        for suffix in (".index", ".data-00000-of-00001"):
            files.path(step).with_suffix(suffix).write_text("content")
    return files


@pytest.mark.parametrize(
    ("content", "steps"),
    [
        ('model_checkpoint_path: "step-20"\n', (10, 20)),
        ('model_checkpoint_path: "/moved/run/step-20"\r\n', (10, 20)),
        ("  model_checkpoint_path: 'step-25'", (10, 20, 25)),
        ('model_checkpoint_path: "step-30"\nall_model_checkpoint_paths: "step-30"\n', (30,)),
        ('all_model_checkpoint_paths: "step-30"\nmodel_checkpoint_path: "step-20"\n', (20,)),
        ("", (10, 20, 30)),
        ("all_model_checkpoint_paths: 'step-10'\n", (10, 20, 30)),
        ('model_checkpoint_path: "../step-20/other-7"\n', (10, 20, 30)),
        (f'model_checkpoint_path: "step-{"9" * 5000}"\n', (10, 20, 30)),
        ('model_checkpoint_path: "step-20', (10, 20, 30)),
    ],
)
def test_the_list_says_what_counts(tmp_path, content, steps):
    files = files_of(tmp_path, 10, 20, 30)
    files.list_file.write_text(content, newline="")
    assert files.listing().steps == steps


def test_what_is_recorded_is_listed(tmp_path):
    files = files_of(tmp_path, 10, 20, 30)
    files.record([10, 30])
    assert (files.listing().steps, files.listing().complaint) == ((10, 30), "")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_no_list(tmp_path, make):
    files = files_of(tmp_path, 10, 20)
    make(files.list_file)
    assert files.listing().steps == (10, 20)
    assert files.listing().complaint in ("Is a directory", "a pipe or a device, not a file")


def test_a_directory_that_is_gone_is_not_made_again_for_a_list(tmp_path):
    """A disk may be unmounted after a checkpoint was written to it, and before the list."""
    with pytest.raises(FileNotFoundError):
        CheckpointFiles(tmp_path / "gone").record([10])
    assert not (tmp_path / "gone").exists()


def test_random_lists_do_no_harm(tmp_path):
    """Changed bytes never name a checkpoint of another step as the only one."""
    files = files_of(tmp_path, 10, 20, 30)
    files.record([10, 20, 30])
    good, rng = files.list_file.read_bytes(), np.random.default_rng(1)
    for _ in range(100):
        content = bytearray(good)
        content[rng.integers(len(good))] = rng.integers(256)
        files.list_file.write_bytes(content[: rng.integers(len(good) + 1)] + rng.bytes(5))
        listing = files.listing()
        assert {10, 20, 30} & {*listing.steps}
    files.list_file.write_bytes(b"\n" * 10**6 + b"model_checkpoint_path: " + b"/" * 10**6)
    assert files.listing().complaint == "damaged"


def test_other_names_are_no_checkpoints(tmp_path):
    files = files_of(tmp_path, 10)
    for name in ("step-07.index", "step-x.index", "step-8.index.old", "damaged-step-9.index"):
        (tmp_path / name).write_text("content")
    files.path(20).with_suffix(".index").touch()  # a killed save's
    assert files.listing().steps == (10,)
    before = {path.name for path in tmp_path.iterdir()} - {"step-20.index"}
    files.clear_unfinished()
    assert {path.name for path in tmp_path.iterdir()} == before


def test_no_directory_holds_no_checkpoint(tmp_path):
    files = CheckpointFiles(tmp_path / "absent")
    assert (files.listing().steps, files.listing().complaint) == ((), "")
    files.clear_unfinished()
    assert not [*tmp_path.iterdir()]


def test_the_last_step_is_that_of_a_checkpoint_with_files(tmp_path):
    files = files_of(tmp_path, 10, 20)
    files.record([10, 20])
    files.path(20).with_suffix(".index").unlink()
    assert files.last_step == 10


def test_a_checkpoint_is_removed_with_what_a_failed_save_has_left_of_it(tmp_path):
    files = files_of(tmp_path, 10, 20)
    (tmp_path / "step-20_temp").mkdir()
    files.remove(20)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("step-10.index", "step-10.data-00000-of-00001")
    }
