"""Save and restore the checkpoints of a work directory, and average the last n.

Damaged ones are passed over: see `checkpoint_search`.
"""

import contextlib
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from pipelines.errors import BadInput, first_line
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.checkpoint_files import CheckpointFiles
from t2t_repro.training.checkpoint_search import Search, weights_by_name
from t2t_repro.training.score_history import ScoreHistory
from t2t_repro.training.stream_places import StreamPlaces


class Checkpoints:
    """The checkpoints of one run: model, optimizer and place in the data after some step.

    TensorFlow writes the files under other names and renames them, and the list of checkpoints is
    written last, so a kill leaves the previous checkpoint valid; see `CheckpointFiles`.

    Args:
        directory: <work directory>/checkpoints.
        keep: Number of checkpoints to keep, the last ones.
        model: The model, whose weights are saved by name, with the random states of its dropout.
        optimizer: The optimizer, whose moments and count of updates are saved.
        position: The place in the data.
        seconds: Seconds spent on training.
        averages: The moving averages of weights by path. A checkpoint has them in the place of the
            model's weights, so that every reader uses them, and the learning weights beside them.
        stream: The place in a stream of data, None if `position` is all there is.
        worker: The number of this worker, 0 for the chief.
        workers: The number of workers; each has a place of its own in a stream.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        model: Transformer,
        optimizer: keras.optimizers.Optimizer,
        position: tf.Variable,
        seconds: tf.Variable,
        averages: Mapping[str, tf.Variable] = types.MappingProxyType({}),
        stream: tf.Module | None = None,
        worker: int = 0,
        workers: int = 1,
    ):
        weights = weights_by_name(model)
        self._weights = {**weights, **averages}
        learning = {"learning": {path: weights[path] for path in averages}} if averages else {}
        saved = {id(average) for average in averages.values()}
        state = dict(
            weights=self._weights,
            dropout=[state.value for state in model.random_states],
            optimizer=[each.value for each in optimizer.variables if id(each.value) not in saved],
            seconds=seconds,
            **learning,
        )
        place = {"position": position} | ({} if stream is None else {"stream": stream})
        self._keep, self._files = keep, CheckpointFiles(directory)
        self._checkpoint = self._restored = tf.train.Checkpoint(**state, **place)
        self._places = None
        if stream is not None:
            self._restored = tf.train.Checkpoint(**state)
            self._places = StreamPlaces(self._files, place, worker, workers)
        self._steps = list(filter(self._files.has, self._files.listing().steps))
        self._damaged: list[int] = []
        self.best: Collection[int] = ()  # steps whose checkpoints are kept beside the last ones

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the checkpoints, ascending."""
        return tuple(self._steps)

    def save_place(self, step: int) -> None:
        """Write where this worker is in its part of a stream; raise BadInput as `save` does.

        All workers call this before the chief calls `save`.
        """
        assert self._places
        with self._writing(step):
            self._places.save(step)

    def save(self, step: int) -> None:
        """Write the state after `step` updates; raise BadInput if there is no room for it."""
        steps = [*(earlier for earlier in self._steps if earlier != step), step]
        with self._writing(step):
            self._checkpoint.write(str(self._files.path(step)))
            self._files.record(steps)
        self._steps = steps
        self.drop_old()

    @contextlib.contextmanager
    def _writing(self, step: int) -> Iterator[None]:
        """Delete what was written of a new checkpoint if an error comes, and explain the error."""
        try:
            yield
        except (tf.errors.OpError, OSError, BadInput) as error:
            if step not in self._steps:
                self._files.remove(step)
            raise BadInput(
                f"{self._files.directory}: the checkpoint of step {step} could not be written: "
                f"{first_line(error)}. Make room and run the same command again; it resumes from "
                "the last whole checkpoint"
            ) from None

    def drop_old(self) -> None:
        """Delete all checkpoints but the last ones and those of the steps `best`."""
        steps = self._steps
        old = [step for step in steps[: -self._keep] if step not in self.best]
        for step in old:
            self._files.remove(step)
        if old:  # the list named them until now, so that a kill leaves no orphans
            self._steps = [step for step in steps if step not in old]
            self._files.record(self._steps)

    def restore_latest(self, strict: bool = False) -> list[str]:
        """Restore the newest good checkpoint, if there is any checkpoint.

        Args:
            strict: Whether a damaged checkpoint is an error.

        Returns:
            Warnings about damaged checkpoints.

        Raises:
            BadInput: no checkpoint is good, or one belongs to a model of another shape.
        """
        search = Search(self._files, self._restored, self._weights, strict)
        search.places = self._places
        restored = list(islice(search.restored(), 1))
        self._steps = [step for step in search.listing.steps if step <= max(restored, default=0)]
        self._steps = list(filter(self._files.has, self._steps))
        self._damaged = [*search.damaged]
        return search.warnings(restored)

    def tidy(self) -> None:
        """Set damaged checkpoints aside, and delete what killed processes have left.

        Only the chief may call this, and only after all workers have restored the same checkpoint.
        """
        if self._steps:
            self._files.record(self._steps)
        for step in self._damaged:
            self._files.set_aside(step)
        self._files.clear_unfinished()


