"""The paper's Transformer and its training in PyTorch: from the paper, of torch's own parts.

It shares no code with t2t_repro. `test_torch_twin` trains both on the same batches, from the same
weights and without dropout, which this one does not have.

Axes: b batch, h heads, s source positions, t target positions, n either, d d_model, v rows.
"""

import torch
from torch import nn
from torch.nn import functional

PAD = 0
# From the name of a weight of ours to that of the twin's: these replacements, one after another.
NAMES = {
    "embedding/matrix": "matrix",
    "transformer/encoder_": "encoder.",
    "transformer/decoder_": "decoder.",
    "self_attention_norm/norm/": "self_attention_norm.",
    "cross_attention_norm/norm/": "cross_attention_norm.",
    "feed_forward_norm/norm/": "feed_forward_norm.",
    "feed_forward/inner/": "feed_forward.0.",
    "feed_forward/outer/": "feed_forward.2.",
    "output_projection/": "output.",
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "/": ".",
}


def twin_name(path):
    """Of our weight: transformer/encoder_0/self_attention/key/kernel is encoder.0....key.weight."""
    for ours, theirs in NAMES.items():
        path = path.replace(ours, theirs)
    return path


class Attention(nn.Module):
    def __init__(self, d_model, num_heads, d_k, d_v):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, num_heads * d_k)
        self.key = nn.Linear(d_model, num_heads * d_k)
        self.value = nn.Linear(d_model, num_heads * d_v)
        self.output = nn.Linear(num_heads * d_v, d_model)

    def forward(self, x, memory, **mask):
        def split(y):  # [b, n, h * width] -> [b, h, n, width]
            return y.unflatten(2, (self.num_heads, -1)).transpose(1, 2)

        query, key, value = self.query(x), self.key(memory), self.value(memory)
        heads = functional.scaled_dot_product_attention(*map(split, (query, key, value)), **mask)
        return self.output(heads.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Of the encoder; with attention over a memory, of the decoder."""

    def __init__(self, d_model, d_ff, num_heads, d_k, d_v, is_decoder):
        super().__init__()
        self.self_attention = Attention(d_model, num_heads, d_k, d_v)
        self.self_attention_norm = nn.LayerNorm(d_model, eps=1e-6)
        if is_decoder:
            self.cross_attention = Attention(d_model, num_heads, d_k, d_v)
            self.cross_attention_norm = nn.LayerNorm(d_model, eps=1e-6)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model)
        )
        self.feed_forward_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, x, source_mask, memory=None):
        mask = {"attn_mask": source_mask} if memory is None else {"is_causal": True}
        x = self.self_attention_norm(x + self.self_attention(x, x, **mask))
        if memory is not None:
            attended = self.cross_attention(x, memory, attn_mask=source_mask)
            x = self.cross_attention_norm(x + attended)
        return self.feed_forward_norm(x + self.feed_forward(x))


class Twin(nn.Module):
    """twin(source [b, s], target [b, t]) -> logits [b, t, v] of teacher forcing."""

    def __init__(self, rows, num_layers, d_model, d_ff, num_heads, d_k, d_v):
        super().__init__()
        self.matrix = nn.Parameter(torch.empty(rows, d_model))
        sizes = (d_model, d_ff, num_heads, d_k, d_v)
        self.encoder = nn.ModuleList(Layer(*sizes, is_decoder=False) for _ in range(num_layers))
        self.decoder = nn.ModuleList(Layer(*sizes, is_decoder=True) for _ in range(num_layers))

    def take(self, weights):
        """{our name: array}, all of them; a matrix of torch is ours transposed."""
        self.load_state_dict(
            {
                twin_name(path): torch.tensor(value.T if path.endswith("kernel") else value)
                for path, value in weights.items()
            }
        )

    def embed(self, ids):
        """Ids [b, n] -> [b, n, d], PAD as the zero vector, positions added."""
        d_model = self.matrix.shape[1]
        vectors = functional.embedding(ids, self.matrix) * d_model**0.5
        vectors = vectors.masked_fill((ids == PAD)[:, :, None], 0.0)
        dims = torch.arange(0, d_model, 2, dtype=torch.float64)
        angles = torch.arange(ids.shape[1])[:, None] / 10000 ** (dims / d_model)
        positions = torch.zeros(ids.shape[1], d_model, dtype=torch.float64)
        positions[:, 0::2], positions[:, 1::2] = angles.sin(), angles.cos()
        return vectors + positions.to(vectors.dtype)

    def forward(self, source, target):
        source_mask = (source != PAD)[:, None, None, :]
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, source_mask)
        x = self.embed(functional.pad(target, (1, 0), value=PAD)[:, :-1])
        for layer in self.decoder:
            x = layer(x, source_mask, memory)
        return x @ self.matrix.T


class Training:
    """Section 5.3, Adam's constants included, and the loss of 5.4.

    Where epsilon enters: torch's Adam divides by sqrt(v / (1 - beta_2^t)) + epsilon, as the
    algorithm is printed in its paper; Keras's and TensorFlow's by sqrt(v) + epsilon, with the
    bias correction outside. Theirs is torch's with epsilon / sqrt(1 - beta_2^t): 7.1e-9 at first,
    1e-9 later. Tiny gradients show it (base's first update of its last layer's queries and keys
    differs by 7 % of the rate), its loss does not: by 2e-7 in 8 updates in float64.
    """

    def __init__(self, twin, warmup_steps, label_smoothing=0.1):
        self.twin, self.label_smoothing = twin, label_smoothing
        self.adam = torch.optim.Adam(twin.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
        d_model = twin.matrix.shape[1]

        def rate(done):
            step = done + 1
            return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)

        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.adam, rate)

    def loss(self, source, target):
        """Summed over the tokens of a batch and divided by their number."""
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
        """One update; returns the loss before it."""
        self.adam.zero_grad()
        loss = self.loss(source, target)
        loss.backward()
        self.adam.step()
        self.schedule.step()
        return loss.item()
