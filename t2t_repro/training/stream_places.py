"""Where workers are in their parts of a stream of data, saved with a checkpoint.

Each worker reads a part of the stream, so each has a place of its own. The chief's is in the
checkpoint, step-<n>. Worker i > 0 writes its place as step-<n>.worker-<i>, before the chief writes
the checkpoint, so that a checkpoint with an index has the places of all.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipelines.errors import BadInput
from t2t_repro.training.checkpoint_files import CheckpointFiles

_ITERATOR = "/.ATTRIBUTES/ITERATOR_STATE"  # ends the name of an iterator's state in a checkpoint


class StreamPlaces:
    """This worker's place in its part of a stream, and the files with those of all workers.

    Args:
        files: The files of the run's checkpoints.
        place: What says where this worker is, by name.
        worker: The number of this worker; 0 is the chief.
        workers: The number of workers.
    """

    def __init__(self, files: CheckpointFiles, place: Mapping[str, Any], worker: int, workers: int):
        self.files, self.worker, self.workers = files, worker, workers
        self._own = tf.train.Checkpoint(**place)

    def save(self, step: int) -> None:
        """Write this worker's place, unless it is the chief."""
        if self.worker:
            self._own.write(str(self.files.place(step, self.worker)))

    def restore(self, step: int) -> None:
        """Restore this worker's place, after reading those of all, to agree on what is damaged.

        TensorFlow restores an iterator only when it is made, and would find damage too late. The
        place must not be restored before all else is known to be good: that could not be undone.

        Raises:
            BadInput: the checkpoint was written by another number of workers.
            OpError, IndexError: a file is damaged.
        """
        if (workers := self.files.places(step) + 1) != self.workers:
            raise BadInput(
                f"{self.files.path(step)}: its --stream was read by {workers} processes, each at a "
                f"place of its own, and there are {self.workers}; start {workers}, or begin "
                "another run with --init_from"
            )
        paths = [self.files.path(step)]
        paths += [self.files.place(step, worker) for worker in range(1, workers)]
        for path in paths:
            _check_place(path)
        status = self._own.read(str(paths[self.worker]))
        status.assert_existing_objects_matched()
        status.expect_partial()


def _check_place(path: Path) -> None:
    """Read a worker's place from a checkpoint; raise OpError or IndexError if it is damaged."""
    reader = tf.train.load_checkpoint(str(path))
    for name in reader.get_variable_to_shape_map():
        if name.endswith(_ITERATOR):
            tf.raw_ops.RestoreV2(
                prefix=str(path), tensor_names=[name], shape_and_slices=[""], dtypes=[tf.variant]
            )
        elif name.startswith(("position", "stream")):
            reader.get_tensor(name)
