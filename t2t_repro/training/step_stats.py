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

    sums: list[tf.Tensor] = field(default_factory=list)  # of Trainer.step; not waited for
    shapes: list[flops.Shape] = field(default_factory=list)
    tokens: int = 0  # of both sides, without padding
    waited: float = 0.0  # seconds, for batches
    began: float = field(default_factory=time.monotonic)

    def add_batch(self, source: tf.Tensor, target: tf.Tensor, waited: float) -> None:
        """Count a batch, source [b, s] and target [b, t], that took `waited` seconds to fetch."""
        self.waited += waited
        self.shapes.append((*source.shape, target.shape[1]))
        self.tokens += sum(int(np.count_nonzero(side)) for side in (source, target))

    def add_step(self, sums: tf.Tensor) -> None:
        """Count a step, given the sums that `Trainer.step` returned, without waiting for them."""
        self.sums.append(sums)

    def values(self, model: Model, rows: int, peak_tflops: float) -> dict[str, float]:
        """Wait for the last step, and compute the values that TensorBoard shows.

        Args:
            model: The run's model, for its FLOPs.
            rows: Rows of the shared matrix.
            peak_tflops: The peak TFLOPS of all devices together.

        Returns:
            `loss` and `perplexity`, means per target token; `target_tokens_per_s`; `tflops`, the
            speed of the matrix products that the batches need, padding included; `peak_share`,
            which is `tflops` over `peak_tflops`; `padding_share`, of both sides; `input_share`, the
            share of the time in which the loop waited for a batch.
        """
        smoothed, unsmoothed, tokens = np.sum([s.numpy() for s in self.sums], axis=0)
        seconds = time.monotonic() - self.began
        positions = flops.positions(self.shapes)
        tflops = flops.training_flops(model, rows, positions).total / seconds / 1e12
        return {
            "loss": float(smoothed / tokens),
            "perplexity": float(np.exp(unsmoothed / tokens)),
            "target_tokens_per_s": float(tokens / seconds),
            "tflops": tflops,
            "peak_share": tflops / peak_tflops,
            "padding_share": 1.0 - self.tokens / (positions.source + positions.target),
            "input_share": self.waited / seconds,
        }
