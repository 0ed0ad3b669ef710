"""The models in PyTorch that `peer_training.py` measures."""

from __future__ import annotations

import argparse
import math
import types
from collections.abc import Callable

import torch
from peer_training import BOS, FIRST, PAD, Workload
from torch import nn


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` as the paper's model: post-norm, one matrix, sinusoids."""

    def __init__(self, workload: Workload):
        super().__init__()
        length, width, layers = workload.length, workload.d_model, workload.layers
        self.embedding = nn.Embedding(workload.rows, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        sizes = width, workload.heads, layers, layers, workload.d_ff
        self.transformer = nn.Transformer(*sizes, dropout=0.1, batch_first=True)
        self.transformer.encoder.norm = self.transformer.decoder.norm = None  # as in the paper
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # on attention weights
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0  # inside the feed-forward layer
        angles = torch.arange(length)[:, None] * 10000 ** (-torch.arange(0, 1, 2 / width))
        positions = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        self.register_buffer("positions", positions)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(length))
        self.dropout = nn.Dropout(0.1)

    def forward(self, source: torch.Tensor, shifted: torch.Tensor) -> torch.Tensor:
        """Return the logits [b, t, v] for source [b, s] and target [b, t], which is shifted."""
        scale = math.sqrt(self.embedding.embedding_dim)
        embedded = (
            self.dropout(self.embedding(ids) * scale + self.positions) for ids in (source, shifted)
        )
        vectors = self.transformer(*embedded, tgt_mask=self.causal, tgt_is_causal=True)
        return nn.functional.linear(vectors, self.embedding.weight)


class Marian(nn.Module):
    """Hugging Face's MarianMTModel with the sizes of a workload.

    Args:
        workload: The sizes.
        attention: "sdpa", PyTorch's fused operation, or "eager", one operation after another.
    """

    def __init__(self, workload: Workload, attention: str):
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        sides = _of_both_sides(
            layers=workload.layers, attention_heads=workload.heads, ffn_dim=workload.d_ff
        )
        config = MarianConfig(
            vocab_size=workload.rows,
            d_model=workload.d_model,
            **sides,
            dropout=0.1,
            activation_function="relu",
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            pad_token_id=PAD,
            decoder_start_token_id=BOS,
            use_cache=False,
            attn_implementation=attention,
        )
        self.model = MarianMTModel(config)

    def forward(self, source: torch.Tensor, shifted: torch.Tensor) -> torch.Tensor:
        """Return the logits [b, t, v] for source [b, s] and target [b, t], which is shifted."""
        return self.model(input_ids=source, decoder_input_ids=shifted).logits


class Fairseq(nn.Module):
    """fairseq's Transformer as the paper's model.

    Its encoder's layers also hold 18.9 million weights for inference, which a step does not use.
    """

    def __init__(self, workload: Workload):
        super().__init__()
        from fairseq.data import Dictionary
        from fairseq.models.transformer import TransformerModel, base_architecture

        pieces = Dictionary()
        for number in range(workload.rows - len(pieces)):
            pieces.add_symbol(str(number))
        sides = _of_both_sides(
            layers=workload.layers,
            attention_heads=workload.heads,
            embed_dim=workload.d_model,
            ffn_embed_dim=workload.d_ff,
        )
        settings = argparse.Namespace(
            **sides,
            dropout=0.1,
            share_all_embeddings=True,
            max_source_positions=workload.length,
            max_target_positions=workload.length,
        )
        base_architecture(settings)
        task = types.SimpleNamespace(source_dictionary=pieces, target_dictionary=pieces)
        self.model = TransformerModel.build_model(settings, task)

    def forward(self, source: torch.Tensor, shifted: torch.Tensor) -> torch.Tensor:
        """Return the logits [b, t, v] for source [b, s] and target [b, t], which is shifted."""
        lengths = torch.full(source.shape[:1], source.shape[1])
        return self.model(source, lengths, shifted)[0]


def _of_both_sides(**sizes: int) -> dict[str, int]:
    """Return settings of the encoder and, the same, of the decoder."""
    return {f"{side}_{n}": size for side in ("encoder", "decoder") for n, size in sizes.items()}


def step_of(peer: str, workload: Workload, bfloat16: bool, compiled: bool) -> Callable[[], float]:
    """Return a function that makes a training step and returns its loss."""
    torch.manual_seed(0)
    shape = workload.batch, workload.length
    source, target = (torch.randint(FIRST, workload.rows, shape) for _ in range(2))
    shifted = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], 1)
    model = {
        "marian": lambda: Marian(workload, "sdpa"),
        "marian_eager": lambda: Marian(workload, "eager"),
        "torch": lambda: TorchTransformer(workload),
        "fairseq": lambda: Fairseq(workload),
    }[peer]().train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def loss_of_batch() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            flat = model(source, shifted).flatten(0, 1).float()
            return nn.functional.cross_entropy(flat, target.flatten(), label_smoothing=0.1)

    computed = torch.compile(loss_of_batch) if compiled else loss_of_batch

    def step() -> float:
        loss = computed()
        loss.backward()
        adam.step()
        adam.zero_grad()
        return loss.item()

    return step
