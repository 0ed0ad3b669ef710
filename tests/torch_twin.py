"""The paper's Transformer and its training in PyTorch, an independent implementation.

The stacks are torch.nn.TransformerEncoder and TransformerDecoder (post-norm; without the norm that
nn.Transformer adds at the end of a stack). Embedding, positions, masks and schedule are written
here from the paper. There is no dropout.

Axes: b batch, s source positions, t target positions, n either, d d_model, v rows.
"""

import torch
from torch import nn
from torch.nn import functional

PAD = 0


class Twin(nn.Module):
    """twin(source [b, s], target [b, t]) -> logits [b, t, v] of teacher forcing.

    The weights are copied from `ours`, a Transformer whose d_k and d_v are d / h, as in torch.
    """

    def __init__(self, ours):
        super().__init__()
        config = ours.config
        rows = ours.embedding.matrix.shape[0]
        # Transposed, like all matrices in torch compared with ours.
        self.embedding = nn.Parameter(torch.empty(config.d_model, rows))
        sizes = (config.d_model, config.num_heads, config.d_ff)
        layer = {"dropout": 0.0, "activation": "relu", "layer_norm_eps": 1e-6, "batch_first": True}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*sizes, **layer),
            config.num_layers,
            enable_nested_tensor=False,
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*sizes, **layer), config.num_layers
        )
        self._take(ours)

    def _take(self, ours):
        parameters = dict(self.named_parameters())
        unset = sum(parameter.numel() for parameter in parameters.values())
        for name, rows, variable in counterparts(ours):
            value = torch.from_numpy(variable.numpy().T)
            parameters[name].data[rows] = value
            unset -= value.numel()
        assert unset == 0

    def embed(self, ids):
        """Embed ids [b, n], with PAD as the zero vector, and add positions -> [b, n, d]."""
        d_model = self.embedding.shape[0]
        vectors = self.embedding.T[ids] * d_model**0.5 * (ids != PAD)[:, :, None]
        dims = torch.arange(0, d_model, 2, dtype=torch.float64)
        angles = torch.arange(ids.shape[1])[:, None] / 10000 ** (dims / d_model)
        positions = torch.zeros(ids.shape[1], d_model, dtype=torch.float64)
        positions[:, 0::2], positions[:, 1::2] = angles.sin(), angles.cos()
        return vectors + positions.to(vectors.dtype)

    def forward(self, source, target):
        padding = source == PAD
        memory = self.encoder(self.embed(source), src_key_padding_mask=padding)
        length = target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.decoder(
            self.embed(functional.pad(target, (1, 0), value=PAD)[:, :-1]),
            memory,
            tgt_mask=future,
            memory_key_padding_mask=padding,
        )
        return x @ self.embedding


def counterparts(ours):
    """Yield (torch parameter's name, its rows, our variable, their transpose) for all variables."""
    d_model = ours.config.d_model

    def dense(ours, path, rows=...):
        yield f"{path}weight", rows, ours.kernel
        yield f"{path}bias", rows, ours.bias

    def attention(ours, path):
        for i, projection in enumerate((ours.query, ours.key, ours.value)):
            yield from dense(projection, f"{path}.in_proj_", slice(d_model * i, d_model * (i + 1)))
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


class Training:
    """Adam with the constants and the schedule of section 5.3, and the loss of 5.4.

    Epsilon enters in different places: torch's Adam divides by sqrt(v / (1 - beta_2^t)) + epsilon,
    as the algorithm is printed in Adam's paper; Keras and TensorFlow divide by sqrt(v) + epsilon,
    with the bias correction outside. Their formula equals torch's with
    epsilon / sqrt(1 - beta_2^t), which is 7.1e-9 at first and 1e-9 later. The
    difference shows in tiny gradients only.
    """

    def __init__(self, twin, warmup_steps, label_smoothing=0.1):
        self.twin, self.label_smoothing = twin, label_smoothing
        self.adam = torch.optim.Adam(twin.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
        d_model = twin.embedding.shape[0]

        def rate(done):
            step = done + 1
            return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)

        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.adam, rate)

    def loss(self, source, target):
        """Return the mean loss per target token of a batch."""
        source, target = (torch.as_tensor(ids).long() for ids in (source, target))
        filled = (target != PAD).any(1)  # a batch may have an empty row, which attends to nothing
        logits = self.twin(source[filled], target[filled])
        return functional.cross_entropy(
            logits.flatten(0, 1),
            target[filled].flatten(),
            ignore_index=PAD,
            label_smoothing=self.label_smoothing,
        )

    def step(self, source, target):
        """Make one update and return the loss before it."""
        self.adam.zero_grad()
        loss = self.loss(source, target)
        loss.backward()
        self.adam.step()
        self.schedule.step()
        return loss.item()
