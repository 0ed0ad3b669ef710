"""Sections 3.1 and 5.4: the target shifted right, and label-smoothed cross-entropy.

Axes: b batch, t target positions, v rows of the shared matrix.
"""

from typing import Any

from keras import ops

from t2t_repro.attention import PAD


def shift_right(target: Any) -> Any:
    """Target [b, t] -> the decoder's input [b, t]: PAD in front, the last token dropped.

    PAD is embedded as the zero vector, the start symbol of the authors' first code.
    """
    return ops.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=PAD)


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
    weights = ops.cast(target != PAD, "float32")  # [b, t]
    log_norm = ops.logsumexp(logits, axis=-1)  # [b, t]
    # A product with the one-hot target: on CPU faster than a gather, whose gradient is a scatter.
    picked = ops.sum(logits * ops.one_hot(target, logits.shape[-1], dtype="float32"), axis=-1)
    unsmoothed = log_norm - picked
    uniform = log_norm - ops.mean(logits, axis=-1)
    smoothed = (1.0 - label_smoothing) * unsmoothed + label_smoothing * uniform
    return ops.sum(smoothed * weights), ops.sum(unsmoothed * weights), ops.sum(weights)
