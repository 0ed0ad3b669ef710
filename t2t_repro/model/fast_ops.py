"""Operations that are written for speed, each beside the plain formula that it computes.

Code that is fast rather than readable is here, so that the rest can read like the paper. Beside
each operation is its formula, `plain_<name>`, with the same arguments and, up to rounding, the same
results; the tests compare the two. Indexing (`gather`, `_at`) has no plain formula. Times are for
two CPU cores.

Axes: b batch, m beam, n positions or hypotheses, v classes (rows of the shared matrix), d d_model.
"""

import contextlib
import contextvars
import functools

import keras
import numpy as np
from keras import ops

BLOCK = 64  # size of the blocks; `top_log_probs` first takes the maximum of each block

_is_compiled = contextvars.ContextVar("is_compiled", default=False)


@contextlib.contextmanager
def compiled():
    """Tell the operations that are traced in here that XLA will compile TensorFlow's graph."""
    token = _is_compiled.set(True)
    try:
        yield
    finally:
        _is_compiled.reset(token)


# Cross-entropy (5.4)


def cross_entropy_sums(logits, target, weights):
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


def plain_output_cross_entropy_sums(x, matrix, rows, target, weights, softmax_type="float32"):
    """Compute `cross_entropy_sums` of the logits x matrix^T.

    Args:
        x: [n, d], in the type of the product.
        matrix: float32 [v, d].
        rows: float32 [n, d], the matrix' rows of the targets, whose gradient is given apart.
        target: int32 [n].
        weights: float32 [n], the weight of each position.
        softmax_type: the type of the logits that the softmax reads.

    Returns:
        float32 [2].
    """
    logits = ops.matmul(x, ops.transpose(ops.cast(matrix, x.dtype)))
    logits = ops.cast(ops.cast(logits, softmax_type), "float32")
    log_norm = ops.logsumexp(logits, axis=-1)  # [n]
    own_logit = ops.sum(ops.cast(x, "float32") * rows, axis=-1)
    unsmoothed, uniform = log_norm - own_logit, log_norm - ops.mean(logits, axis=-1)
    return ops.stack([ops.sum(unsmoothed * weights), ops.sum(uniform * weights)])


def output_cross_entropy_sums(x, matrix, rows, target, weights, softmax_type="float32"):
    """Compute `plain_output_cross_entropy_sums` with one softmax as all that is done to the logits.

    The gradient of a row of logits is its softmax, scaled, minus a constant, minus a number at the
    target. Products are linear, so only the softmax is multiplied by the matrix and by x. The other
    two terms are subtracted from the results, which have n or v times d numbers, not n times v.
    The sum of all logits of a row is likewise the product of x with the sum of the matrix' rows.

    A softmax in bfloat16 saves two conversions of all logits, 25 ms for 1,024 x 32,000 of them. The
    products of the gradient read it in that type anyway; the cross-entropy of a position is then
    exact to 0.004. TensorFlow must compute such a softmax in float32 (`machine.softmax_is_exact`).
    """
    classes = matrix.shape[0]

    @ops.custom_gradient
    def sums(x, matrix, rows):
        kernel = ops.cast(matrix, x.dtype)
        logits = ops.cast(ops.matmul(x, ops.transpose(kernel)), softmax_type)
        own_logit = ops.cast(_at(logits, target), "float32")  # [n]
        probability, log_norm = _softmax(logits, target, own_logit)
        total = column_sums(matrix)  # [d]
        chances, wide = ops.cast(probability, x.dtype), ops.cast(x, "float32")
        uniform = log_norm - ops.sum(wide * total, axis=-1) / classes

        def gradient(*args, upstream=None):
            """Return the gradients of the three arguments."""
            upstream = args[0] if upstream is None else upstream
            token = (weights * upstream[0])[:, None]  # [n, 1]
            even = (weights * upstream[1] / classes)[:, None]
            both = token + even * classes
            of_x = both * ops.cast(ops.matmul(chances, kernel), "float32")
            of_x = of_x - even * total - token * rows
            scaled = ops.cast(wide * both, x.dtype)
            of_matrix = ops.cast(ops.matmul(ops.transpose(chances), scaled), "float32")
            of_matrix = of_matrix - column_sums(wide * even)
            return ops.cast(of_x, x.dtype), of_matrix, -token * wide

        unsmoothed = log_norm - own_logit
        return ops.stack([ops.sum(unsmoothed * weights), ops.sum(uniform * weights)]), gradient

    return sums(x, matrix, rows)


