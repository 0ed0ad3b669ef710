"""A run that has diverged is ended before useless checkpoints push out its good ones."""

import math

import numpy as np
import tensorflow as tf

from pipelines.errors import BadInput
from t2t_repro.model.transformer import Transformer

# Guessing uniformly among v pieces costs ln v nats a token. In runs of 600 updates of a small model
# with a `learning_rate_scale` of up to 30, no step cost more than 1.09 ln v, which is the cost of
# the initial weights. With 50, steps cost up to 11 ln v. The model recovered from fewer than 250
# such steps in a row, but only as far as to predict pieces by their frequency. With 100 and more,
# no model recovered.
_GUESSES = 2.0
_PATIENCE = 1000
_ANEW = (
    "train in another --workdir with a lower --learning_rate_scale, more --warmup_steps or "
    "--clip_norm=1; the checkpoints from before are kept"
)
_SKIP = "the same command with --skip_nonfinite=5 passes over such steps; if that does not help, "


class Divergence:
    """The signs that a run has diverged: numbers that are not finite, and lost steps.

    A step is lost if its cross-entropy is more than twice that of guessing uniformly. 1,000
    lost steps in a row are a divergence. A run may recover from fewer, so these only put off its
    checkpoints.

    Args:
        rows: Rows of the shared matrix, among which a guess is made.
    """

    def __init__(self, rows: int):
        self.worst = _GUESSES * math.log(rows)
        self.lost = 0  # steps in a row, up to now

    def check(self, step: int, numbers: np.ndarray, perplexity: float) -> None:
        """Raise BadInput if the run has diverged.

        Args:
            step: The last step.
            numbers: The numbers that `Trainer.step` returned for it and the steps before, [n, 4].
            perplexity: Their perplexity.
        """
        for at, (loss, cross_entropy, tokens, norm) in enumerate(numbers, step - len(numbers) + 1):
            if not tokens:
                continue  # skipped
            _check_finite(f"the loss at step {at}", loss, _SKIP + _ANEW)
            _check_finite(f"the norm of the gradient at step {at}", norm, _SKIP + _ANEW)
            self.lost = self.lost + 1 if cross_entropy / tokens > self.worst else 0
            if self.lost == _PATIENCE:
                raise BadInput(
                    f"diverged: each of the {_PATIENCE:,} steps up to {at} costs more than "
                    f"{self.worst:.1f} nats per token, twice as much as guessing; {_ANEW}"
                )
        if numbers[:, 2].any():
            _check_finite(f"the perplexity at step {step}", perplexity, _ANEW)

    def check_weights(self, step: int, model: Transformer) -> None:
        """Raise BadInput if the update of `step` has made a weight infinite or NaN."""
        for weight in model.trainable_variables:
            if not tf.reduce_all(tf.math.is_finite(weight.value)):
                raise BadInput(f"{weight.path} after step {step} is not finite; {_ANEW}")


def _check_finite(name: str, value: float, way_out: str) -> None:
    if not math.isfinite(value):
        kind = "not a number" if math.isnan(value) else "infinite"
        raise BadInput(f"{name} is {kind}; {way_out}")
