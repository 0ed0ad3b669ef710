"""Statistics of the steps between two TensorBoard points: loss, throughput, and time per part."""

import time
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from t2t_repro.config import Model
from t2t_repro.model import flops


@dataclass
class StepStats:
    """Statistics of consecutive training steps."""

    steps: list[tf.Tensor] = field(default_factory=list)  # of Trainer.step; not waited for
    shapes: list[flops.Shape] = field(default_factory=list)
    tokens: int = 0  # of both sides, without padding
    waited: float = 0.0  # seconds, for batches
    began: float = field(default_factory=time.monotonic)

    def add_batch(self, source: tf.Tensor, target: tf.Tensor, waited: float) -> None:
        """Count a batch, source [b, s] and target [b, t], that took `waited` seconds to fetch."""
        self.waited += waited
        self.shapes.append((*source.shape, target.shape[1]))
        self.tokens += sum(int(np.count_nonzero(side)) for side in (source, target))

    def add_step(self, numbers: tf.Tensor) -> None:
        """Count a step, given the numbers that `Trainer.step` returned, without waiting for it."""
        self.steps.append(numbers)

    def batch_shapes(self) -> dict[str, np.ndarray]:
        """Return the rows and padded lengths of the batches, int [batches] each."""
        rows, source, target = np.array(self.shapes).T
        return {"batch_rows": rows, "source_length": source, "target_length": target}

    def numbers(self) -> np.ndarray:
        """Wait for the last step, and return the numbers of all steps: float32 [steps, 4]."""
        return np.stack([step.numpy() for step in self.steps])

    def values(
        self, model: Model, rows: int, peak_tflops: float, parts: int = 1
    ) -> dict[str, float]:
        """Wait for the last step, and compute the values that TensorBoard shows.

        Args:
            model: The run's model, for its FLOPs.
            rows: Rows of the shared matrix.
            peak_tflops: The peak TFLOPS of all devices together.
            parts: The number of workers, if the batches added here are one worker's part of each
                batch. The other parts are taken to be as large.

        Returns:
            `loss` and `perplexity`, means per target token; `gradient_norm` and
            `gradient_norm_max`, mean and maximum over the steps; `target_tokens_per_s`;
            `skipped_steps`, the number of steps without an update, which the values before leave
            out; `tflops`, the speed of the matrix products that the batches need, padding included;
            `peak_share`, which is `tflops` over `peak_tflops`; `padding_share`, of both sides;
            `input_share`, the share of the time in which the loop waited for a batch.
        """
        numbers = self.numbers()
        made = numbers[numbers[:, 2] > 0]  # a skipped step has no tokens
        seconds = time.monotonic() - self.began
        positions = flops.positions(self.shapes)
        tflops = parts * flops.training_flops(model, rows, positions).total / seconds / 1e12
        return _means(made) | {
            "target_tokens_per_s": float(made[:, 2].sum() / seconds),
            "skipped_steps": len(numbers) - len(made),
            "tflops": tflops,
            "peak_share": tflops / peak_tflops,
            "padding_share": 1.0 - self.tokens / (positions.source + positions.target),
            "input_share": self.waited / seconds,
        }


def _means(made: np.ndarray) -> dict[str, float]:
    """Return the means of the numbers of some steps [steps, 4]; NaN if there are none."""
    if not len(made):
        made = np.full((1, 4), np.nan, np.float32)
    smoothed, unsmoothed, tokens = made[:, :3].sum(axis=0)
    with np.errstate(over="ignore"):  # in float32, perplexity is infinite from 88.7 nats on
        perplexity = np.exp(unsmoothed / tokens)
    return {
        "loss": float(smoothed / tokens),
        "perplexity": float(perplexity),
        "gradient_norm": float(made[:, 3].mean()),
        "gradient_norm_max": float(made[:, 3].max()),
    }
