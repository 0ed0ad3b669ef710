"""Layers and model as Keras objects: configuration, `model.save`, `summary`, docstring examples."""

import doctest
import importlib
import json
import re

import keras
import numpy as np
import pytest

from t2t_repro.model.attention import MultiHeadAttention, causal_mask, padding_mask
from t2t_repro.model.layers import (
    AddNorm,
    FeedForward,
    LearnedPositions,
    SharedEmbedding,
    SinusoidalPositions,
)
from t2t_repro.model.table1_layers import (
    Convolution,
    Recurrent,
    RestrictedSelfAttention,
    SeparableConvolution,
)
from t2t_repro.model.transformer import DecoderLayer, EncoderLayer, Transformer

array = keras.ops.convert_to_numpy

SOURCE = np.array([[8, 3, 1, 0, 0], [5, 9, 17, 4, 1]], "int32")
TARGET = np.array([[6, 11, 1, 0], [7, 22, 12, 1]], "int32")
ATTENTION = {"d_model": 12, "num_heads": 3, "d_k": 5, "d_v": 7}


def attention():
    return MultiHeadAttention(**ATTENTION, dropout=0.2)


LAYERS = [
    attention,
    lambda: RestrictedSelfAttention(4, **ATTENTION),
    lambda: EncoderLayer(attention(), FeedForward(12, 20), 0.3),
    lambda: DecoderLayer(attention(), attention(), FeedForward(12, 20), 0.3),
    lambda: AddNorm(0.4),
    lambda: FeedForward(12, 20),
    lambda: SharedEmbedding(23, 12),
    SinusoidalPositions,
    lambda: LearnedPositions(9, 12),
    lambda: Recurrent(12),
    lambda: Convolution(3, 12, dilation=2),
    lambda: SeparableConvolution(3, 12),
]


@pytest.mark.parametrize("make", LAYERS)
def test_every_layer_can_be_made_again_from_its_configuration(make):
    layer = make()
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    other = keras.saving.deserialize_keras_object(config)
    assert type(other) is type(layer)
    assert other.get_config() == layer.get_config()
    assert config["registered_name"] == f"t2t_repro>{type(layer).__name__}"


@pytest.mark.parametrize(
    ("number", "given"),
    [
        *((0, {"dropout": 0.2}), (1, {"r": 4}), (2, {"dropout": 0.3}), (3, {"dropout": 0.3})),
        *((4, {"dropout": 0.4}), (10, {"k": 3, "dilation": 2})),
    ],
)
def test_a_configuration_has_the_arguments_that_were_given(number, given):
    assert LAYERS[number]().get_config().items() >= given.items()


def test_a_functional_model_of_layers_is_saved_and_cloned(tmp_path):
    inputs, mask = keras.Input((5, 12)), keras.Input((1, 1, 5), dtype="bool")
    layer = EncoderLayer(attention(), FeedForward(12, 20), 0.1)
    model = keras.Model([inputs, mask], layer(inputs, mask))
    x = np.random.default_rng(1).normal(size=(2, 5, 12)).astype("float32")
    given = [x, SOURCE[:, None, None] != 0]
    model.save(tmp_path / "m.keras")
    other = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(array(other(given)), array(model(given)))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(array(clone(given)), array(model(given)))


def test_a_functional_model_of_encoder_and_decoder_trains_the_one_matrix(tmp_path):
    source, target = (keras.Input((n,), dtype="int32") for n in (5, 4))
    embedding = SharedEmbedding(23, 12)
    encoder = EncoderLayer(attention(), FeedForward(12, 20), 0.0)
    decoder = DecoderLayer(attention(), attention(), FeedForward(12, 20), 0.0)
    mask = padding_mask(source)
    encoded = encoder(embedding(source), mask)
    decoded = decoder(embedding(target), encoded, mask, causal_mask(4))
    model = keras.Model([source, target], embedding.logits(decoded))
    before = array(embedding.matrix)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model.fit([SOURCE, TARGET], TARGET, verbose=0)
    assert np.abs(array(embedding.matrix) - before)[20].max() > 0  # in no sentence: by its logits
    memory = decoder.cross_attention.keys_values(encoder(embedding(SOURCE), padding_mask(SOURCE)))
    inputs = embedding(TARGET), memory, padding_mask(SOURCE), causal_mask(4)
    expected = array(decoder(*inputs)) @ array(embedding.matrix).T
    np.testing.assert_allclose(array(model([SOURCE, TARGET])), expected, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "m.keras")
    other = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(array(other([SOURCE, TARGET])), expected, rtol=1e-4, atol=1e-5)