def average_last(
    model: Transformer,
    directory: Path,
    last: int,
    strict: bool = False,
    keep: int | None = None,
    since: int = 0,
) -> tuple[str, ...]:
    """Set the model's weights to the mean of the last `last` good checkpoints (section 6.1).

    Warnings about damaged ones go to stderr.

    Args:
        model: The model.
        directory: <work directory>/checkpoints.
        last: Number of checkpoints.
        strict: Whether a damaged checkpoint is an error.
        keep: Number of checkpoints that are kept as the last ones: others are there because they
            are among the best, and only stand in if none of these is good. None: all of them.
        since: The step after which the cool-down's updates come. Earlier checkpoints are not
            averaged with those of the cool-down, whose weights are better.

    Returns:
        The names of the averaged checkpoints, such as "step-500"; fewer than `last` if the run has
        fewer.

    Raises:
        BadInput: there is no good checkpoint, or one belongs to a model of another shape.
    """
    weights, files = weights_by_name(model), CheckpointFiles(directory)
    listed = files.listing().steps
    search = Search(files, tf.train.Checkpoint(weights=weights), weights, strict)
    search.spare = () if keep is None else listed[:-keep]
    steps: list[int] = []
    for step in islice(search.restored(), last):
        if steps and step <= since < steps[0]:
            break
        steps.append(step)
    if not steps:
        raise BadInput(
            f"{directory}: no checkpoint in it yet; train first, with the same --workdir"
        )
    _set_to_mean(weights, [files.path(step) for step in steps])
    return _named(search, steps)


def restore_best(model: Transformer, directory: Path, strict: bool = False) -> tuple[str, ...]:
    """Set the model's weights to the good checkpoint with the best dev score; return its name.

    Args:
        model: The model.
        directory: <work directory>/checkpoints.
        strict: Whether a damaged checkpoint is an error, and not only a warning.

    Raises:
        BadInput: no checkpoint has a dev score, or is good.
    """
    listed = CheckpointFiles(directory).listing().steps
    scores = ScoreHistory(directory)
    scores.recall(max(listed, default=0))
    steps = scores.best(len(listed), listed)
    if not steps:
        raise BadInput(
            f"{directory}: none of its checkpoints has a dev score; train on, with a greater "
            "--eval_share, or give --checkpoint=last"
        )
    return _restore_first(model, directory, steps, strict)


def restore_step(
    model: Transformer, directory: Path, step: int, strict: bool = False
) -> tuple[str, ...]:
    """Set the model's weights to the checkpoint of a step; return its name.

    Args:
        model: The model.
        directory: <work directory>/checkpoints.
        step: The step.
        strict: Whether damage to the list of checkpoints is an error too.

    Raises:
        BadInput: there is no such checkpoint, or it is damaged.
    """
    files = CheckpointFiles(directory)
    if not files.has(step):
        there = [str(other) for other in files.listing().steps if files.has(other)]
        raise BadInput(
            f"{directory}: no checkpoint of step {step}; there are {', '.join(there) or 'none'}"
        )
    return _restore_first(model, directory, [step], strict)


def _restore_first(
    model: Transformer, directory: Path, steps: Sequence[int], strict: bool
) -> tuple[str, ...]:
    """Set the model's weights to the first good checkpoint of some steps; return its name."""
    weights, files = weights_by_name(model), CheckpointFiles(directory)
    search = Search(files, tf.train.Checkpoint(weights=weights), weights, strict)
    search.steps = steps
    return _named(search, list(islice(search.restored(), 1)))


def _named(search: "Search", used: Sequence[int]) -> tuple[str, ...]:
    """Print the warnings of a search, and return the names of the checkpoints that are used."""
    for warning in search.warnings(used):
        print(warning, file=sys.stderr)
    return tuple(search.files.path(step).name for step in reversed(used))


def _set_to_mean(weights: dict[str, tf.Variable], paths: Sequence[Path]) -> None:
    """Set each weight to its mean over checkpoints, summed in float64.

    One weight after another is read: the sums of all weights of big would take 1.7 GB.
    """
    try:
        readers = [tf.train.load_checkpoint(str(path)) for path in paths]
        for name, variable in weights.items():
            key = f"weights/{name.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
            mean = np.zeros(variable.shape, np.float64)
            for reader in readers:
                mean += reader.get_tensor(key)
            mean /= len(readers)
            variable.assign(mean)
    except (tf.errors.OpError, RuntimeError, IndexError) as error:  # good a moment ago
        raise BadInput(
            f"{paths[0].parent}: a checkpoint was deleted or changed while it was read "
            f"({first_line(error)}); run the same command again"
        ) from None
