"""The workers of a run: what they tell each other, who writes, and what follows if one is gone.

All of them make the same steps from the same plan of batches, so they must also agree on what no
plan says: that it is time for a checkpoint, that someone asked to stop, that the chief failed. They
do so through `Cluster.share`. A process that trains alone is a cluster of one, and asks nobody.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from pipelines.errors import BadInput

Result = TypeVar("Result")

# What TensorFlow raises in the others when a worker dies, restarts or does not answer.
_GONE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)
# And what such a message has in it, unlike those of a device that fails.
_OF_OTHERS = re.compile(r"collective|coordination|/job:", re.IGNORECASE)


class WorkerGone(Exception):
    """Another worker has ended or cannot be reached; the message says which."""


class Cluster:
    """The workers that train one model.

    Args:
        strategy: What they train under; its replicas are `size` workers' `local` ones each.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.names, self.index = ["this process"], 0
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            resolver = strategy.cluster_resolver
            jobs = resolver.cluster_spec().as_dict()
            # In the order of their replicas: the chief, if one is called so, then the workers.
            tasks = [(job, task) for job in sorted(jobs) for task in range(len(jobs[job]))]
            self.names = [f"{job} {task} ({jobs[job][task]})" for job, task in tasks]
            self.index = tasks.index((resolver.task_type, resolver.task_id))
        self.local = strategy.num_replicas_in_sync // self.size

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self.names)

    @property
    def is_chief(self) -> bool:
        """Whether this is the worker that writes, and whose progress is shown."""
        return self.index == 0

    def share(self, *numbers: int) -> tf.Tensor:
        """Everybody's numbers: int64 [size, n]; each must call it. Nobody waits for the values."""
        if self.size == 1:
            return tf.constant([list(map(int, numbers))], tf.int64)
        return self._share(tf.constant(list(map(int, numbers)), tf.int64))

    def wait(self) -> None:
        """Until everybody is here."""
        self.share(0).numpy()

    def by_chief(self, action: Callable[[], Result]) -> Result | None:
        """What the chief returns from `action`; the others wait for it, and get None.

        Raises:
            BadInput: of the chief, in the chief; in the others one that points there.
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
            raise BadInput(f"{self.names[0]} cannot go on; its own messages say why")
        return result

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Turns what TensorFlow raises when another worker dies into a WorkerGone."""
        try:
            yield
        except _GONE as error:
            if self.size == 1 or not _OF_OTHERS.search(error.message):
                raise
            raise WorkerGone(f"{self._whom(error.message)} is gone or cannot be reached") from None

    def _whom(self, message: str) -> str:
        """The worker that TensorFlow's message is about, as well as can be told."""
        found = re.findall(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)", message)
        named = [name for job, task in found for name in self.names if f"{job} {task} (" in name]
        others = [name for name in named if name != self.names[self.index]]
        return others[0] if others else "another worker"

    @tf.function
    def _share(self, mine: tf.Tensor) -> tf.Tensor:
        """int64 [n] of each worker to int64 [size, n] of all."""

        def row() -> tf.Tensor:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            # One replica speaks for its worker; the sum then is everybody's own.
            place = tf.where(replica % self.local == 0, replica // self.local, -1)
            return tf.one_hot(place, self.size, dtype=tf.int64)[:, None] * mine

        return self.strategy.reduce("SUM", self.strategy.run(row), axis=None)


class Agreement:
    """Wishes that count for all workers if one of them has them.

    What is agreed on is what was wished one call before, so that no device waits for the answer;
    of a process alone, what it wishes now.
    """

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._asked: tf.Tensor | None = None

    def __call__(self, *wishes: bool) -> Sequence[bool]:
        """Whether anybody has each of the wishes; all workers must ask, in every step."""
        if self._cluster.size == 1:
            return wishes
        asked, self._asked = self._asked, self._cluster.share(*wishes)
        if asked is None:
            return [False] * len(wishes)
        return list(np.any(asked.numpy(), axis=0))

    def forget(self) -> None:
        """Lets go of what was asked last: what it was about is done."""
        self._asked = None
