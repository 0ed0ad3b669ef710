"""Logits, loss and gradients against PyTorch's Transformer (`torch_twin`) in float64, to 1e-4.

Errors are relative errors of whole arrays: |ours - theirs| / |theirs|, in Euclidean norms.
"""

import keras
import numpy as np
import pytest

from t2t_repro.training.loss import cross_entropy

torch = pytest.importorskip("torch", reason="a dev extra")
torch_twin = pytest.importorskip("torch_twin")
tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="takes gradients with TensorFlow"
)

SIZES = {"num_layers": 2, "d_model": 12, "d_ff": 20, "num_heads": 3, "d_k": 4, "d_v": 4}
SOURCE = np.array([[5, 9, 17, 4, 9, 1], [8, 3, 1, 0, 0, 0], [2, 6, 6, 1, 0, 0]], "int32")
TARGET = np.array([[6, 11, 1, 0], [7, 22, 12, 1], [1, 0, 0, 0]], "int32")
TOKENS = TARGET != 0


def relative_error(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


@pytest.fixture(scope="module")
def models(build):
    ours = build(**SIZES)
    return ours, torch_twin.Twin(ours).double()


@pytest.fixture(scope="module")
def losses(models):
    """Return ((logits, loss per token, {name and rows: gradient}) of ours, the same of theirs)."""
    ours, theirs = models
    with tf.GradientTape() as tape:
        logits = ours(SOURCE, TARGET)
        smoothed, _, tokens = cross_entropy(logits, TARGET, label_smoothing=0.1)
        loss = smoothed / tokens
    variables = {(name, str(rows)): v.value for name, rows, v in torch_twin.counterparts(ours)}
    assert len(variables) == len(ours.trainable_variables)
    gradients = {
        key: tf.convert_to_tensor(gradient).numpy().T
        for key, gradient in tape.gradient(loss, variables).items()
    }

    their_logits = theirs(*(torch.from_numpy(ids).long() for ids in (SOURCE, TARGET)))
    their_loss = torch.nn.functional.cross_entropy(
        their_logits.flatten(0, 1),
        torch.from_numpy(TARGET).long().flatten(),
        label_smoothing=0.1,
        ignore_index=0,
        reduction="sum",
    ) / int(TOKENS.sum())
    their_loss.backward()
    parameters = dict(theirs.named_parameters())
    their_gradients = {
        (name, str(rows)): parameters[name].grad[rows].numpy()
        for name, rows, _ in torch_twin.counterparts(ours)
    }
    return (
        (logits.numpy(), float(loss), gradients),
        (their_logits.detach().numpy(), their_loss.item(), their_gradients),
    )


def test_logits_equal_the_reference(losses):
    (ours, _, _), (theirs, _, _) = losses
    assert relative_error(ours[TOKENS], theirs[TOKENS]) < 1e-4


def test_loss_equals_the_reference(losses):
    (_, ours, _), (_, theirs, _) = losses
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_gradient_of_every_variable_equals_the_reference(losses):
    (_, _, ours), (_, _, theirs) = losses
    keys_bias = str(slice(12, 24))
    errors = {
        key: relative_error(gradient, theirs[key])
        for key, gradient in ours.items()
        if not (key[0].endswith("in_proj_bias") and key[1] == keys_bias)
    }
    assert len(errors) == len(ours) - 2 * 3  # each attention has a bias of its keys
    assert {key: error for key, error in errors.items() if error >= 1e-4} == {}


def test_bias_of_keys_has_no_gradient(losses):
    # It adds the same number to all scores of a query, which leaves the softmax unchanged.
    (_, _, ours), _ = losses
    for (name, rows), gradient in ours.items():
        if name.endswith("in_proj_bias") and rows == str(slice(12, 24)):
            kernel = ours[name.replace("bias", "weight"), rows]
            assert np.linalg.norm(gradient) < 1e-4 * np.linalg.norm(kernel)
