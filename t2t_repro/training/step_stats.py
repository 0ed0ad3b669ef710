"""What happened between two TensorBoard points: the loss, the speed, and where the time went."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from t2t_repro.config import Model
from t2t_repro.model import flops

Batch = tuple[tf.Tensor, tf.Tensor]  # source [b, s], target [b, t]


@dataclass
class Interval:
    """Some steps of training."""

    sums: list[tf.Tensor] = field(default_factory=list)  # of Trainer.step; not waited for
    shapes: list[flops.Shape] = field(default_factory=list)
    tokens: int = 0  # of both sides, PAD left out
    waited: float = 0.0  # seconds, for batches
    began: float = field(default_factory=time.monotonic)

    def fetch(self, batches: Iterator[Batch]) -> Batch:
        """The next batch, and takes note of it."""
        began = time.monotonic()
        source, target = next(batches)
        self.waited += time.monotonic() - began
        self.shapes.append((*source.shape, target.shape[1]))
        self.tokens += sum(int(np.count_nonzero(side)) for side in (source, target))
        return source, target

    def values(self, model: Model, rows: int, peak_tflops: float) -> dict[str, float]:
        """What TensorBoard shows, once the last step is done.

        Args:
            model: The run's model, for its FLOPs.
            rows: Of the shared matrix.
            peak_tflops: What all devices together could do.

        Returns:
            `loss` and `perplexity`, means per target token; `target_tokens_per_s`; `tflops`, of the
            products of matrices that the batches ask for, PAD included, and `peak_share`, that over
            `peak_tflops`; `padding_share`, of both sides; `input_share`, of the time in which the
            loop waited for a batch.
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
