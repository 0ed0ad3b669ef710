"""A Transformer as a folder in KerasHub's layout: written, read, and refused when it is damaged."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest

from pipelines.errors import BadInput
from t2t_repro.model.preset import CONFIG, METADATA, WEIGHTS
from t2t_repro.model.table1_layers import RestrictedSelfAttention
from t2t_repro.model.transformer import Transformer

SOURCE = np.array([[8, 3, 1, 0, 0], [5, 9, 17, 4, 1]], "int32")
TARGET = np.array([[6, 11, 1, 0], [7, 22, 12, 1]], "int32")


def logits(model):
    return keras.ops.convert_to_numpy(model(SOURCE, TARGET))


@pytest.fixture
def restricted(build):
    layer = RestrictedSelfAttention(4, d_model=12, num_heads=3, d_k=5, d_v=7, dropout=0.25)
    return Transformer(build().config, dtype="mixed_bfloat16", self_attention=layer, name="mine")


@pytest.fixture(scope="module")
def saved(build, tmp_path_factory):
    directory = tmp_path_factory.mktemp("preset")
    build(learned_positions=7).save_to_preset(directory)
    return directory


@pytest.fixture
def preset(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "preset")


@pytest.mark.slow
def test_the_same_model_comes_back(build, restricted, tmp_path):
    for number, model in enumerate((build(learned_positions=7), restricted)):
        model.save_to_preset(tmp_path / str(number))
        other = Transformer.from_preset(tmp_path / str(number))
        assert other.get_config() == model.get_config()
        np.testing.assert_array_equal(logits(other), logits(model))


@keras.saving.register_keras_serializable("test_preset")
class Mixing(keras.layers.Layer):
    """A self-attention with a text and a null among its arguments."""

    def __init__(self, activation="relu", scale=1.0, more=(), **kwargs):
        super().__init__(**kwargs)
        self.activation, self.scale, self.more = activation, scale, more

    def call(self, x, attention_mask):
        return keras.activations.get(self.activation)(x) * (self.scale or 2.0)

    def get_config(self):
        own = {"activation": self.activation, "scale": self.scale, "more": self.more}
        return super().get_config() | own


def test_a_layer_of_the_users_keeps_its_arguments(build, tmp_path):
    model = Transformer(build().config, self_attention=Mixing("tanh", None, more=None))
    model.save_to_preset(tmp_path)
    other = Transformer.from_preset(tmp_path)
    np.testing.assert_array_equal(logits(other), logits(model))


def test_a_layer_of_the_users_may_have_fewer_weights_than_attention(build, tmp_path):
    config = dataclasses.replace(build().config, d_k=500)
    Transformer(config, self_attention=Mixing("tanh", None, more=None)).save_to_preset(tmp_path)
    assert Transformer.from_preset(tmp_path).config == config


@keras.saving.register_keras_serializable("test_preset")
class Mine(Transformer):
    """A subclass, which the reader of presets does not make."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Mine, "a test_preset>Mine; wanted a t2t_repro>Transformer"),
        (lambda c: Transformer(c, dtype="mixed_float16"), "precision: wanted float32 or mixed_b"),
        (lambda c: Transformer(c, self_attention=Mixing(more=[1])), "more: wanted a number, text"),
    ],
    ids=["subclass", "type", "list"],
)
def test_what_could_not_be_read_again_is_not_written(build, tmp_path, make, words):
    model = make(build().config)
    with pytest.raises(BadInput, match=f"cannot hold this model .*{words}.*`model.save` can"):
        model.save_to_preset(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_layout_is_kerashubs(preset):
    """Keras's own functions, which KerasHub calls, make the model from the folder."""
    assert {path.name for path in preset.iterdir()} == {CONFIG, METADATA, WEIGHTS}
    described = json.loads((preset / CONFIG).read_text())
    model = keras.saving.deserialize_keras_object(described)
    model.load_weights(preset / WEIGHTS)
    np.testing.assert_array_equal(logits(model), logits(Transformer.from_preset(preset)))
    metadata = json.loads((preset / METADATA).read_text())
    assert metadata["parameter_count"] == model.count_params()


def changed(preset, change):
    described = json.loads((preset / CONFIG).read_text())
    change(described)
    (preset / CONFIG).write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(registered_name="keras>Lambda"), "a keras>Lambda; wanted a t2t_repro>"),
        (lambda d: d.pop("config"), "'config'"),
        (lambda d: d["config"]["config"].update(num_layers="two"), "wanted a whole number"),
        (lambda d: d["config"]["config"].update(d_ff=200_000), "bytes, too few for"),
        (lambda d: d["config"].update(dtype={"config": {"name": "int8"}}), "wanted float32 or"),
        (
            lambda d: d["config"].update(
                self_attention={"registered_name": "os>system", "module": "os", "config": {}}
            ),
            "no layer os>system",
        ),
        (lambda d: d["config"]["config"].update(d_ff=19), "model.weights.h5"),
    ],
)
def test_a_config_that_cannot_be_used(preset, change, words):
    changed(preset, change)
    with pytest.raises(BadInput, match=words):
        Transformer.from_preset(preset)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_file_that_is_damaged_or_missing(preset, name):
    whole = (preset / name).read_bytes()
    (preset / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="not a usable preset"):
        Transformer.from_preset(preset)
    (preset / name).unlink()
    with pytest.raises(BadInput, match=f"not a usable preset .{name}"):
        Transformer.from_preset(preset)


def test_a_preset_that_is_written_again_is_not_complete_before_its_end(build, preset, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Transformer, "save_weights", killed)
    with pytest.raises(KeyboardInterrupt):
        build().save_to_preset(preset)
    assert not (preset / CONFIG).exists()
