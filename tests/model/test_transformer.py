"""The whole model: its size, what may and may not change its logits, and its cache."""

import collections
import dataclasses

import keras
import numpy as np
import pytest

from t2t_repro.config import Model, variants
from t2t_repro.model import fast_ops
from t2t_repro.model.attention import causal_mask, padding_mask
from t2t_repro.model.transformer import Transformer, shift_right

array = keras.ops.convert_to_numpy

SOURCE = np.array([[8, 3, 1, 0, 0], [5, 9, 17, 4, 1]], "int32")
TARGET = np.array([[6, 11, 1, 0], [7, 22, 12, 1]], "int32")

# Only loops in TensorFlow's graphs allow a cache to grow.
GROWS = pytest.param(
    True,
    marks=pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's cache"),
)


@pytest.fixture(scope="module")
def model(build):
    return build()


def of_table_3(row):
    names = {field.name for field in dataclasses.fields(Model)}
    return Model(**{name: value for name, value in variants()[row].items() if name in names})


BASE = 65_110_016
PARAMETERS = {
    "base": BASE, "A1": BASE, "A2": BASE, "A3": BASE, "A4": BASE, "B1": 58_018_304,
    "B2": 60_382_208, "C1": 35_684_352, "C2": 50_397_184, "C3": 79_822_848, "C4": 27_848_704,
    "C5": 167_944_192, "C6": 52_514_816, "C7": 90_300_416, "D1": BASE, "D2": BASE, "D3": BASE,
    "D4": BASE, "E": BASE + 2 * 256 * 512, "big": 218_300_416,
}  # fmt: skip


@pytest.mark.parametrize("row", variants())
def test_trainable_parameters_of_table_3(row):
    with keras.StatelessScope(initialize_variables=False):  # shapes only: no memory, no time
        model = Transformer(of_table_3(row))
    count = sum(np.prod(variable.shape) for variable in model.trainable_variables)
    keras.utils.clear_session(free_memory=False)
    assert count == PARAMETERS[row]


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="d_model: wanted an even number, got 7"):
        Transformer(Model(num_layers=1, d_model=7, d_ff=5, num_heads=1, d_k=3, d_v=3))


def test_padding_changes_nothing(model):
    batch = array(model(SOURCE, TARGET))
    alone = array(model(SOURCE[:1, :3], TARGET[:1, :3]))
    np.testing.assert_allclose(alone[0], batch[0, :3], atol=1e-5)


@pytest.mark.parametrize("t", range(4))
def test_target_changes_only_logits_behind_it(model, t):
    changed = TARGET.copy()
    changed[:, t] = 19
    difference = np.abs(array(model(SOURCE, changed)) - array(model(SOURCE, TARGET))).max((0, 2))
    np.testing.assert_array_equal(difference[: t + 1], 0)
    assert np.all(difference[t + 1 :] > 1e-3)


