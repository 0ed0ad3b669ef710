"""Section 5.4: label-smoothed cross-entropy.

Axes: b batch, t target positions, v rows of the shared matrix.
"""

from typing import Any

import numpy as np
from keras import ops

from t2t_repro.model.attention import PAD


def cross_entropy(logits: Any, target: Any, label_smoothing: float = 0.0) -> tuple[Any, Any, Any]:
    """Sums over the tokens of a batch; padding counts nothing.

    The smoothed target distribution is (1 - eps) on the token plus eps / v on each of the v classes
    (Szegedy et al. 2016, the paper's reference 36).

    Args:
        logits: float32 [b, t, v].
        target: int32 [b, t].
        label_smoothing: eps_ls; 0.1 in the paper.

    Returns:
        (smoothed, unsmoothed, tokens): float32 scalars. smoothed / tokens is what training
        minimises, exp(unsmoothed / tokens) is the perplexity per piece that Table 3 reports.
    """
    rows = logits.shape[-1]
    weights = ops.reshape(ops.cast(target != PAD, "float32"), (-1,))  # [b * t]
    sums = _summed(ops.reshape(logits, (-1, rows)), ops.reshape(target, (-1,)), weights)
    unsmoothed, uniform = sums[0], sums[1]
    smoothed = (1.0 - label_smoothing) * unsmoothed + label_smoothing * uniform
    return smoothed, unsmoothed, ops.sum(weights)


def _summed(logits: Any, target: Any, weights: Any) -> Any:
    """Cross-entropy with the target, and with the uniform distribution: float32 [2], weighted sums.

    logits [n, v], target and weights [n]. The gradient is written out, because it is short, and
    because what differentiation makes of the forward pass goes over n x v numbers a dozen times
    more: a step of the tiny model of `bench train` took 441 ms with it and takes 389. One array of
    that size is kept, the softmax.
    """
    rows = logits.shape[-1]

    @ops.custom_gradient
    def sums(logits: Any) -> Any:
        probability = ops.softmax(logits, axis=-1)  # [n, v]
        # The logarithm of the sum of exponentials, from the likeliest, whose share is never tiny.
        log_norm = ops.max(logits, axis=-1) - ops.log(ops.max(probability, axis=-1))  # [n]
        unsmoothed = log_norm - _at(logits, target)
        uniform = log_norm - ops.mean(logits, axis=-1)

        def gradient(*args: Any, upstream: Any = None) -> Any:
            """probability - one-hot target, and probability - 1 / v."""
            upstream = args[0] if upstream is None else upstream
            # The sums say whether the gradient is a number, so that they are made before it. Else
            # TensorFlow may keep the logits for them, and copies of what it could write over.
            told = ops.where(ops.isfinite(unsmoothed + uniform), weights, np.nan)
            own = told * upstream[0]  # [n]
            even = weights * upstream[1] / rows
            both = probability * (own + even * rows)[:, None] - even[:, None]
            places = ops.stack([ops.arange(ops.shape(target)[0], dtype="int32"), target], axis=-1)
            return ops.scatter_update(both, places, _at(both, target) - own)

        return ops.stack([ops.sum(unsmoothed * weights), ops.sum(uniform * weights)]), gradient

    return sums(logits)


def _at(x: Any, index: Any) -> Any:
    """x [n, v], index int32 [n] -> x[i, index[i]] for every i: [n]."""
    return ops.take_along_axis(x, index[:, None], axis=-1)[:, 0]
