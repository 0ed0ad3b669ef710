"""Steps that were skipped because their gradient was not finite, and their batches."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from pipelines import storage
from pipelines.errors import BadInput

_KEPT = 20  # batches


class SkippedSteps:
    """Counts skipped steps in a row, and keeps the batches of the last 20 as files.

    It looks at a step when the next one has been started, so that no device waits for this process.
    All workers count alike, because their steps return the same numbers.

    Args:
        limit: Number of skipped steps in a row that are allowed; 0: no step is skipped.
        directory: Where step-<n>.npz goes, with the arrays `source` [b, s] and `target` [b, t].
        is_chief: Whether this worker writes the files and says so.
    """

    def __init__(self, limit: int, directory: Path, is_chief: bool):
        self.limit, self.directory, self.is_chief = limit, directory, is_chief
        self.in_a_row = 0
        self._last: tuple[int, tf.Tensor, tf.Tensor, tf.Tensor] | None = None

    def add(self, step: int, source: tf.Tensor, target: tf.Tensor, numbers: tf.Tensor) -> None:
        """Look at the step before this one; `numbers` are what `Trainer.step` returned."""
        if self.limit:
            self.settle()
            self._last = step, source, target, numbers

    def settle(self) -> None:
        """Wait for the last step, and look at it.

        Raises:
            BadInput: more steps in a row were skipped than allowed.
        """
        if self._last is None:
            return
        (step, source, target, numbers), self._last = self._last, None
        _, _, tokens, norm = numbers.numpy()
        if tokens:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        if self.is_chief:
            self._say(f"step {step:,} skipped: the norm of its gradient is {norm}")
            self._keep(step, source, target)
        if self.in_a_row > self.limit:
            raise BadInput(
                f"steps {step - self.limit} to {step} have gradients that are not finite, "
                f"--skip_nonfinite={self.limit} allows {self.limit} in a row; their batches are in "
                f"{self.directory}; train in another --workdir with a lower --learning_rate_scale, "
                "or resume with a higher --skip_nonfinite"
            )

    def _keep(self, step: int, source: tf.Tensor, target: tf.Tensor) -> None:
        """Write a batch, and delete the oldest one beyond those to keep."""
        content, directory = io.BytesIO(), str(self.directory)
        np.savez_compressed(content, source=np.array(source), target=np.array(target))
        try:
            storage.write(directory, f"step-{step}.npz", content.getvalue())
            for name in self._names()[:-_KEPT]:
                storage.remove(directory, name)
        except (OSError, BadInput) as error:  # the training is worth more than this file
            self._say(f"its batch could not be written to {directory}: {error}")

    def _names(self) -> list[str]:
        """Return the names of the batches, in the order of their steps."""
        names = [n for n in storage.names(str(self.directory)) if re.fullmatch(r"step-\d+\.npz", n)]
        return sorted(names, key=lambda name: int(name[len("step-") : -len(".npz")]))

    def _say(self, message: str) -> None:
        tqdm.write(message, file=sys.stderr)
