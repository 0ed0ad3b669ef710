"""Operations that are written for speed, each beside the plain formula that it computes.

Code that is fast rather than readable is here, so that the rest can read like the paper. Beside
each operation is its formula, `plain_<name>`, with the same arguments and, up to rounding, the same
results; the tests compare the two. Indexing (`gather`, `_at`) has no plain formula. Times are for
two CPU cores.

Axes: b batch, m beam, n positions or hypotheses, v classes (rows of the shared matrix), d d_model.
"""

import keras
import numpy as np
from keras import ops

BLOCK = 64  # size of the blocks; `top_log_probs` first takes the maximum of each block


# Cross-entropy (5.4)


def plain_cross_entropy_sums(logits, target, weights):
    """Sum the cross-entropy with the target, and with the uniform distribution, over positions.

    Args:
        logits: float32 [n, v].
        target: int32 [n].
        weights: float32 [n], the weight of each position.

    Returns:
        float32 [2].
    """
    log_probability = ops.log_softmax(logits, axis=-1)
    unsmoothed = -_at(log_probability, target)  # [n]
    uniform = -ops.mean(log_probability, axis=-1)  # [n]
    return ops.stack([ops.sum(unsmoothed * weights), ops.sum(uniform * weights)])


def cross_entropy_sums(logits, target, weights):
    """Compute `plain_cross_entropy_sums` with its gradient written out.

    Automatic differentiation of the plain formula makes a dozen more passes over n x v numbers: a
    step of the tiny model of `bench train` took 441 ms with it and takes 389 ms now. Only one array
    of that size is kept, the softmax.
    """
    classes = logits.shape[-1]

    @ops.custom_gradient
    def sums(logits):
        probability = ops.softmax(logits, axis=-1)  # [n, v]
        # The log-sum-exp is computed from the likeliest class, whose probability is never tiny.
        log_norm = ops.max(logits, axis=-1) - ops.log(ops.max(probability, axis=-1))  # [n]
        unsmoothed = log_norm - _at(logits, target)
        uniform = log_norm - ops.mean(logits, axis=-1)

        def gradient(*args, upstream=None):
            """Return probability - one-hot target, and probability - 1 / v, weighted and added."""
            upstream = args[0] if upstream is None else upstream
            # Reading the sums here makes TensorFlow compute them first. Otherwise it may keep the
            # logits for them, and copies of arrays that it could overwrite.
            finite = ops.where(ops.isfinite(unsmoothed + uniform), weights, np.nan)
            own = finite * upstream[0]  # [n]
            even = weights * upstream[1] / classes
            both = probability * (own + even * classes)[:, None] - even[:, None]
            places = ops.stack([ops.arange(ops.shape(target)[0], dtype="int32"), target], axis=-1)
            return ops.scatter_update(both, places, _at(both, target) - own)

        return ops.stack([ops.sum(unsmoothed * weights), ops.sum(uniform * weights)]), gradient

    return sums(logits)


# The likeliest continuations (6.1)


def plain_top_log_probs(logits, count):
    """Find the `count` likeliest classes.

    Args:
        logits: float32 [b, m, v].
        count: classes for each row.

    Returns:
        (log-probabilities float32 [b, m, count], descending; classes int32 [b, m, count], the first
        ones in case of ties; the log-sum-exp of the logits float32 [b, m, 1]).
    """
    log_norm = ops.logsumexp(logits, axis=-1, keepdims=True)
    top, token = ops.top_k(logits - log_norm, count)
    return top, token, log_norm


def top_log_probs(logits, count):
    """Compute `plain_top_log_probs` without an array of v log-probabilities.

    The log-sum-exp follows from the probability of the likeliest class. One softmax takes 2.6 ms
    for 256 x 32,000 logits; subtract, exp and sum take 4.7, and logsumexp 7.6.
    """
    batch, beam_size, size = ops.shape(logits)
    top, token = top_k(logits, count)
    first = ops.reshape(token[:, :, 0], (-1,))
    places = ops.arange(batch * beam_size, dtype="int32") * size + first
    highest = ops.take(ops.reshape(ops.softmax(logits, axis=-1), (-1,)), places)
    log_highest = ops.log(ops.reshape(ops.minimum(highest, 1.0), (batch, beam_size, 1)))
    log_norm = top[:, :, :1] - log_highest
    return top - log_norm, token, log_norm