def _softmax(logits, target, own_logit):
    """Return the softmax of logits [n, v], and the log-sum-exp [n].

    TensorFlow has one operation for a softmax, from which the log-sum-exp follows without another
    pass over the logits. XLA makes one of several operations, but not across a condition, which
    would make it write the logits in float32 (1.2 of 38 ms of base's step on an H200).
    """
    if keras.backend.backend() == "jax":
        log_norm = ops.logsumexp(logits, axis=-1)
        return ops.exp(logits - log_norm[:, None]), log_norm
    probability = ops.softmax(logits, axis=-1)
    own = ops.cast(_at(probability, target), "float32")  # [n]
    # The logarithm of a probability that float32 cannot hold follows from the logits.
    log_norm = ops.cond(
        ops.min(own, initial=1.0) > 1e-30,
        lambda: own_logit - ops.log(own),
        lambda: ops.logsumexp(ops.cast(logits, "float32"), axis=-1),
    )
    return probability, log_norm


def plain_column_sums(x):
    """Sum x [n, d] over its rows: [d]."""
    return ops.sum(x, axis=0)


def column_sums(x):
    """Compute `plain_column_sums` as a product with ones.

    TensorFlow's sum over the first axis of 32,000 x 512 numbers takes 19.7 ms of one core, and the
    product 2.8. XLA's own sum is as fast; with products its step of a small model takes 950 ms
    instead of 356.
    """
    if keras.backend.backend() == "jax" or _is_compiled.get():
        return plain_column_sums(x)
    return ops.matmul(ops.transpose(ops.ones_like(x[:, :1])), x)[0]


# Add and norm (3.1, 5.4)


