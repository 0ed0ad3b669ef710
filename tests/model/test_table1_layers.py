"""Table 1's layers: on which positions each output depends, and that none depends on padding."""

import functools

import keras
import numpy as np
import pytest

from t2t_repro.config import Model
from t2t_repro.model.attention import MultiHeadAttention
from t2t_repro.model.table1_layers import (
    Convolution,
    Recurrent,
    RestrictedSelfAttention,
    SeparableConvolution,
)
from t2t_repro.model.transformer import Transformer

array = keras.ops.convert_to_numpy

D = 12
ATTENTION = {"d_model": D, "num_heads": 3, "d_k": 5, "d_v": 7}
ALL = {
    "restricted": functools.partial(RestrictedSelfAttention, 5, **ATTENTION),
    "recurrent": functools.partial(Recurrent, D),
    "convolution": functools.partial(Convolution, 3, D),
    "dilated": functools.partial(Convolution, 3, D, dilation=4),
    "separable": functools.partial(SeparableConvolution, 3, D),
}


def built(layer, seed=0):
    """Return the layer with random weights, large enough that softmax and gates are not uniform."""
    layer.build((None, None, D))
    rng = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(0, 0.5, variable.shape).astype("float32"))
    return layer


def vectors(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=(*shape, D)).astype("float32")


def mask_of(lengths, n):
    return (np.arange(n) < np.array(lengths)[:, None])[:, None, None, :]


def test_a_neighbourhood_of_no_position_is_refused():
    with pytest.raises(ValueError, match="r: wanted at least 1, got 0"):
        RestrictedSelfAttention(0, **ATTENTION)


# The contract


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_padding_changes_nothing(make):
    layer = built(make())
    x = vectors(2, 40)
    both = array(layer(x, mask_of([23, 40], 40)))
    assert both.shape == x.shape
    alone = array(layer(x[:1, :23], mask_of([23], 23)))
    np.testing.assert_allclose(both[:1, :23], alone, atol=1e-5)
    x[0, 23:] = 1e3
    np.testing.assert_allclose(array(layer(x, mask_of([23, 40], 40)))[0, :23], alone[0], atol=1e-5)
    np.testing.assert_allclose(array(layer(x, mask_of([40, 40], 40)))[1], both[1], atol=1e-5)


def reached(layer, n, position):
    """Return which outputs change with the input at one position."""
    x, mask = vectors(1, n), np.ones((1, 1, 1, n), bool)
    changed = x.copy()
    changed[0, position] += 1.0
    difference = np.abs(array(layer(changed, mask)) - array(layer(x, mask)))[0].max(-1)
    return np.flatnonzero(difference).tolist()


def test_what_one_position_reaches():
    def positions(name):
        return reached(built(ALL[name]()), 45, 20)

    assert positions("restricted") == [18, 19, 20, 21, 22]
    assert positions("recurrent") == list(range(20, 45))
    assert positions("convolution") == positions("separable") == [19, 20, 21]
    assert positions("dilated") == [16, 20, 24]


def test_an_even_neighbourhood_has_one_more_position_before():
    layer = built(RestrictedSelfAttention(4, **ATTENTION))
    # Output i sees i - 2 ... i + 1, so input 20 reaches the outputs 19 ... 22.
    assert reached(layer, 45, 20) == [19, 20, 21, 22]


# Restricted self-attention against full attention with a mask


def twins(r):
    """Return restricted and full attention with the same weights."""
    restricted = built(RestrictedSelfAttention(r, **ATTENTION))
    full = built(MultiHeadAttention(**ATTENTION))
    full.set_weights(restricted.get_weights())
    return restricted, full


