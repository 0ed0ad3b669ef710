"""Frozen parts stay as they are, the others learn, and a wrong name is refused."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.errors import BadInput
from t2t_repro.config import Train
from t2t_repro.training.freezing import freeze
from t2t_repro.training.trainer import Trainer


@pytest.mark.parametrize(
    ("parts", "frozen"),
    [
        ("encoder", {"encoder_0", "encoder_1"}),
        ("embedding,decoder_1", {"embedding", "decoder_1"}),
        ("encoder_0/feed_forward", {"encoder_0"}),
    ],
)
def test_a_name_stands_for_all_weights_below_it(build, parts, frozen):
    model = build()
    freeze(model, parts)
    paths = [w.path.removeprefix("transformer/") for w in model.weights if not w.trainable]
    assert {path.split("/")[0] for path in paths} == frozen
    if "/" in parts:
        assert all(path.startswith(parts) for path in paths)


def test_a_stack_is_all_of_its_layers_however_many(build):
    model = build(num_layers=11)
    freeze(model, "encoder")
    assert not [weight for layer in model.encoder for weight in layer.trainable_variables]


@pytest.mark.parametrize("parts", ["encode", "encoder_", "encoder,", "encoder_2", "kernel"])
def test_an_unknown_name_is_refused_with_the_known_ones(build, parts):
    with pytest.raises(BadInput, match="wanted some of embedding, encoder, decoder, one of"):
        freeze(build(), parts)


def test_something_has_to_be_left_to_train(build):
    with pytest.raises(BadInput, match="nothing is left to train"):
        freeze(build(), "embedding,encoder,decoder")


@pytest.mark.slow
def test_a_step_changes_the_other_weights_alone(build):
    model = build(dropout=0.0)
    freeze(model, "embedding,encoder")
    trainer = Trainer(model, Train(), tf.distribute.get_strategy())
    before = [weight.numpy() for weight in model.weights]
    trainer.step(np.int32([[5, 6, 1]]), np.int32([[7, 8, 1]]))
    for weight, old in zip(model.weights, before, strict=True):
        has_changed = not np.array_equal(weight.numpy(), old)
        assert has_changed <= weight.trainable
        # The biases of keys have no gradient: softmax takes no notice of a constant.
        assert has_changed or not weight.trainable or weight.path.endswith("key/bias")
    graph = trainer.step.get_concrete_function().graph
    calls = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    # Each layer and the loss are called, and the gradients of the decoder's layers and the loss.
    assert len(calls) == len(model.encoder) + 2 * len(model.decoder) + 2
    backward = [call for call in calls if "backward" in call.get_attr("f").name]
    assert len(backward) == len(model.decoder) + 1
    shapes = [output.shape for call in backward for output in call.outputs]
    assert model.embedding.matrix.shape not in shapes
