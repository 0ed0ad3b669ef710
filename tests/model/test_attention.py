"""Masks written out whole; attention against numbers and formulas in float64."""

import keras
import numpy as np
import pytest

from t2t_repro.model import fast_ops
from t2t_repro.model.attention import (
    MultiHeadAttention,
    ancestor_mask,
    attention_weights,
    causal_mask,
    extend_cache,
    padding_mask,
    write_cache,
)

array = keras.ops.convert_to_numpy


def heads(rows):
    """Return rows [n, d] as float32 [1, 1, n, d], with one sentence and one head."""
    return np.array(rows, "float32")[None, None]


def test_padding_mask_hides_id_0_from_every_query():
    mask = array(padding_mask(np.array([[5, 6, 1], [7, 1, 0]])))
    np.testing.assert_array_equal(mask, [[[[True, True, True]]], [[[True, True, False]]]])


def test_causal_mask_shows_a_position_itself_and_what_is_before_it():
    expected = [[True, False, False], [True, True, False], [True, True, True]]
    np.testing.assert_array_equal(array(causal_mask(3))[0, 0], expected)


def test_ancestor_mask_shows_a_hypothesis_the_slots_it_descends_from():
    # Two hypotheses and three positions, of which two are written.
    slots = np.array([[[1, 0, -1], [1, 1, -1]]], "int32")
    expected = [[False, True, True, False, False, False], [False, True, False, True, False, False]]
    np.testing.assert_array_equal(array(ancestor_mask(slots)), [[expected]])


def test_attention_weights_by_hand():
    # d_k = 4, so the scores are halved: exp(2 ln 3 / 2) = 3 against exp(0) = 1.
    query = heads([[np.log(3), 0, 0, 0]])
    key = heads([[2, 0, 0, 9], [0, 5, 5, 0]])
    weights = array(attention_weights(query, [key], np.ones((1, 1, 1, 2), bool)))
    np.testing.assert_allclose(weights[0, 0], [[0.75, 0.25]], rtol=1e-6)


def test_hidden_key_gets_weight_zero_and_the_others_its_share():
    query, key = heads([[1, 1]]), heads([[1, 0], [0, 9], [0, 1]])
    weights = array(attention_weights(query, [key], np.array([[[[True, False, True]]]])))
    np.testing.assert_allclose(weights[0, 0], [[0.5, 0, 0.5]], rtol=1e-6)


def test_query_that_may_look_nowhere_gives_no_nan():
    query, key = heads([[1, 1]]), heads([[1, 0], [0, 9]])
    weights = array(attention_weights(query, [key], np.zeros((1, 1, 1, 2), bool)))
    np.testing.assert_allclose(weights[0, 0], [[0.5, 0.5]])


def test_softmax_is_float32_in_bfloat16():
    rng = np.random.default_rng(0)
    query, key = (
        keras.ops.convert_to_tensor(rng.normal(size=(2, 3, n, 8)), "bfloat16") for n in (4, 50)
    )
    weights = attention_weights(query, [key], np.ones((1, 1, 1, 50), bool))
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    # A weight rounded to bfloat16 is wrong by up to 1/512 of itself.
    np.testing.assert_allclose(array(weights).sum(-1), np.ones((2, 3, 4)), atol=1e-6)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def multi_head(layer, x, memory, mask):
    """Compute section 3.2.2 as printed, head by head, in float64; x [q, d], memory [k, d]."""
    x, memory = x.astype("float64"), memory.astype("float64")

    def project(x, dense, head, width):
        kernel, bias = (array(w) for w in (dense.kernel, dense.bias))
        columns = slice(head * width, (head + 1) * width)
        return x @ kernel[:, columns] + bias[columns]

    heads = []
    for i in range(layer.num_heads):
        query = project(x, layer.query, i, layer.d_k)
        key = project(memory, layer.key, i, layer.d_k)
        value = project(memory, layer.value, i, layer.d_v)
        scores = np.where(mask, query @ key.T / np.sqrt(layer.d_k), -np.inf)
        heads.append(softmax(scores) @ value)
    output = layer.output_projection
    joined = np.concatenate(heads, axis=-1)
    return joined @ array(output.kernel) + array(output.bias)


