"""Each fast operation against the plain formula beside it."""

import keras
import numpy as np
import pytest

from t2t_repro.model.fast_ops import (
    BLOCK,
    cross_entropy_sums,
    output_map,
    plain_cross_entropy_sums,
    plain_output_map,
    plain_top_k,
    plain_top_log_probs,
    top_k,
    top_log_probs,
)


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def gradient(function, logits, *arguments):
    """Return the gradient of 3 times the first sum plus 7 times the second, on either backend."""
    factors = np.array([3, 7], "float32")
    if keras.backend.backend() == "jax":
        import jax

        return jax.grad(lambda x: (function(x, *arguments) * factors).sum())(logits)
    import tensorflow as tf

    x = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(function(x, *arguments) * factors)
    return tape.gradient(total, x)


def test_cross_entropy_and_its_gradient_are_those_of_the_plain_formula(rng):
    logits = rng.normal(size=(30, 11), scale=3).astype("float32")
    target = rng.integers(0, 11, 30).astype("int32")
    inputs = logits, target, rng.integers(0, 2, 30).astype("float32")
    functions = cross_entropy_sums, plain_cross_entropy_sums
    ours, plain = (array(function(*inputs)) for function in functions)
    np.testing.assert_allclose(ours, plain, rtol=1e-5)
    ours, plain = (array(gradient(function, *inputs)) for function in functions)
    np.testing.assert_allclose(ours, plain, atol=2e-5)
    assert np.abs(plain).max() > 1


def test_top_k_by_blocks_is_top_k(rng):
    """Each value occurs about three times, so that there are ties within and between blocks."""
    x = rng.integers(0, 900, (2, 30, 40 * BLOCK)).astype("float32")
    for size in (x.shape[-1], BLOCK * 3, BLOCK * 10 + 1):
        part = x[:, :, :size]
        for ours, plain in zip(top_k(part, 6), plain_top_k(part, 6), strict=True):
            np.testing.assert_array_equal(array(ours), array(plain))
        order = np.argsort(-part, axis=-1, kind="stable")[:, :, :6]
        np.testing.assert_array_equal(array(top_k(part, 6)[1]), order)


@pytest.mark.parametrize("size", [7, 40 * BLOCK])
def test_top_log_probs_are_those_of_a_log_softmax(rng, size):
    logits = rng.normal(size=(2, 3, size), scale=5).astype("float32")
    logits[0, 0, 2] = 400  # the only class with a probability
    ours, plain = top_log_probs(logits, 6), plain_top_log_probs(logits, 6)
    np.testing.assert_array_equal(array(ours[1]), array(plain[1]))
    for i in (0, 2):
        np.testing.assert_allclose(array(ours[i]), array(plain[i]), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [5, 8])
def test_output_map_is_that_of_the_plain_formula(rng, dtype, size):
    """The bias has fewer rows than the matrix, or more."""
    matrix = keras.ops.cast(rng.normal(size=(6, 4)), dtype)
    x = keras.ops.cast(rng.normal(size=(3, 4)), dtype)
    bias = rng.normal(size=size).astype("float32")
    ours, plain = (array(f(matrix, bias)(x)) for f in (output_map, plain_output_map))
    assert ours.shape == (3, size)
    assert ours.dtype == "float32"
    np.testing.assert_allclose(ours, plain, rtol=1e-6)
