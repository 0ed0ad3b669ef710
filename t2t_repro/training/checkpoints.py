"""Save, restore, and average the last n checkpoints of a work directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipelines.errors import BadInput
from t2t_repro.model.transformer import Transformer


class Checkpoints:
    """The checkpoints of one run: model, optimizer and place in the data after some step.

    Files are <directory>/step-<n>.index and .data-*. TensorFlow writes them under other names,
    renames them, and records the newest last, so a kill leaves the previous checkpoint valid.

    Args:
        directory: <work directory>/checkpoints.
        keep: Number of checkpoints to keep, the last ones.
        model: The model, whose weights are saved by name, with the random states of its dropout.
        optimizer: The optimizer, whose moments and count of updates are saved.
        position: The place in the data.
        seconds: Seconds spent on training.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        model: Transformer,
        optimizer: keras.optimizers.Optimizer,
        position: tf.Variable,
        seconds: tf.Variable,
    ):
        self._weights = _by_name(model)
        self._checkpoint = tf.train.Checkpoint(
            weights=self._weights,
            dropout=[state.value for state in model.non_trainable_variables],
            optimizer=[variable.value for variable in optimizer.variables],
            position=position,
            seconds=seconds,
        )
        if _state(directory) is None and any(directory.glob("step-*.index")):
            raise BadInput(
                f"{directory}: has checkpoints, but not the file 'checkpoint' that names them; "
                'write it, a line like model_checkpoint_path: "step-100", or move them away'
            )
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(directory), max_to_keep=keep, checkpoint_name="step"
        )

    def save(self, step: int) -> None:
        """Write the state after `step` updates; raise BadInput if there is no room for it."""
        try:
            self._manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            directory = self._manager.directory
            raise BadInput(
                f"{directory}: the checkpoint of step {step} could not be written: "
                f"{_first_line(error)} Make room and run the same command again; it resumes from "
                "the last whole checkpoint"
            ) from None

    def restore_latest(self) -> bool:
        """Restore the newest checkpoint; return False if there is none yet.

        Raises:
            BadInput: the checkpoint is damaged or belongs to a model of another shape.
        """
        latest = self._manager.latest_checkpoint
        if latest is None:
            return False
        _restore(self._checkpoint, latest, self._weights)
        return True


def average_last(model: Transformer, directory: Path, last: int) -> tuple[str, ...]:
    """Set the model's weights to the mean of the last `last` checkpoints (section 6.1).

    Returns:
        The names of the averaged checkpoints, such as "step-500"; fewer than `last` if the run has
        fewer.

    Raises:
        BadInput: there is no checkpoint, or one is damaged or of another shape.
    """
    state = _state(directory)
    if state is None or not state.all_model_checkpoint_paths:
        raise BadInput(
            f"{directory}: no checkpoint in it yet; train first, with the same --workdir"
        )
    paths = state.all_model_checkpoint_paths[-last:]
    weights = _by_name(model)
    checkpoint = tf.train.Checkpoint(weights=weights)
    mean = [np.zeros(variable.shape, np.float64) for variable in model.trainable_variables]
    for path in paths:
        _restore(checkpoint, path, weights)
        for total, variable in zip(mean, model.trainable_variables, strict=True):
            total += variable.numpy() / len(paths)
    for total, variable in zip(mean, model.trainable_variables, strict=True):
        variable.assign(total)
    return tuple(Path(path).name for path in paths)


def last_step(directory: Path) -> int:
    """Return the step of the newest checkpoint, or 0 if there is none."""
    path = tf.train.latest_checkpoint(str(directory))
    return int(path.rpartition("-")[2]) if path else 0


def _by_name(model: Transformer) -> dict[str, tf.Variable]:
    """Index trainable weights by path, as "transformer/encoder_0/self_attention/query/kernel"."""
    named = {weight.path: weight.value for weight in model.trainable_variables}
    assert len(named) == len(model.trainable_variables), "two weights of one name"
    return named


def _state(directory: Path) -> Any:
    """Read the list of checkpoints in <directory>/checkpoint; None if there is no such file."""
    try:
        return tf.train.get_checkpoint_state(str(directory))
    except (tf.errors.OpError, ValueError) as error:
        raise BadInput(
            f"{directory / 'checkpoint'}: damaged ({_first_line(error)}); it names the checkpoints "
            'in lines model_checkpoint_path: "step-100": write it anew'
        ) from None


def _restore(checkpoint: tf.train.Checkpoint, path: str, weights: dict[str, tf.Variable]) -> None:
    """Restore a checkpoint; raise BadInput if it is damaged or has other weights."""
    try:
        status = checkpoint.restore(path)
        status.assert_existing_objects_matched()
        status.expect_partial()
        names = [name for name, _ in tf.train.list_variables(path) if name.startswith("weights/")]
        if len(names) != len(weights):
            raise ValueError(f"it has {len(names)} weights, the model {len(weights)}.")
    # IndexError: how TensorFlow's reader reports a truncated file.
    except (tf.errors.OpError, ValueError, IndexError, AssertionError) as error:
        raise BadInput(
            f"{path}: cannot be restored: {_first_line(error)} If its files are damaged, delete "
            f"them and name an earlier one in {Path(path).parent / 'checkpoint'}; if the model's "
            "shape was changed, train in another --workdir"
        ) from None


def _first_line(error: Exception) -> str:
    lines: Sequence[str] = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."
