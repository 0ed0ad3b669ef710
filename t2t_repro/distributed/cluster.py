"""The workers of a run: how they communicate, which one writes, what happens if one is lost.

All workers make the same steps from the same plan of batches, so they must agree on everything that
the plan does not determine: that a checkpoint is due, that someone asked to stop, that the chief
failed. They agree through `Cluster.share`. A process that trains alone is a cluster of one worker
and does not communicate.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from pipelines.errors import BadInput

Result = TypeVar("Result")

# TensorFlow raises these in the other workers when a worker dies, restarts or does not respond.
_LOST_WORKER_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)
# Their messages match this; the messages of a failing local device do not.
_LOST_WORKER_MESSAGE = re.compile(r"collective|coordination|/job:", re.IGNORECASE)


class WorkerGone(Exception):
    """Another worker has ended or cannot be reached; the message says which."""


class Cluster:
    """The workers that train one model.

    Args:
        strategy: The strategy that they train with: `size` workers with `local` replicas each.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.names, self.index = ["this process"], 0
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            resolver = strategy.cluster_resolver
            jobs = resolver.cluster_spec().as_dict()
            # In the order of their replicas: the chief, if the cluster has one, then the workers.
            tasks = [(job, task) for job in sorted(jobs) for task in range(len(jobs[job]))]
            self.names = [f"{job} {task} ({jobs[job][task]})" for job, task in tasks]
            self.index = tasks.index((resolver.task_type, resolver.task_id))
        self.local = strategy.num_replicas_in_sync // self.size

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.names)

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the one that writes files and shows progress."""
        return self.index == 0

    def share(self, *numbers: int) -> tf.Tensor:
        """Return the numbers of all workers: int64 [size, n].

        All workers must call this. It returns at once; reading the values waits for the others.
        """
        if self.size == 1:
            return tf.constant([list(map(int, numbers))], tf.int64)
        return self._share(tf.constant(list(map(int, numbers)), tf.int64))

    def wait(self) -> None:
        """Wait until all workers have called this."""
        self.share(0).numpy()

    def by_chief(self, action: Callable[[], Result]) -> Result | None:
        """Run `action` in the chief while the others wait.

        Returns:
            The result of `action` in the chief, None in the others.

        Raises:
            BadInput: `action` raised BadInput or OSError. The chief raises that error; the others
                raise a BadInput that refers to the chief.
        """
        result, failure = None, None
        if self.is_chief:
            try:
                result = action()
            except (BadInput, OSError) as error:
                failure = error
        (failed, *_), *_ = self.share(bool(failure)).numpy()
        if failure:
            raise failure
        if failed:
            raise BadInput(f"{self.names[0]} failed; its messages say why")
        return result

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise WorkerGone in place of TensorFlow's errors about a lost worker."""
        try:
            yield
        except _LOST_WORKER_ERRORS as error:
            if self.size == 1 or not _LOST_WORKER_MESSAGE.search(error.message):
                raise
            raise WorkerGone(
                f"{self._lost_worker(error.message)} is gone or cannot be reached"
            ) from None

    def _lost_worker(self, message: str) -> str:
        """Return the worker that TensorFlow's message names, or "another worker"."""
        found = re.findall(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)", message)
        named = [name for job, task in found for name in self.names if f"{job} {task} (" in name]
        others = [name for name in named if name != self.names[self.index]]
        return others[0] if others else "another worker"

    @tf.function(autograph=False)
    def _share(self, mine: tf.Tensor) -> tf.Tensor:
        """Gather each worker's int64 [n] into int64 [size, n]."""

        def row() -> tf.Tensor:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            # Only a worker's first replica fills in its row, so the sum over replicas is the table.
            place = tf.where(replica % self.local == 0, replica // self.local, -1)
            return tf.one_hot(place, self.size, dtype=tf.int64)[:, None] * mine

        return self.strategy.reduce("SUM", self.strategy.run(row), axis=None)


class Agreement:
    """Requests that hold for all workers as soon as one worker makes them.

    With several workers a call returns the requests of the call before, so that no device waits for
    communication. A single process gets the requests of this call.
    """

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._pending: tf.Tensor | None = None

    def __call__(self, *requests: bool) -> Sequence[bool]:
        """Return whether any worker makes each request; all workers must call this in each step."""
        if self._cluster.size == 1:
            return requests
        before, self._pending = self._pending, self._cluster.share(*requests)
        if before is None:
            return [False] * len(requests)
        return list(np.any(before.numpy(), axis=0))

    def forget(self) -> None:
        """Drop the requests of the last call, because they have been served."""
        self._pending = None
