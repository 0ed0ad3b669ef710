"""Section 5.4: label-smoothed cross-entropy.

Axes: b batch, t target positions, v classes (rows of the shared matrix).
"""

from typing import Any

from keras import ops

from t2t_repro.model.attention import PAD
from t2t_repro.model.fast_ops import cross_entropy_sums, output_cross_entropy_sums


def cross_entropy(logits: Any, target: Any, label_smoothing: float = 0.0) -> tuple[Any, Any, Any]:
    """Sum the cross-entropy over the tokens of a batch, without padding.

    This is the plain formula, for programs and tests that have logits; a training step computes the
    same from the vectors before them, in `output_cross_entropy`.

    The smoothed target distribution is (1 - eps) on the token plus eps / v on each of the v classes
    (Szegedy et al. 2016, the paper's reference 36). Cross-entropy is linear in that distribution:
    it is (1 - eps) times the cross-entropy with the token plus eps times the cross-entropy with the
    uniform distribution.

    Args:
        logits: [b, t, v]; the sums are in float32.
        target: int32 [b, t].
        label_smoothing: eps_ls; 0.1 in the paper.

    Returns:
        (smoothed, unsmoothed, tokens): float32 scalars. Training minimises smoothed / tokens;
        exp(unsmoothed / tokens) is the perplexity per piece that Table 3 reports.
    """
    target, is_token = _flat(target)
    logits = ops.cast(ops.reshape(logits, (-1, logits.shape[-1])), "float32")
    sums = cross_entropy_sums(logits, target, is_token)
    return _smoothed(sums, label_smoothing, is_token)


def output_cross_entropy(
    vectors: Any,
    matrix: Any,
    target: Any,
    label_smoothing: float = 0.0,
    rows: Any = None,
    softmax_type: str = "float32",
) -> tuple[Any, Any, Any]:
    """Compute `cross_entropy` of the logits vectors matrix^T, in fewer passes over them.

    Args:
        vectors: [b, t, d].
        matrix: float32 [v, d], the shared matrix (3.4).
        target: int32 [b, t].
        label_smoothing: eps_ls; 0.1 in the paper.
        rows: float32 [b, t, d], the matrix' rows of the target. Their gradient concerns few rows;
            whoever looks them up can add it up with those of other rows that are looked up.
        softmax_type: the type of the softmax, "bfloat16" where that is as exact as its type allows.

    Returns:
        like `cross_entropy`.
    """
    matrix = ops.copy(matrix)  # a gradient of our own takes no variables
    rows = ops.take(matrix, target, axis=0) if rows is None else rows
    target, is_token = _flat(target)
    vectors, rows = (ops.reshape(each, (-1, each.shape[-1])) for each in (vectors, rows))
    sums = output_cross_entropy_sums(vectors, matrix, rows, target, is_token, softmax_type)
    return _smoothed(sums, label_smoothing, is_token)


def _flat(target: Any) -> tuple[Any, Any]:
    """Return the tokens [b * t], and which of them are no padding, as float32 [b * t]."""
    target = ops.reshape(target, (-1,))
    return target, ops.cast(target != PAD, "float32")


def _smoothed(sums: Any, label_smoothing: float, is_token: Any) -> tuple[Any, Any, Any]:
    """Return what `cross_entropy` does, from the two sums of `cross_entropy_sums`."""
    unsmoothed, uniform = sums[0], sums[1]
    smoothed = (1.0 - label_smoothing) * unsmoothed + label_smoothing * uniform
    return smoothed, unsmoothed, ops.sum(is_token)
