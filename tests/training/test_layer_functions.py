"""Layers that share a TensorFlow function compute what they compute without it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from t2t_repro.config import Model
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.layer_functions import LayerFunctions

SOURCE, TARGET = np.int32([[5, 6, 7, 1], [8, 1, 0, 0]]), np.int32([[9, 8, 1], [7, 1, 0]])
SIZES = {"d_model": 12, "d_ff": 20, "num_heads": 3, "d_k": 5, "d_v": 7}


def made(layers=2, dtype="float32", **sizes):
    keras.utils.set_random_seed(1)
    return Transformer(Model(num_layers=layers, **SIZES | sizes), 23, dtype)


def traced(model, call_layer=None):
    """Return a function of the vectors of SOURCE and TARGET, and their sum's gradients."""
    given = {"call_layer": call_layer} if call_layer else {}

    @tf.function(autograph=False)
    def step():
        weights = [weight.value for weight in model.trainable_variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            vectors = model.vectors(SOURCE, TARGET, True, **given)
            total = tf.reduce_sum(tf.cast(vectors, tf.float32) ** 3)
        gradients = tape.gradient(total, weights)
        return vectors, [tf.convert_to_tensor(gradient) for gradient in gradients]

    return step


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_vectors_gradients_and_random_states_are_those_of_layers_called_alone(dtype):
    """In two steps: the second draws other numbers."""
    model, twin = made(dtype=dtype, dropout=0.5), made(dtype=dtype, dropout=0.5)
    functions = LayerFunctions()
    steps = traced(model, functions), traced(twin)
    # bfloat16 keeps 8 bits, and a fused operation rounds at other places.
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 0.1, "atol": 1}
    seen = []
    for _ in range(2):
        (vectors, gradients), (expected, of_weights) = (step() for step in steps)
        np.testing.assert_allclose(*(tf.cast(x, "float32") for x in (vectors, expected)), atol=0.1)
        for gradient, other in zip(gradients, of_weights, strict=True):
            np.testing.assert_allclose(gradient, other, **tolerance)
        for state, other in zip(model.random_states, twin.random_states, strict=True):
            np.testing.assert_array_equal(state.numpy(), other.numpy())
        seen.append(vectors.numpy())
    assert not np.array_equal(*seen)
    assert len(functions._functions) == 2  # the encoder's layers share one, the decoder's the other


@pytest.mark.slow
def test_a_deeper_model_has_hardly_more_operations():
    shallow, deep = (
        len(traced(made(layers), LayerFunctions()).get_concrete_function().graph.get_operations())
        for layers in (2, 4)
    )
    alone = len(traced(made(2)).get_concrete_function().graph.get_operations())
    assert deep - shallow < alone / 5
    assert shallow < alone / 2


def test_layers_that_differ_share_no_function():
    model, x = made(3), tf.ones((2, 4, 12))
    first, second, third = model.encoder
    second.feed_forward.inner.kernel.trainable = False
    third.feed_forward_norm.dropout.rate = third.dropout = 0.9
    functions, mask = LayerFunctions(), tf.ones((2, 1, 1, 4), tf.bool)

    @tf.function(autograph=False)
    def outputs():
        with tf.GradientTape() as tape:
            tape.watch(x)
            rows = [functions(layer, x, mask, training=True) for layer in (first, second, third)]
            total = sum(map(tf.reduce_sum, rows))
        kernels = [layer.feed_forward.inner.kernel.value for layer in (first, second)]
        return rows, tape.gradient(total, kernels)

    rows, (of_first, of_frozen) = outputs()
    assert of_first is not None
    assert of_frozen is None
    assert not np.allclose(rows[0], rows[2])
    assert len(functions._functions) == 3