def test_layers_give_for_rows_what_they_give_for_sentences(model):
    rng = np.random.default_rng(5)
    encoder, decoder = model.encoder[0], model.decoder[0]
    x, memory = (rng.normal(size=(2, n, model.config.d_model)).astype("float32") for n in (4, 5))
    mask = padding_mask(SOURCE)
    by_sentence = array(encoder(memory, mask))
    by_row = array(encoder(memory.reshape(10, -1), mask, rows=(2, 5)))
    np.testing.assert_allclose(by_row.reshape(memory.shape), by_sentence, atol=1e-5)
    read = decoder.cross_attention.keys_values(memory), mask, causal_mask(4)
    by_sentence = array(decoder(x, *read))
    by_row = array(decoder(x.reshape(8, -1), *read, rows=(2, 4)))
    np.testing.assert_allclose(by_row.reshape(x.shape), by_sentence, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other shapes are all known")
@pytest.mark.parametrize("shape", [(1, None), (None, 5), (None, None), (1, 5)])
def test_sizes_of_a_batch_may_be_unknown_while_a_graph_is_made(model, shape):
    import tensorflow as tf

    ids = [tf.TensorSpec(shape, "int32")] * 2
    in_graph = tf.function(model, input_signature=ids, autograph=False)(
        SOURCE[:1], TARGET[:1, [0, 1, 2, 3, 3]]
    )
    expected = array(model(SOURCE[:1], TARGET[:1, [0, 1, 2, 3, 3]]))
    np.testing.assert_allclose(in_graph, expected, atol=1e-5)


def test_order_of_the_source_matters(model):
    swapped = SOURCE[:, [1, 0, 2, 3, 4]]
    difference = np.abs(array(model(swapped, TARGET)) - array(model(SOURCE, TARGET)))
    assert np.all(difference.max((1, 2)) > 1e-3)


def test_writing_the_shared_matrix_changes_source_target_and_logits(build):
    model = build()
    before = array(model(SOURCE, TARGET))
    matrix = array(model.embedding.matrix).copy()
    matrix[[8, 7, 2]] += 1.0  # 8 is in the first source, 7 in the second target, 2 in neither
    model.embedding.matrix.assign(matrix)
    difference = np.abs(array(model(SOURCE, TARGET)) - before)
    assert np.all(difference[0, :, 3] > 1e-4)  # through the source; row 3 is unchanged
    assert difference[1, 0, 3] < 1e-6  # before the 7 of the target
    assert np.all(difference[1, 1:, 3] > 1e-4)  # through the target
    assert difference[1, 0, 2] > 1e-4  # through the map to logits


def start(model, source, beam_size, room, grows):
    """Return a function (tokens [b, m], ancestors [b, m, t], position) -> logits [b, m, v]."""
    mask = padding_mask(source)
    memory = model.memory(model.encode(source, mask))
    state = {"cache": model.empty_cache(len(source), 0 if grows else room * beam_size)}

    def step(tokens, ancestors, position):
        slots = np.full((*tokens.shape, room), -1, "int32")
        slots[:, :, :position] = ancestors
        slots[:, :, position] = np.arange(beam_size)
        x, state["cache"] = model.decode_step(
            tokens, memory, mask, slots, state["cache"], position, grows
        )
        return array(model.embedding.logits(x)).reshape(*tokens.shape, -1)

    return step


@pytest.mark.filterwarnings("ignore:.*You are using a softmax over axis")  # one key at first
@pytest.mark.parametrize("grows", [GROWS, False])
@pytest.mark.parametrize("changes", [{}, {"learned_positions": 3}], ids=["sinusoids", "learned"])
def test_cached_steps_equal_teacher_forcing(build, changes, grows):
    model = build(**changes)
    expected = array(model(SOURCE, TARGET))
    previous = array(shift_right(TARGET))
    step = start(
        model, SOURCE, beam_size=1, room=6, grows=grows
    )  # two positions more than are used
    for t in range(4):
        logits = step(previous[:, t, None], np.zeros((2, 1, t)), t)
        np.testing.assert_allclose(logits[:, 0], expected[:, t], atol=1e-5)


@pytest.mark.parametrize("grows", [GROWS, False])
def test_cached_steps_equal_teacher_forcing_when_hypotheses_change_places(model, grows):
    """Two sentences, a beam of three; hypotheses are swapped, copied or dropped after two steps."""
    rng = np.random.default_rng(0)
    prefix, rest = rng.integers(2, 23, (2, 3, 2)), rng.integers(2, 23, (2, 3, 2))
    parent = np.array([[2, 0, 0], [1, 1, 2]])
    survivors = np.take_along_axis(prefix, parent[:, :, None], axis=1)
    target = np.concatenate([survivors, rest], axis=2).astype("int32")  # [b, m, t]
    expected = array(model(np.repeat(SOURCE, 3, axis=0), target.reshape(6, 4)))
    expected = expected.reshape(2, 3, 4, 23)

    step = start(model, SOURCE, beam_size=3, room=4, grows=grows)
    own = np.tile(np.arange(3), (2, 1))
    step(np.zeros((2, 3), "int32"), np.zeros((2, 3, 0)), 0)
    step(prefix[:, :, 0], own[:, :, None], 1)
    ancestors = np.stack([parent, parent], axis=2)
    np.testing.assert_allclose(step(target[:, :, 1], ancestors, 2), expected[:, :, 2], atol=1e-5)
    ancestors = np.concatenate([ancestors, own[:, :, None]], axis=2)
    np.testing.assert_allclose(step(target[:, :, 2], ancestors, 3), expected[:, :, 3], atol=1e-5)


def test_attention_is_what_the_layers_use(build):
    model = build()
    before = array(model(SOURCE, TARGET))
    weights = model.attention(SOURCE, TARGET)
    assert all(keras.backend.standardize_dtype(maps.dtype) == "float32" for maps in weights)
    encoder, decoder, cross = (array(maps) for maps in weights)
    assert encoder.shape == (2, 2, 3, 5, 5)
    assert decoder.shape == (2, 2, 3, 4, 4)
    assert cross.shape == (2, 2, 3, 4, 5)
    for maps in (encoder, decoder, cross):
        np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-6)
    assert not encoder[:, 0, :, :, 3:].any()  # the padding of the first source
    assert not cross[:, 0, :, :, 3:].any()
    assert not decoder[..., ~np.tri(4, dtype=bool)].any()
    np.testing.assert_array_equal(array(model(SOURCE, TARGET)), before)


