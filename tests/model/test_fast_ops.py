"""Each fast operation against the plain formula beside it."""

from functools import partial

import keras
import numpy as np
import pytest

from t2t_repro.model.attention import attention_weights
from t2t_repro.model.fast_ops import (
    BLOCK,
    add_norm,
    attention,
    column_sums,
    dropout_factor,
    dropout_mask,
    fuses_attention,
    output_cross_entropy_sums,
    output_map,
    plain_add_norm,
    plain_column_sums,
    plain_dropout_mask,
    plain_output_cross_entropy_sums,
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


def gradients(function, *arguments):
    """Return the gradients of a scalar function with respect to its arguments, on any backend."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.grad(function, tuple(range(len(arguments))))(*arguments)
    import tensorflow as tf

    tensors = [tf.convert_to_tensor(argument) for argument in arguments]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = function(*tensors)
    return tape.gradient(value, tensors)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX always uses float32")
def test_cross_entropy_by_a_softmax_in_bfloat16_is_exact_to_its_rounding(rng):
    from t2t_repro.distributed.machine import softmax_is_exact

    if not softmax_is_exact("bfloat16"):
        pytest.skip("not on this processor, and `train` uses it only where it is")
    # Logits are whole numbers, which bfloat16 can hold.
    x = keras.ops.cast(rng.integers(-2, 3, (50, 6)), "bfloat16")
    matrix = rng.integers(-1, 2, (11, 6)).astype("float32")
    target = rng.integers(0, 11, 50).astype("int32")
    for weights in np.eye(50, dtype="float32")[:9]:
        rest = matrix, matrix[target], target, weights
        rounded = array(output_cross_entropy_sums(x, *rest, "bfloat16"))
        np.testing.assert_allclose(
            rounded, array(plain_output_cross_entropy_sums(x, *rest)), atol=0.0045
        )


@pytest.mark.parametrize("scale", [1, 200])  # with 200, most targets have a probability below 1e-38
def test_output_cross_entropy_and_its_gradients_are_those_of_the_plain_formula(rng, scale):
    x = rng.normal(size=(30, 6)).astype("float32")
    matrix = (scale * rng.normal(size=(11, 6))).astype("float32")
    target = rng.integers(0, 11, 30).astype("int32")
    weights = rng.integers(0, 2, 30).astype("float32")
    factors = np.array([3, 7], "float32")

    def total(function, x, matrix, rows):
        return keras.ops.sum(function(x, matrix, rows, target, weights) * factors)

    functions, given = (output_cross_entropy_sums, plain_output_cross_entropy_sums), (x, matrix)
    given += (matrix[target],)
    ours, plain = (array(function(*given, target, weights)) for function in functions)
    np.testing.assert_allclose(ours, plain, rtol=1e-5)
    ours, plain = (gradients(partial(total, function), *given) for function in functions)
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(array(one), array(other), rtol=1e-4, atol=2e-5 * scale)
        assert np.abs(array(other)).max() > 1


def test_output_cross_entropy_of_a_broken_model_is_not_finite(rng):
    x = rng.normal(size=(3, 6)).astype("float32")
    matrix = np.full((11, 6), np.nan, "float32")
    target, weights = np.array([1, 2, 3], "int32"), np.ones(3, "float32")
    sums = output_cross_entropy_sums(x, matrix, matrix[target], target, weights)
    assert np.isnan(array(sums)).all()


@pytest.mark.parametrize("rows", [1, 7])
def test_column_sums_are_those_of_the_plain_formula(rng, rows):
    x = rng.normal(size=(rows, 5)).astype("float32")
    np.testing.assert_allclose(array(column_sums(x)), array(plain_column_sums(x)), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_add_norm_and_its_gradients_are_those_of_the_plain_formula(rng, dtype):
    x, output, out = (rng.normal(size=(4, 3, 8)).astype("float32") for _ in range(3))
    kept, rate = rng.choice([False, True], (4, 3, 8)), 0.2
    gamma, beta = (rng.normal(size=8).astype("float32") for _ in range(2))

    def total(function, x, output, gamma, beta):
        x, output = (keras.ops.cast(one, dtype) for one in (x, output))
        result = function(x, output, kept, rate, gamma, beta, 1e-6)
        assert keras.backend.standardize_dtype(result.dtype) == dtype
        return keras.ops.sum(keras.ops.cast(result, "float32") * out)

    arguments, tolerance = (x, output, gamma, beta), 1e-5 if dtype == "float32" else 0.05
    functions = [partial(total, function) for function in (add_norm, plain_add_norm)]
    ours, plain = (float(function(*arguments)) for function in functions)
    assert ours == pytest.approx(plain, rel=tolerance)
    ours, plain = (gradients(function, *arguments) for function in functions)
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(array(one), array(other), atol=tolerance)
        assert np.abs(array(other)).max() > 0.3


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_dropout_masks_drop_each_number_at_the_rate_and_independently(rate):
    masks = plain_dropout_mask, dropout_mask
    for mask in (array(function((500, 400, 4), rate, 3)) for function in masks):
        assert mask.dtype == bool
        dropped = ~mask.reshape(-1, 4)
        # Over 200,000 rows: 5 standard deviations of a share are at most 0.005.
        np.testing.assert_allclose(dropped.mean(0), rate, atol=0.005)
        both = dropped.T.astype("float64") @ dropped / len(dropped)
        np.testing.assert_allclose(both[~np.eye(4, dtype=bool)], rate**2, atol=0.005)
    assert dropout_mask((2, 5), rate, 3).shape == (2, 5)


def test_dropout_keeps_the_expectation():
    factors = array(dropout_factor(np.array([True, False, True, True, True]), 0.2))
    np.testing.assert_allclose(factors, [1.25, 0, 1.25, 1.25, 1.25])


@pytest.mark.parametrize("mask_shape", [(2, 1, 1, 5), (1, 1, 4, 5)])  # padding; the future
@pytest.mark.parametrize("width", [8, 16])  # on JAX, 16 has a kernel of its own
def test_attention_and_its_gradients_are_those_of_its_formula(rng, mask_shape, width):
    inputs = [rng.normal(size=(2, 3, n, width)).astype("float32") for n in (4, 5, 5)]
    mask, factors = rng.choice([False, True], mask_shape), rng.normal(size=inputs[0].shape)
    mask[..., 0] = True

    def fused(*inputs):
        result = attention(*(keras.ops.cast(x, "bfloat16") for x in inputs), mask)
        return keras.ops.cast(result, "float32")

    def plain(query, key, value):
        return attention_weights(query, [key], mask) @ value

    def total(function, *inputs):
        return keras.ops.sum(function(*inputs) * factors.astype("float32"))

    results = [array(function(*inputs)) for function in (fused, plain)]
    ours, expected = (gradients(partial(total, function), *inputs) for function in (fused, plain))
    for one, other in zip([results[0], *ours], [results[1], *expected], strict=True):
        np.testing.assert_allclose(array(one), array(other), atol=0.05)  # bfloat16 has 3 digits
        assert np.abs(array(other)).max() > 1


def test_attention_is_fused_only_where_cudnn_can(monkeypatch, rng):
    x = keras.ops.cast(rng.normal(size=(2, 3, 4, 8)), "bfloat16")
    mask = np.ones((2, 1, 1, 4), bool)
    assert not fuses_attention(x, x, x, mask)  # on a CPU
    if keras.backend.backend() != "jax":
        return
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["gpu:0"])
    assert fuses_attention(x, x, x, mask)
    assert not fuses_attention(x, x, x[..., :6], mask)  # d_k is not d_v
    assert not fuses_attention(x[:, :, :3], x, x, mask)
    assert not fuses_attention(x, x[:, :, :3], x[:, :, :3], mask[..., :3])
    assert not fuses_attention(x, x, x, mask.astype("float32"))
    assert not fuses_attention(x, x, x, np.ones((2, 3, 1, 4), bool))  # a mask for each head
    assert not fuses_attention(*[keras.ops.cast(x, "float32")] * 3, mask)


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