@pytest.fixture
def layer():
    layer = MultiHeadAttention(d_model=12, num_heads=3, d_k=5, d_v=7)
    layer.build((None, None, 12))
    rng = np.random.default_rng(0)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(0, 0.5, variable.shape).astype("float32"))
    return layer


def test_heads_of_any_width_follow_the_formula(layer):
    rng = np.random.default_rng(1)
    x, memory = (rng.normal(size=(2, n, 12)).astype("float32") for n in (4, 6))
    mask = rng.random((2, 1, 4, 6)) < 0.6
    mask[..., 0] = True
    ours = array(layer.attend(x, [layer.keys_values(memory)], mask)[0])
    theirs = [multi_head(layer, x[i], memory[i], mask[i, 0]) for i in range(2)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_queries_keys_and_values_start_as_parts_of_one_glorot_matrix():
    layer = MultiHeadAttention(d_model=128, num_heads=4, d_k=32, d_v=48)
    layer.build((None, None, 128))
    drawn = [array(part.kernel) for part in (layer.query, layer.key, layer.value)]
    joined = np.concatenate(drawn, axis=1)
    whole = array(keras.initializers.GlorotUniform(seed=1)((128, 4 * (32 + 32 + 48))))
    assert joined.shape == whole.shape
    assert joined.std() == pytest.approx(whole.std(), rel=0.02)
    assert abs(joined).max() == pytest.approx(abs(whole).max(), rel=0.001)
    assert abs(np.corrcoef(drawn[0].ravel(), drawn[1].ravel())[0, 1]) < 0.05  # independent draws
    output = array(layer.output_projection.kernel)  # drawn separately
    assert output.var() == pytest.approx(2 / (128 + 4 * 48), rel=0.05)


def test_called_on_x_alone_it_is_self_attention(layer):
    x = np.random.default_rng(2).normal(size=(1, 4, 12)).astype("float32")
    ours = array(layer(x, causal_mask(4)))
    theirs = multi_head(layer, x[0], x[0], np.tri(4, dtype=bool))
    np.testing.assert_allclose(ours[0], theirs, rtol=1e-4, atol=1e-5)


def test_fused_attention_gives_the_plain_output_and_weights(monkeypatch):
    x = np.random.default_rng(0).normal(size=(2, 4, 16)).astype("float32")
    layer = MultiHeadAttention(16, 2, 8, 8, dtype="mixed_bfloat16")
    mask = padding_mask(np.array([[5, 6, 7, 1], [8, 1, 0, 0]])) & causal_mask(4)
    plain = layer(x, mask, return_attention_scores=True)
    monkeypatch.setattr(fast_ops, "fuses_attention", lambda *inputs: True)
    fused = layer(x, mask, return_attention_scores=True)
    for one, other in zip(fused, plain, strict=True):
        one, other = (array(keras.ops.cast(each, "float32")) for each in (one, other))
        np.testing.assert_allclose(one, other, atol=0.01)
        assert np.abs(other).max() > 0.5


def test_dropped_attention_weights_scale_up_the_rest():
    layer = MultiHeadAttention(d_model=4, num_heads=1, d_k=2, d_v=4, dropout=0.5)
    layer.build((None, None, 4))
    for projection in (layer.value, layer.output_projection):
        projection.kernel.assign(np.eye(4))
    x = np.repeat(np.eye(4)[:1], 8, axis=0)[None].astype("float32")  # eight times the same vector
    mask = np.ones((1, 1, 8, 8), bool)
    np.testing.assert_allclose(array(layer(x, mask)), x, atol=1e-6)
    # Each query keeps k of eight weights of 1/8, and doubles them.
    kept = array(layer(x, mask, training=True))[0, :, 0] * 4
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-5)
    assert len(set(np.round(kept))) > 1


