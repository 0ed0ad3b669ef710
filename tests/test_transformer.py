"""The whole model: its size, what may and may not change its logits, and its cache."""

import collections
import dataclasses

import keras
import numpy as np
import pytest

from t2t_repro.attention import padding_mask
from t2t_repro.config import Model, variants
from t2t_repro.decoding import reorder_cache
from t2t_repro.loss import shift_right
from t2t_repro.transformer import Transformer

array = keras.ops.convert_to_numpy

SOURCE = np.array([[8, 3, 1, 0, 0], [5, 9, 17, 4, 1]], "int32")
TARGET = np.array([[6, 11, 1, 0], [7, 22, 12, 1]], "int32")


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
    "D4": BASE, "E": BASE + 2 * 1024 * 512, "big": 218_300_416,
}  # fmt: skip


@pytest.mark.parametrize("row", variants())
def test_trainable_parameters_of_table_3(row):
    with keras.StatelessScope(initialize_variables=False):  # shapes only: no memory, no time
        model = Transformer(of_table_3(row))
    count = sum(np.prod(variable.shape) for variable in model.trainable_variables)
    keras.utils.clear_session(free_memory=False)
    assert count == PARAMETERS[row]


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


def test_order_of_the_source_matters(model):
    swapped = SOURCE[:, [1, 0, 2, 3, 4]]
    difference = np.abs(array(model(swapped, TARGET)) - array(model(SOURCE, TARGET)))
    assert np.all(difference.max((1, 2)) > 1e-3)


def test_writing_the_shared_matrix_changes_source_target_and_logits(build):
    model = build()
    before = array(model(SOURCE, TARGET))
    matrix = array(model.embedding.matrix).copy()
    matrix[[8, 7, 2]] += 1.0  # 8 is read by the first source, 7 by the second target, 2 by none
    model.embedding.matrix.assign(matrix)
    difference = np.abs(array(model(SOURCE, TARGET)) - before)
    assert np.all(difference[0, :, 3] > 1e-4)  # through the source, of row 3, which is as it was
    assert difference[1, 0, 3] < 1e-6  # before the 7 of the target
    assert np.all(difference[1, 1:, 3] > 1e-4)  # through the target
    assert difference[1, 0, 2] > 1e-4  # through the map to logits


def start(model, source, length):
    """A function (token ids [b], position) -> logits [b, v] that keeps a cache, and the cache."""
    mask = padding_mask(source)
    memory = model.memory(model.encode(source, mask))
    state = {"cache": model.empty_cache(len(source), length)}

    def step(tokens, position):
        logits, state["cache"] = model.decode(
            tokens[:, None], memory, mask, state["cache"], position
        )
        return array(logits)[:, 0]

    return step, state


@pytest.mark.parametrize("changes", [{}, {"learned_positions": 3}], ids=["sinusoids", "learned"])
def test_cached_steps_equal_teacher_forcing(build, changes):
    model = build(**changes)
    expected = array(model(SOURCE, TARGET))
    previous = array(shift_right(TARGET))
    step, _ = start(model, SOURCE, length=6)  # two positions more than are used
    for t in range(4):
        np.testing.assert_allclose(step(previous[:, t], t), expected[:, t], atol=1e-5)


def test_cached_steps_equal_teacher_forcing_after_reordering(model):
    """Two sentences, a beam of three; after two steps hypotheses are swapped, doubled, dropped."""
    rng = np.random.default_rng(0)
    source = np.repeat(SOURCE, 3, axis=0)
    prefix, rest = rng.integers(2, 23, (6, 2)), rng.integers(2, 23, (6, 2))
    parent = np.array([[2, 0, 0], [1, 1, 2]], "int32")
    target = np.concatenate([prefix[[2, 0, 0, 4, 4, 5]], rest], axis=1).astype("int32")
    expected = array(model(source, target))

    step, state = start(model, source, length=4)
    step(np.zeros(6, "int32"), 0)
    step(prefix[:, 0], 1)
    state["cache"] = reorder_cache(state["cache"], parent)
    for t in (2, 3):
        np.testing.assert_allclose(step(target[:, t - 1], t), expected[:, t], atol=1e-5)


def test_dropout_acts_on_every_sublayer_and_embedding_in_training_only(build, monkeypatch):
    calls = collections.Counter()

    def call(self, inputs, training=False):
        calls[self.rate, training] += 1
        return inputs

    monkeypatch.setattr(keras.layers.Dropout, "call", call)
    model = build(dropout=0.3, attention_dropout=0.2)
    model(SOURCE, TARGET, training=True)
    # Two sums of embedding and position; in each of two layers 2 + 3 sub-layers, 1 + 2 attentions.
    assert calls == {(0.3, True): 2 + 2 * (2 + 3), (0.2, True): 2 * (1 + 2)}
    calls.clear()
    model(SOURCE, TARGET)
    assert {training for _, training in calls} == {False}


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
