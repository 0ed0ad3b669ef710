"""A profile of some training steps, which TensorBoard's Profile tab shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf


class Profile:
    """TensorFlow's profiler, on from the first of some steps to the last, as far as they are made.

    Args:
        directory: The work directory; the profile goes to plugins/profile in it.
        first: Number of the first step, counted from 1.
        last: Number of the last step.
    """

    def __init__(self, directory: Path, first: int, last: int):
        self.directory, self.first, self.last = directory, first, last
        self.is_on = False

    def has_any(self, first: int, last: int) -> bool:
        """Return whether any of the steps lies between two others, or is one of them."""
        return self.first <= last and first <= self.last

    @contextmanager
    def of_step(self, number: int) -> Iterator[None]:
        """Record what happens inside as a training step, if it is one of the steps."""
        if not self.is_on and self.first <= number <= self.last:
            tf.profiler.experimental.start(str(self.directory))
            self.is_on = True
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
            yield
        if number == self.last:
            self.close()

    def close(self) -> None:
        """End the profile if it is on."""
        if self.is_on:
            tf.profiler.experimental.stop()
            self.is_on = False