def band(n, r):
    """Return the neighbourhoods of section 4 as printed, position by position: bool [n, n]."""
    return np.array([[0 <= j - i + r // 2 < r for j in range(n)] for i in range(n)])


@pytest.mark.filterwarnings("ignore:.*You are using a softmax over axis")  # of one position
@pytest.mark.parametrize("n", [1, 2, 31, 33, 97])
@pytest.mark.parametrize("r", [1, 5, 32, 33])
def test_restricted_attention_is_full_attention_behind_a_band(n, r):
    restricted, full = twins(r)
    x, mask = vectors(2, n), mask_of([n, (n + 1) // 2], n)
    expected, ours = array(full(x, mask & band(n, r))), array(restricted(x, mask))
    tokens = np.broadcast_to(mask[:, 0, 0, :, None], ours.shape)
    np.testing.assert_allclose(ours[tokens], expected[tokens], atol=2e-5)
    assert np.isfinite(ours).all()


@pytest.mark.parametrize("r", [65, 66, 200])
def test_it_is_full_attention_when_r_covers_the_sequence(r):
    restricted, full = twins(r)
    x, mask = vectors(2, 33), mask_of([33, 20], 33)
    expected, ours = array(full(x, mask)), array(restricted(x, mask))
    np.testing.assert_allclose(ours[0], expected[0], atol=2e-5)
    np.testing.assert_allclose(ours[1, :20], expected[1, :20], atol=2e-5)


tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="takes gradients with TensorFlow"
)


@tensorflow_only
def test_gradients_are_those_of_full_attention_behind_a_band():
    import tensorflow as tf

    restricted, full = twins(6)
    x, mask = tf.constant(vectors(2, 50)), mask_of([50, 37], 50)
    upstream = vectors(2, 50, seed=2) * mask[:, 0, 0, :, None]

    def gradients(layer, mask):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, mask)
        return tape.gradient(y, [x, *layer.trainable_variables], output_gradients=upstream)

    ours, theirs = gradients(restricted, mask), gradients(full, mask & band(50, 6))
    assert len(ours) == 1 + 8
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-4)


@tensorflow_only
def test_no_tensor_of_restricted_attention_grows_with_the_square_of_the_length():
    import tensorflow as tf

    def largest(layer, n):
        x = tf.TensorSpec([1, n, D])
        function = tf.function(lambda x: layer(x, tf.ones((1, 1, 1, n), tf.bool)))
        operations = function.get_concrete_function(x).graph.get_operations()
        sizes = [o.shape.num_elements() or 0 for op in operations for o in op.outputs]
        return max(sizes)

    restricted, full = twins(32)
    assert largest(full, 2048) == 16 * largest(full, 512)
    assert largest(restricted, 2048) == pytest.approx(4 * largest(restricted, 512), rel=0.1)


# In the encoder

TINY = Model(num_layers=2, d_model=D, d_ff=20, num_heads=3, d_k=5, d_v=7, embedding_rows=23)
SOURCE = np.array([[8, 3, 1, 0, 0], [5, 9, 17, 4, 1]], "int32")
TARGET = np.array([[6, 11, 1, 0], [7, 22, 12, 1]], "int32")


def test_the_encoder_takes_any_of_them():
    for make in ALL.values():
        model = Transformer(TINY, self_attention=make())
        assert {layer.self_attention.name for layer in model.encoder} == {"self_attention"}
        alone = array(model(SOURCE[:1, :3], TARGET[:1, :3]))
        np.testing.assert_allclose(alone[0], array(model(SOURCE, TARGET))[0, :3], atol=1e-5)


def test_in_the_encoder_they_compute_in_its_type():
    for make in ALL.values():
        model = Transformer(TINY, dtype="mixed_bfloat16", self_attention=make())
        assert {layer.self_attention.compute_dtype for layer in model.encoder} == {"bfloat16"}


def test_a_transformer_whose_neighbourhood_covers_the_source_is_the_papers():
    wide = RestrictedSelfAttention(9, **ATTENTION)
    restricted, full = Transformer(TINY, self_attention=wide), Transformer(TINY)
    paths = [[variable.path for variable in m.trainable_variables] for m in (restricted, full)]
    assert paths[0] == paths[1]
    full.set_weights(restricted.get_weights())
    np.testing.assert_allclose(
        array(restricted(SOURCE, TARGET)), array(full(SOURCE, TARGET)), atol=1e-5
    )


def test_in_bfloat16_it_is_near_float32():
    low = built(RestrictedSelfAttention(5, **ATTENTION, dtype="mixed_bfloat16"))
    high = built(RestrictedSelfAttention(5, **ATTENTION))
    x, mask = vectors(2, 40), mask_of([23, 40], 40)
    ours = low(x, mask)
    assert keras.backend.standardize_dtype(ours.dtype) == "bfloat16"
    error = np.abs(array(keras.ops.cast(ours, "float32")) - array(high(x, mask)))[:, :23]
    assert 0 < error.max() < 0.5


@tensorflow_only
@pytest.mark.parametrize(
    "name", [pytest.param("restricted", marks=pytest.mark.slow), "convolution"]
)
def test_training_with_it_learns_to_copy(name):
    import tensorflow as tf

    from t2t_repro.config import Train
    from t2t_repro.training.trainer import Trainer

    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    text = rng.integers(3, 23, (200, 16, 5)).astype("int32")
    text[:, :, -1] = 1
    model = Transformer(TINY, self_attention=ALL[name]())
    trainer = Trainer(
        model, Train(warmup_steps=60, learning_rate_scale=0.5), tf.distribute.get_strategy()
    )

    def loss(source, target):
        smoothed, _, tokens, _ = trainer.step(tf.constant(source), tf.constant(target)).numpy()
        return smoothed / tokens

    losses = [loss(ids, ids) for ids in text]
    of_other_sources = [loss(np.roll(ids, 1, axis=0), ids) for ids in text[:5]]
    assert np.mean(losses[-5:]) < np.mean(of_other_sources) - 0.5  # ln 20 is 3.0
