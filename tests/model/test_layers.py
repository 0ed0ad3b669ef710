"""Layers against the formulas of the paper's sections 3.1 and 3.3 to 3.5."""

import keras
import numpy as np
import pytest

from t2t_repro.model.layers import (
    AddNorm,
    Dropout,
    FeedForward,
    LearnedPositions,
    SharedEmbedding,
    SinusoidalPositions,
    sinusoids,
)

array = keras.ops.convert_to_numpy


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def assign_random(layer, rng):
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(size=variable.shape).astype("float32"))


def test_sinusoids_are_interleaved():
    # d_model = 6: wavelengths 2 pi * 10000^(0/6), 10000^(2/6), 10000^(4/6).
    expected = [
        [np.sin(p), np.cos(p), np.sin(p / 10000 ** (1 / 3)), np.cos(p / 10000 ** (1 / 3)),
         np.sin(p / 10000 ** (2 / 3)), np.cos(p / 10000 ** (2 / 3))]
        for p in range(4)
    ]  # fmt: skip
    np.testing.assert_allclose(array(sinusoids(4, 6)), expected, atol=1e-6)


@pytest.mark.parametrize(("position", "dimension"), [(0, 511), (99, 0), (99, 257), (1000, 510)])
def test_sinusoids_of_the_base_model(position, dimension):
    angle = position / 10000 ** ((dimension - dimension % 2) / 512)
    expected = np.cos(angle) if dimension % 2 else np.sin(angle)
    value = array(sinusoids(1001, 512))[position, dimension]
    np.testing.assert_allclose(value, expected, atol=1e-4)


def test_sinusoids_of_an_odd_width_are_refused():
    with pytest.raises(ValueError, match="d_model: wanted an even number, got 7"):
        SinusoidalPositions()(np.ones((1, 3, 7), "float32"))


def test_positions_start_where_they_are_told():
    x = np.ones((2, 3, 6), "float32")
    expected = 1 + array(sinusoids(8, 6))[5:8]
    np.testing.assert_allclose(
        array(SinusoidalPositions()(x, position=5)), [expected] * 2, rtol=1e-6
    )


def test_learned_positions_add_their_rows_and_repeat_the_last(rng):
    layer = LearnedPositions(rows=5, d_model=2)
    assign_random(layer, rng)
    x = rng.normal(size=(2, 4, 2)).astype("float32")
    expected = x + array(layer.table)[[3, 4, 4, 4]]
    np.testing.assert_allclose(array(layer(x, position=3)), expected, rtol=1e-6)


def test_learned_positions_start_as_small_as_the_rows_of_the_matrix():
    assert array(LearnedPositions(rows=1000, d_model=64).table).std() == pytest.approx(1 / 8, 0.02)


def test_add_norm_normalises_the_sum(rng):
    layer = AddNorm(dropout=0.1)
    layer.build((None, None, 6))
    assign_random(layer, rng)
    # Small numbers, so that LayerNorm's epsilon of 1e-6 matters.
    x, y = rng.normal(0, 1e-3, size=(2, 2, 3, 6)).astype("float32")
    total = (x + y).astype("float64")
    deviation = np.sqrt(total.var(-1, keepdims=True) + 1e-6)
    normal = (total - total.mean(-1, keepdims=True)) / deviation
    expected = normal * array(layer.norm.gamma) + array(layer.norm.beta)
    np.testing.assert_allclose(array(layer(x, y)), expected, rtol=1e-4, atol=1e-5)


def test_add_norm_drops_from_the_sublayer_and_not_from_the_residual():
    layer = AddNorm(dropout=0.5)
    x = np.tile(np.arange(64, dtype="float32"), (1, 1, 1))
    quiet, noisy = (array(layer(x, y, training=True)) for y in (0 * x, x))
    np.testing.assert_allclose(quiet, array(layer(x, 0 * x)), rtol=1e-6)
    assert not np.allclose(noisy, array(layer(x, x)), atol=1e-2)


def test_dropout_draws_one_number_for_each_of_its_noise_shape():
    x = np.ones((2, 4, 100), "float32")
    dropped = array(Dropout(0.5, noise_shape=(None, 1, None))(x, training=True))
    np.testing.assert_array_equal(dropped, np.repeat(dropped[:, :1], 4, axis=1))
    assert {*np.unique(dropped)} == {0, 2}
    assert (dropped[0] != dropped[1]).any()


def test_dropout_of_everything_leaves_nothing():
    x = np.ones((2, 3, 4), "float32")
    np.testing.assert_array_equal(array(Dropout(1.0)(x, training=True)), 0 * x)


def test_feed_forward_is_equation_2(rng):
    layer = FeedForward(d_model=3, d_ff=5)
    layer.build((None, None, 3))
    assign_random(layer, rng)
    w1, b1, w2, b2 = (array(variable) for variable in layer.trainable_variables)
    x = rng.normal(size=(2, 4, 3)).astype("float32")
    expected = np.maximum(0, x @ w1 + b1) @ w2 + b2
    np.testing.assert_allclose(array(layer(x)), expected, rtol=1e-4, atol=1e-5)


def test_one_matrix_embeds_and_makes_logits():
    layer = SharedEmbedding(rows=6, d_model=4)
    (matrix,) = layer.trainable_variables
    row = np.array([1, 2, 3, 4], "float32")
    matrix.assign(np.eye(6, 4) * 0 + row * (np.arange(6) == 5)[:, None])  # row 5, else zeros
    embedded = array(layer(np.array([[5, 2]])))
    np.testing.assert_allclose(embedded, [[2 * row, 0 * row]])  # sqrt(d_model) = 2
    logits = array(layer.logits(np.ones((1, 1, 4), "float32")))
    np.testing.assert_allclose(logits, [[[0, 0, 0, 0, 0, 10]]])


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_ids_of_any_type_are_looked_up(dtype):
    layer = SharedEmbedding(rows=300, d_model=4, dtype="mixed_bfloat16")
    ids = np.array([[129, 255, 0]])
    vectors = [array(keras.ops.cast(layer(x), "float32")) for x in (ids, ids.astype(dtype))]
    np.testing.assert_array_equal(*vectors)


def test_padding_is_embedded_as_the_zero_vector(rng):
    layer = SharedEmbedding(rows=6, d_model=4)
    assign_random(layer, rng)
    embedded = array(layer(np.array([[3, 0]])))[0]
    np.testing.assert_array_equal(embedded[1], np.zeros(4))
    assert np.all(embedded[0] != 0)


def test_embedded_vectors_start_with_variance_1():
    vectors = array(SharedEmbedding(rows=1000, d_model=64)(np.arange(1, 1000)[None]))
    assert vectors.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_output_map_is_the_first_logits_with_a_bias(rng, dtype):
    layer = SharedEmbedding(rows=6, d_model=4, dtype=dtype)
    assign_random(layer, rng)
    x = keras.ops.cast(rng.normal(size=(3, 4)), layer.compute_dtype)
    logits = array(layer.logits(x))
    few, many = (array(layer.output_map(np.arange(n))(x)) for n in (5, 8))
    np.testing.assert_allclose(few, logits[:, :5] + np.arange(5), rtol=1e-5)
    # There are six rows: the last two logits are the bias alone.
    np.testing.assert_allclose(many[:, 6:], [[6, 7]] * 3)
    np.testing.assert_allclose(many[:, :5], few)
    assert few.dtype == "float32"
