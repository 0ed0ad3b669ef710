"""Logits, loss and gradients against PyTorch's Transformer in float64, to 1e-4 relative.

The reference is made of torch.nn.TransformerEncoder and TransformerDecoder (post-norm; without the
norm that nn.Transformer adds at the end of a stack), and of embedding, positions and masks written
here from the paper. Errors are of whole arrays: |ours - theirs| / |theirs|, Euclidean norms.
"""

import keras
import numpy as np
import pytest

from t2t_repro.loss import cross_entropy

torch = pytest.importorskip("torch", reason="a dev extra")
tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="takes gradients with TensorFlow"
)

SIZES = {"num_layers": 2, "d_model": 12, "d_ff": 20, "num_heads": 3, "d_k": 4, "d_v": 4}
SOURCE = np.array([[5, 9, 17, 4, 9, 1], [8, 3, 1, 0, 0, 0], [2, 6, 6, 1, 0, 0]], "int32")
TARGET = np.array([[6, 11, 1, 0], [7, 22, 12, 1], [1, 0, 0, 0]], "int32")
TOKENS = TARGET != 0


class Reference(torch.nn.Module):
    def __init__(self, rows, d_model, num_heads, d_ff, num_layers):
        super().__init__()
        self.d_model = d_model
        # Transposed, as all matrices of torch are to ours.
        self.embedding = torch.nn.Parameter(torch.empty(d_model, rows))
        layer = {"dropout": 0.0, "activation": "relu", "layer_norm_eps": 1e-6, "batch_first": True}
        self.encoder = torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(d_model, num_heads, d_ff, **layer),
            num_layers,
            enable_nested_tensor=False,
        )
        self.decoder = torch.nn.TransformerDecoder(
            torch.nn.TransformerDecoderLayer(d_model, num_heads, d_ff, **layer), num_layers
        )
        self.double()

    def embed(self, ids):
        vectors = self.embedding.T[ids] * self.d_model**0.5 * (ids != 0)[:, :, None]
        positions = np.zeros((ids.shape[1], self.d_model))
        for pos, dim in np.ndindex(*positions.shape):
            angle = pos / 10000 ** (dim // 2 * 2 / self.d_model)
            positions[pos, dim] = np.cos(angle) if dim % 2 else np.sin(angle)
        return vectors + torch.from_numpy(positions)

    def forward(self, source, target):
        previous = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], dim=1)
        memory = self.encoder(self.embed(source), src_key_padding_mask=source == 0)
        length = target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.decoder(
            self.embed(previous), memory, tgt_mask=future, memory_key_padding_mask=source == 0
        )
        return x @ self.embedding


def counterparts(ours):
    """(name of the torch parameter, its rows, our variable) of every weight."""

    def dense(ours, path, rows=...):
        yield f"{path}weight", rows, ours.kernel
        yield f"{path}bias", rows, ours.bias

    def attention(ours, path):
        for i, projection in enumerate((ours.query, ours.key, ours.value)):
            yield from dense(projection, f"{path}.in_proj_", slice(12 * i, 12 * (i + 1)))
        yield from dense(ours.output_projection, f"{path}.out_proj.")

    def rest(ours, path, norms):
        yield from attention(ours.self_attention, f"{path}.self_attn")
        yield from dense(ours.feed_forward.inner, f"{path}.linear1.")
        yield from dense(ours.feed_forward.outer, f"{path}.linear2.")
        for i, add_norm in enumerate(norms, start=1):
            yield f"{path}.norm{i}.weight", ..., add_norm.norm.gamma
            yield f"{path}.norm{i}.bias", ..., add_norm.norm.beta

    yield "embedding", ..., ours.embedding.matrix
    for i, layer in enumerate(ours.encoder):
        norms = (layer.self_attention_norm, layer.feed_forward_norm)
        yield from rest(layer, f"encoder.layers.{i}", norms)
    for i, layer in enumerate(ours.decoder):
        norms = (layer.self_attention_norm, layer.cross_attention_norm, layer.feed_forward_norm)
        yield from rest(layer, f"decoder.layers.{i}", norms)
        yield from attention(layer.cross_attention, f"decoder.layers.{i}.multihead_attn")


def relative_error(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


@pytest.fixture(scope="module")
def models(build):
    ours = build(**SIZES)
    theirs = Reference(23, *(SIZES[k] for k in ("d_model", "num_heads", "d_ff", "num_layers")))
    parameters = dict(theirs.named_parameters())
    unset = sum(p.numel() for p in parameters.values())
    for name, rows, variable in counterparts(ours):
        value = torch.from_numpy(variable.numpy().T.astype("float64"))
        parameters[name].data[rows] = value
        unset -= value.numel()
    assert unset == 0
    return ours, theirs


@pytest.fixture(scope="module")
def losses(models):
    """((logits, loss per token, {name and rows: gradient}) of ours, the same of theirs)."""
    ours, theirs = models
    with tf.GradientTape() as tape:
        logits = ours(SOURCE, TARGET)
        smoothed, _, tokens = cross_entropy(logits, TARGET, label_smoothing=0.1)
        loss = smoothed / tokens
    variables = {(name, str(rows)): v.value for name, rows, v in counterparts(ours)}
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
        for name, rows, _ in counterparts(ours)
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
    assert len(errors) == len(ours) - 2 * 3  # one bias of keys in each attention
    assert {key: error for key, error in errors.items() if error >= 1e-4} == {}


def test_bias_of_keys_has_no_gradient(losses):
    # It adds the same to all scores of a query, which the softmax takes away again.
    (_, _, ours), _ = losses
    for (name, rows), gradient in ours.items():
        if name.endswith("in_proj_bias") and rows == str(slice(12, 24)):
            kernel = ours[name.replace("bias", "weight"), rows]
            assert np.linalg.norm(gradient) < 1e-4 * np.linalg.norm(kernel)