def plain_top_k(x, count):
    """Find the `count` greatest of x [b, m, v]: (values, places), both [b, m, count]."""
    return ops.top_k(x, count)


def top_k(x, count):
    """Compute `plain_top_k` by blocks of `BLOCK` numbers; v must be static.

    The greatest numbers are in the `count` blocks whose maxima are greatest. Finding 8 in each row
    of 256 x 32,000 numbers takes 2.2 ms this way; a plain top_k takes 18 ms, a quarter of a
    decoding step. The blocks found are sorted back into their original order, so that equal values
    come in the order of their places, as from top_k.
    """
    batch, beam_size, size = ops.shape(x)
    if size % BLOCK or size // BLOCK <= count:
        return ops.top_k(x, count)
    x = ops.reshape(x, (batch * beam_size, size // BLOCK, BLOCK))
    _, blocks = ops.top_k(ops.max(x, axis=-1), count)  # [b * m, count]
    blocks = ops.sort(blocks, axis=-1)
    candidates = ops.reshape(gather(x, blocks), (-1, count * BLOCK))
    top, place = ops.top_k(candidates, count)  # [b * m, count]
    place = gather(blocks, place // BLOCK) * BLOCK + place % BLOCK
    shape = (batch, beam_size, count)
    return ops.reshape(top, shape), ops.reshape(place, shape)


# The map to logits (3.4)


def plain_output_map(matrix, bias):
    """Return a function x [n, d] -> float32 logits [n, len(bias)] = x matrix^T + bias.

    Args:
        matrix: [v, d], in the type of the product. Rows beyond the bias are left out, and missing
            ones are zero.
        bias: NumPy array.
    """
    rows = len(bias)
    kept = ops.pad(matrix[:rows], ((0, rows - matrix[:rows].shape[0]), (0, 0)))
    return lambda x: ops.cast(ops.matmul(x, ops.transpose(kept)), "float32") + bias


def output_map(matrix, bias):
    """Compute `plain_output_map` in the faster layout of its type, for many calls.

    In float32 the transposed matrix is laid out once: a product of 4 rows with 32,000 x 512 numbers
    then takes 2.7 ms, otherwise 4.0. In bfloat16 it would take 2.7 ms that way, and takes 2.0.
    """
    rows = len(bias)
    matrix = matrix[:rows]
    matrix = ops.pad(matrix, ((0, rows - matrix.shape[0]), (0, 0)))
    bias = ops.convert_to_tensor(bias, "float32")
    if keras.backend.standardize_dtype(matrix.dtype) == "float32":
        kernel = ops.transpose(matrix)
        return lambda x: ops.matmul(x, kernel) + bias  # one fused operation
    return lambda x: ops.cast(ops.matmul(x, ops.transpose(matrix)), "float32") + bias


def pad_to_blocks(bias, value):
    """Pad a bias [v], a NumPy array, to whole blocks, without which `top_k` is slow."""
    return np.pad(bias, (0, -len(bias) % BLOCK), constant_values=value)


def gather(x, index):
    """Take rows of x [b, k, ...] by index int32 [b, m] into k -> [b, m, ...]."""
    batch, count, *rest = ops.shape(x)
    rows = ops.arange(batch, dtype="int32")[:, None] * count + ops.cast(index, "int32")  # [b, m]
    return ops.take(ops.reshape(x, (batch * count, *rest)), rows, axis=0)


def _at(x, index):
    """Take x[i, index[i]] for every i: x [n, v], index int32 [n] -> [n]."""
    return ops.take_along_axis(x, index[:, None], axis=-1)[:, 0]
