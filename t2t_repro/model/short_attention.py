"""Attention over short sequences on a GPU: one kernel for the output, one for its gradient.

This module is for Keras's JAX backend alone, and is imported where `fast_ops.attention` calls it.
Each program of a kernel computes one head of one sentence. All of the head's weights fit into the
registers, so that they are never in memory, and Q, K and V are read as the projections wrote them,
[b, n, h, d]: a product of batched matrices would want [b, h, n, d] and costs a copy of each. With
64 positions on each side a step of base takes an H200 34.4 ms; with cuDNN's flash attention, which
is made for longer sequences, it takes 37.3 (docs/notebook/training_throughput.md). The plain
formula is `attention_weights` times the values.

Axes: b batch, h heads, q query positions, k key positions, d width of a head.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

# Positions on a side, and the width of a head. The float32 weights of a head then take 64 KB of
# registers.
LONGEST = 128
_NARROWEST = 16  # Triton multiplies no smaller blocks, and its blocks are powers of two


def is_short(query, key):
    """Return whether `short_attention` can compute this; query [b, h, q, d], key [b, h, k, d]."""
    width = query.shape[-1]
    fits = max(query.shape[2], key.shape[2]) <= LONGEST
    return fits and _NARROWEST <= width <= LONGEST and width == pl.next_power_of_2(width)


@jax.custom_vjp
def short_attention(query, key, value, mask):
    """Compute softmax(Q K^T / sqrt(d)) V (equation 1), with the softmax in float32.

    A query that may look nowhere weighs all keys equally, as in the plain formula.

    Args:
        query: [b, q, h, d].
        key: [b, k, h, d].
        value: like key.
        mask: int8 [1 or b, 1 or q, k], 0 where a query may not look.

    Returns:
        like query.
    """
    (output,) = _call(_output_kernel, (query, key, value, mask), "q")
    return output


def _forward(*inputs):
    return short_attention(*inputs), inputs


def _backward(inputs, upstream):
    return (*_call(_gradient_kernel, (*inputs, upstream), "qkk"), None)


short_attention.defvjp(_forward, _backward)


def _call(kernel, inputs, outputs):
    """Run a kernel for each sentence and head.

    Args:
        kernel: the function of references to one head's blocks.
        inputs: query, key, value, mask, and for the gradient what comes from above.
        outputs: a "q" or "k" for each output: whether it is like the queries or the keys.

    Returns:
        list of the outputs.
    """
    query, key, _, mask = inputs[:4]
    batch, rows, heads, width = query.shape
    keys = key.shape[1]

    def side(positions):
        return pl.BlockSpec((None, _block(positions), None, width), lambda b, h: (b, 0, h, 0))

    mask_rows = 1 if mask.shape[1] == 1 else _block(rows)
    is_shared = mask.shape[0] == 1
    specs = {
        "q": side(rows),
        "k": side(keys),
        "mask": pl.BlockSpec(
            (None, mask_rows, _block(keys)), lambda b, h: (0 if is_shared else b, 0, 0)
        ),
    }
    shapes = {"q": query, "k": key}
    return pl.pallas_call(
        functools.partial(kernel, rows=rows, keys=keys),
        grid=(batch, heads),
        in_specs=[specs[name] for name in ("q", "k", "k", "mask", "q")[: len(inputs)]],
        out_specs=[specs[name] for name in outputs],
        out_shape=[jax.ShapeDtypeStruct(shapes[name].shape, query.dtype) for name in outputs],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        interpret=jax.default_backend() != "gpu",  # slow; for tests
    )(*inputs)


def _block(positions):
    """Return the rows of a block that holds so many positions. It has rows beyond the array."""
    return max(_NARROWEST, pl.next_power_of_2(positions))


def _output_kernel(query, key, value, mask, output, *, rows, keys):
    q, k, v = _load(query, rows), _load(key, keys), _load(value, keys)
    weights, _ = _weights(q, k, mask, rows, keys)
    _store(output, _product(weights.astype(v.dtype), v), rows)


def _gradient_kernel(query, key, value, mask, upstream, of_query, of_key, of_value, *, rows, keys):
    q, k, v = _load(query, rows), _load(key, keys), _load(value, keys)
    above = _load(upstream, rows)
    weights, may_look = _weights(q, k, mask, rows, keys)
    _store(of_value, _product(weights.astype(v.dtype).T, above), keys)
    of_weights = _product(above, v.T)
    mean = jnp.sum(weights * of_weights, axis=1, keepdims=True)
    of_logits = jnp.where(may_look, weights * (of_weights - mean), 0.0) * q.shape[1] ** -0.5
    of_logits = of_logits.astype(q.dtype)
    _store(of_query, _product(of_logits, k), rows)
    _store(of_key, _product(of_logits.T, q), keys)


def _weights(q, k, mask, rows, keys):
    """Return (weights float32 [q, k], which keys each query may look at) of one head's blocks."""
    logits = _product(q, k.T) * q.shape[1] ** -0.5
    is_row, is_key = _exist(mask.shape[0], rows)[:, None], _exist(mask.shape[1], keys)[None, :]
    may_look = triton.load(mask, mask=is_row & is_key, other=0) != 0
    may_look = jnp.broadcast_to(may_look, logits.shape)
    logits = jnp.where(may_look, logits, -1e9)
    logits = jnp.where(is_key, logits, -jnp.inf)  # beyond the array
    powers = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
    return powers / jnp.sum(powers, axis=1, keepdims=True), may_look


def _product(x, y):
    return jnp.dot(x, y, preferred_element_type=jnp.float32)


def _exist(block, positions):
    """Return which rows of a block are in the array."""
    return jnp.arange(block) < positions


def _load(block, positions):
    return triton.load(block, mask=_exist(block.shape[0], positions)[:, None], other=0.0)


def _store(block, x, positions):
    exist = _exist(block.shape[0], positions)[:, None]
    triton.store(block, x.astype(block.dtype), mask=exist)