def test_rows_give_what_sentences_give(layer):
    rng = np.random.default_rng(3)
    x, memory = (rng.normal(size=(2, n, 12)).astype("float32") for n in (4, 6))
    mask = rng.random((2, 1, 4, 6)) < 0.6
    expected = array(layer.attend(x, [layer.keys_values(memory)], mask)[0])
    keys_values = layer.keys_values(memory.reshape(12, 12), rows=(2, -1))
    rows = array(layer.attend(x.reshape(8, 12), [keys_values], mask, rows=(-1, 4))[0])
    np.testing.assert_allclose(rows, expected.reshape(8, 12), rtol=1e-5, atol=1e-6)


def test_two_parts_give_what_one_gives(layer):
    rng = np.random.default_rng(4)
    x, memory = (rng.normal(size=(2, n, 12)).astype("float32") for n in (4, 6))
    mask = rng.random((2, 1, 4, 6)) < 0.6
    expected = array(layer.attend(x, [layer.keys_values(memory)], mask)[0])
    parts = [layer.keys_values(memory[:, :4]), layer.keys_values(memory[:, 4:])]
    np.testing.assert_allclose(array(layer.attend(x, parts, mask)[0]), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_mask_of_numbers_gives_what_a_mask_of_booleans_gives(dtype):
    layer = MultiHeadAttention(d_model=12, num_heads=3, d_k=5, d_v=7, dtype=dtype)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2, 4, 12)).astype("float32")
    mask = (rng.random((2, 1, 4, 4)) < 0.6) | np.eye(4, dtype=bool)
    numbers = np.where(mask, 0, -1e9).astype("float32")
    expected, *others = (
        array(keras.ops.cast(layer(x, each), "float32"))
        for each in (mask, numbers, mask.astype("int32"), mask.astype("uint8"))
    )
    for other in others:
        np.testing.assert_allclose(other, expected, atol=1e-5)


@pytest.mark.parametrize(("rate", "count"), [(0.0, 1), (0.5, 0)])
def test_attention_with_dropout_is_not_fused(monkeypatch, rate, count):
    """Dropout acts on weights, which a fused attention does not have."""
    calls = []
    monkeypatch.setattr(fast_ops, "fuses_attention", lambda *_: True)
    monkeypatch.setattr(fast_ops, "attention", lambda *inputs: calls.append(1) or inputs[2])
    layer = MultiHeadAttention(d_model=4, num_heads=1, d_k=2, d_v=2, dropout=rate)
    layer(np.ones((1, 3, 4), "float32"), causal_mask(3))
    assert len(calls) == count


def test_write_cache_changes_one_position_of_a_copy():
    # One sentence, two heads, room for three positions of a beam of two.
    cache = {"key": np.zeros((1, 2, 6, 2), "float32"), "value": np.ones((1, 2, 6, 1), "float32")}
    key = np.arange(8, dtype="float32").reshape(1, 2, 2, 2)
    value = np.full((1, 2, 2, 1), 7, "float32")
    (written,) = write_cache([cache], {"key": key, "value": value}, position=1)
    expected = np.zeros((1, 2, 6, 2))
    expected[:, :, 2:4] = key
    np.testing.assert_array_equal(array(written["key"]), expected)
    np.testing.assert_array_equal(array(written["value"])[0, 1, :, 0], [1, 1, 7, 7, 1, 1])
    np.testing.assert_array_equal(cache["key"], np.zeros((1, 2, 6, 2)))


def test_extend_cache_puts_the_new_behind():
    cache = {"key": np.zeros((1, 2, 4, 1)), "value": np.zeros((1, 2, 4, 3))}
    new = {"key": np.ones((1, 2, 2, 1)), "value": np.ones((1, 2, 2, 3))}
    (extended,) = extend_cache([cache], new)
    np.testing.assert_array_equal(array(extended["key"])[0, 1, :, 0], [0, 0, 0, 0, 1, 1])
    assert extended["value"].shape == (1, 2, 6, 3)