def plain_add_norm(x, output, kept, rate, gamma, beta, epsilon):
    """Compute LayerNorm(x + Dropout(output)).

    Args:
        x: [..., d], the input of a sub-layer.
        output: [..., d], its output.
        kept: bool [..., d], see `dropout_mask`.
        rate: share of the output that was to be dropped.
        gamma: float32 [d].
        beta: float32 [d].
        epsilon: is added to the variance.

    Returns:
        like x; the computation is in float32.
    """
    total = ops.cast(x, "float32") + ops.cast(output, "float32") * dropout_factor(kept, rate)
    centred = total - ops.mean(total, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    return ops.cast(centred / ops.sqrt(variance + epsilon) * gamma + beta, x.dtype)


def add_norm(x, output, kept, rate, gamma, beta, epsilon):
    """Compute `plain_add_norm` in fewer passes over x.

    For TensorFlow the gradient is written out. With JAX the plain formula is faster, since XLA
    fuses its gradient; computing the sum again for it takes less memory than keeping it in float32.
    """
    if keras.backend.backend() == "jax":
        return _recomputed_add_norm(rate, epsilon)(x, output, kept, gamma, beta)
    factor = dropout_factor(kept, rate)

    @ops.custom_gradient
    def normalised(x, output, gamma, beta):
        total = ops.cast(x, "float32") + ops.cast(output, "float32") * factor
        centred = total - ops.mean(total, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        scale = ops.rsqrt(variance + epsilon)  # [..., 1]
        normal = centred * scale

        def gradient(*args, upstream=None):
            """Return the gradients of the four arguments."""
            upstream = ops.cast(args[0] if upstream is None else upstream, "float32")
            product = upstream * normal
            of_gamma, of_beta = (
                column_sums(ops.reshape(each, (-1, x.shape[-1]))) for each in (product, upstream)
            )
            of_normal = upstream * gamma
            mean = ops.mean(of_normal, axis=-1, keepdims=True)
            slope = ops.mean(product * gamma, axis=-1, keepdims=True)
            of_total = (of_normal - mean - normal * slope) * scale
            of_output = ops.cast(of_total * factor, output.dtype)
            return ops.cast(of_total, x.dtype), of_output, of_gamma, of_beta

        return ops.cast(normal * gamma + beta, x.dtype), gradient

    return normalised(x, output, gamma, beta)


@functools.cache  # JAX compiles each new function again when it is called outside of `jit`
def _recomputed_add_norm(rate, epsilon):
    """Return `plain_add_norm` that keeps only its inputs for the gradient."""

    def add_norm(x, output, kept, gamma, beta):
        return plain_add_norm(x, output, kept, rate, gamma, beta, epsilon)

    return keras.remat(add_norm)


def plain_dropout_mask(shape, rate, seed):
    """Draw False with probability `rate` and True otherwise."""
    return keras.random.uniform(shape, seed=seed) >= rate


def dropout_mask(shape, rate, seed):
    """Draw like `plain_dropout_mask`, twice from each random number, which takes the time.

    A number u from 0 to 1 is below the rate q with probability q; then the first draw is False. The
    second is False in the q-th part of either interval: from 0 to q^2, and from q to q + (1 - q) q.
    """
    *others, last = shape  # the last is static
    u = keras.random.uniform((*others, (last + 1) // 2), seed=seed)
    first = u >= rate
    # Unequal is exclusive or, in one operation instead of four.
    second = ops.not_equal(first, ops.not_equal(u >= rate**2, u >= rate * (2 - rate)))
    kept = ops.concatenate([first, second], axis=-1)
    return kept[..., :last] if last % 2 else kept


def dropout_factor(kept, rate):
    """Return what dropout multiplies by: float32 1 / (1 - rate) where `kept` is true, else 0."""
    return ops.where(kept, 1 / (1 - rate) if rate < 1 else 0.0, 0.0)


# Attention (3.2.1); its plain formula is `attention_weights` times the values


def fuses_attention(query, key, value, mask):
    """Return whether `attention` computes this: with JAX on a GPU, in bfloat16.

    cuDNN's gradient with a mask wants even numbers of queries and keys. The mask must be boolean
    and the same for all heads, and keys as wide as values.
    """
    types = [keras.backend.standardize_dtype(x.dtype) for x in (query, mask)]
    return (
        keras.backend.backend() == "jax"
        and keras.distribution.list_devices()[0].startswith("gpu")
        and types == ["bfloat16", "bool"]
        and key.shape == value.shape
        and query.shape[2] % 2 == key.shape[2] % 2 == 0
        and len(mask.shape) == 4
        and mask.shape[1] == 1
    )


def attention(query, key, value, mask):
    """Compute softmax(Q K^T / sqrt(d_k)) V, and never write the weights to memory.

    Short sequences have a kernel of their own, `short_attention`; longer ones have cuDNN's. With
    cuDNN the gradient of a query that may look nowhere is not that of the plain formula; in
    training no loss depends on such a query.

    Args:
        query: bfloat16 [b, h, q, d_k].
        key: like query, [b, h, k, d_k].
        value: like key: d_v is d_k.
        mask: bool [1 or b, 1, 1 or q, k].

    Returns:
        like query.
    """
    inputs = [ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value)]
    if keras.backend.backend() == "jax":
        from t2t_repro.model import short_attention  # imports JAX

        if short_attention.is_short(query, key):
            output = short_attention.short_attention(*inputs, ops.cast(mask[:, 0], "int8"))
            return ops.transpose(output, (0, 2, 1, 3))
    mask = ops.broadcast_to(mask, (mask.shape[0], 1, query.shape[2], key.shape[2]))
    return ops.transpose(ops.dot_product_attention(*inputs, mask=mask), (0, 2, 1, 3))


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