def test_attention_of_the_decoder_comes_from_the_tokens_before(build):
    """Row 2 is the first that has read token 1."""
    model, changed = build(), TARGET.copy()
    changed[:, 1] -= 3
    _, *first = model.attention(SOURCE, TARGET)
    _, *other = model.attention(SOURCE, changed)
    for one, two in zip(map(array, first), map(array, other), strict=True):
        np.testing.assert_array_equal(one[..., :2, :], two[..., :2, :])
        assert np.abs(one[..., 2, :] - two[..., 2, :]).max() > 1e-3


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_attention_of_the_first_layer_by_hand(build):
    """Equation 1 in float64 from the embedded source."""
    model = build()
    x = array(model.source_positions(model.embedding(SOURCE))).astype("float64")
    attention = model.encoder[0].self_attention
    query, key = (
        (x @ array(dense.kernel) + array(dense.bias)).reshape(2, 5, 3, 5).swapaxes(1, 2)
        for dense in (attention.query, attention.key)
    )
    scores = query @ key.swapaxes(2, 3) / np.sqrt(5)
    expected = softmax(np.where((SOURCE != 0)[:, None, None, :], scores, -np.inf))
    np.testing.assert_allclose(array(model.attention(SOURCE, TARGET).encoder)[0], expected, 1e-4)


def test_dropout_acts_on_every_sublayer_and_embedding_in_training_only(build, monkeypatch):
    masks, attentions = collections.Counter(), collections.Counter()

    def mask(shape, rate, seed):
        masks[rate] += 1
        return np.ones(shape, bool)

    def call(self, inputs, training=False):
        attentions[self.rate, training] += 1
        return inputs

    monkeypatch.setattr(fast_ops, "dropout_mask", mask)
    monkeypatch.setattr(keras.layers.Dropout, "call", call)
    model = build(dropout=0.3, attention_dropout=0.2)
    model(SOURCE, TARGET, training=True)
    # Two sums of embedding and position; in each of two layers 2 + 3 sub-layers, 1 + 2 attentions.
    assert masks == {0.3: 2 + 2 * (2 + 3)}
    assert attentions == {(0.2, True): 2 * (1 + 2)}
    model(SOURCE, TARGET)
    assert masks.total() == 12
    assert attentions == {(0.2, True): 2 * (1 + 2), (0.2, False): 2 * (1 + 2)}


def test_training_is_random_and_translating_is_not(build):
    model = build(dropout=0.5)
    first, second = (array(model(SOURCE, TARGET, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-2
    np.testing.assert_array_equal(array(model(SOURCE, TARGET)), array(model(SOURCE, TARGET)))


def test_bfloat16_model_gives_float32_logits_near_those_of_float32(build, model):
    low = build(dtype="mixed_bfloat16")
    logits = low(SOURCE, TARGET)
    assert {variable.dtype for variable in low.trainable_variables} == {"float32"}
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    error = np.abs(array(logits) - array(model(SOURCE, TARGET)))
    assert 0 < error.max() < 0.1


def test_saved_weights_give_the_same_logits(build, model, tmp_path):
    model.save_weights(tmp_path / "tiny.weights.h5")
    other = build(seed=2)
    assert np.abs(array(other(SOURCE, TARGET)) - array(model(SOURCE, TARGET))).max() > 0.1
    other.load_weights(tmp_path / "tiny.weights.h5")
    np.testing.assert_array_equal(array(other(SOURCE, TARGET)), array(model(SOURCE, TARGET)))


def test_shift_right_starts_with_padding_and_drops_the_last():
    target = np.array([[5, 6, 1], [7, 1, 0]], "int32")
    shifted = keras.ops.convert_to_numpy(shift_right(target))
    np.testing.assert_array_equal(shifted, [[0, 5, 6], [0, 7, 1]])