def test_a_layer_whose_halves_are_used_first_can_still_be_called():
    layer = DecoderLayer(attention(), attention(), FeedForward(12, 20), 0.0)
    encoded, x = np.ones((2, 5, 12), "float32"), np.ones((2, 4, 12), "float32")
    memory = layer.cross_attention.keys_values(encoded)
    layer.self_attention.attend(x, [memory], padding_mask(SOURCE))
    masks = padding_mask(SOURCE), causal_mask(4)
    outputs = layer(x, memory, *masks), layer(x, encoded, *masks)
    np.testing.assert_array_equal(*(array(output) for output in outputs))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "mixed_float16"])
def test_layers_train_with_any_of_keras_policies(dtype):
    layer = EncoderLayer(attention(), FeedForward(12, 20), 0.1, dtype=dtype)
    inputs, mask = keras.Input((5, 12)), keras.Input((1, 1, 5), dtype="bool")
    model = keras.Model([inputs, mask], layer(inputs, mask))
    model.compile("adam", "mse")
    x = np.random.default_rng(1).normal(size=(2, 5, 12)).astype("float32")
    history = model.fit([x, SOURCE[:, None, None] != 0], x, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")  # those without Dense
def test_logits_of_a_quantized_model_are_near_those_before(build):
    model = build()
    before = array(model(SOURCE, TARGET))
    model.quantize("int8")
    assert model.encoder[0].self_attention.query.quantization_mode == "int8"
    assert np.abs(array(model(SOURCE, TARGET)) - before).max() < 0.05 * np.abs(before).max()


def test_two_layers_can_share_an_attention():
    shared, feed_forward = attention(), FeedForward(12, 20)
    first, second = (EncoderLayer(shared, feed_forward, 0.1) for _ in range(2))
    x, mask = np.ones((1, 5, 12), "float32"), SOURCE[:1, None, None] != 0
    first(x, mask)
    weights = shared.get_weights()
    second(x, mask)
    for before, after in zip(weights, shared.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("changes", [{}, {"dtype": "mixed_bfloat16", "learned_positions": 7}])
def test_saved_model_gives_the_same_logits(build, changes, tmp_path):
    model = build(**changes)
    model.save(tmp_path / "m.keras")
    other = keras.saving.load_model(tmp_path / "m.keras")
    assert (type(other), other.config, other.name) == (Transformer, model.config, "transformer")
    assert other.dtype_policy == model.dtype_policy
    np.testing.assert_array_equal(array(other(SOURCE, TARGET)), array(model(SOURCE, TARGET)))


def test_saved_model_keeps_its_layer_type_and_its_name(build, tmp_path):
    restricted = RestrictedSelfAttention(4, **ATTENTION)
    model = Transformer(build().config, self_attention=restricted, name="mine")
    model.save(tmp_path / "m.keras")
    other = keras.saving.load_model(tmp_path / "m.keras")
    assert {type(layer.self_attention) for layer in other.encoder} == {RestrictedSelfAttention}
    paths = {variable.path.split("/")[0] for variable in other.trainable_variables}
    assert paths == {"embedding", "mine"}
    np.testing.assert_array_equal(array(other(SOURCE, TARGET)), array(model(SOURCE, TARGET)))


def test_saved_model_keeps_full_self_attention_of_the_users(build, tmp_path):
    other_heads = MultiHeadAttention(12, num_heads=5, d_k=3, d_v=4, dropout=0.25)
    model = Transformer(build().config, self_attention=other_heads)
    model.save(tmp_path / "m.keras")
    other = keras.saving.load_model(tmp_path / "m.keras")
    assert other.encoder[0].self_attention.get_config()["num_heads"] == 5
    np.testing.assert_array_equal(array(other(SOURCE, TARGET)), array(model(SOURCE, TARGET)))


def test_summary_names_every_layer_with_its_parameters(build):
    lines = []
    build().summary(print_fn=lines.append)
    (text,) = lines
    rows = [re.split(r"\s*[│┃]\s*", line)[1:-1] for line in text.splitlines() if "│" in line]
    shown = {row[0].split(" ")[0]: row[2] for row in rows}
    one = build().encoder[0].count_params()
    assert shown["embedding"] == "276"  # 23 x 12
    assert shown["encoder_0"] == shown["encoder_1"] == f"{one:,}"
    assert {"decoder_0", "decoder_1"} <= shown.keys()


@pytest.mark.parametrize("name", ["attention", "layers", "table1_layers", "transformer"])
def test_the_examples_of_the_docstrings_run(name):
    module = importlib.import_module(f"t2t_repro.model.{name}")
    names = {"np": np, "keras": keras, "FeedForward": FeedForward}
    results = doctest.testmod(module, extraglobs=names)
    assert results.attempted > 4
    assert not results.failed
