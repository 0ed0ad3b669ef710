r"""Measure training steps of PyTorch's Transformers on the workloads of `t2t_repro.bench train`.

    pip install torch transformers
    echo 'int mkl_serv_intel_cpu_true(void) { return 1; }' | cc -shared -fPIC -x c - -o intel.so
    LD_PRELOAD=./intel.so OMP_NUM_THREADS=2 GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
        MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 \
        MALLOC_TOP_PAD_=268435456 python docs/notebook/peer_training.py marian base --bfloat16

The variables tune PyTorch: the library makes MKL use its best code on processors of other makers,
and glibc keeps large blocks and uses huge pages. The models are Hugging Face's MarianMTModel and
`torch.nn.Transformer` with one embedding matrix for source, target and output. A step is forward
pass, loss with label smoothing 0.1, backward pass and Adam, on one batch of random pieces without
padding; Adam is PyTorch's fused one. Dropout is 0.1 where the paper has it, so not on attention
weights or inside feed-forward.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from t2t_repro.bench.train import WORKLOADS, Workload

PAD, BOS, FIRST = 1, 2, 4  # ids; pieces of text have the ids from FIRST on


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` as the paper's model: post-norm, one matrix, sinusoids."""

    def __init__(self, workload: Workload):
        super().__init__()
        model, length = workload.model, workload.length
        self.embedding = nn.Embedding(workload.rows, model.d_model)
        nn.init.normal_(self.embedding.weight, std=model.d_model**-0.5)
        sizes = model.d_model, model.num_heads, model.num_layers, model.num_layers, model.d_ff
        self.transformer = nn.Transformer(*sizes, dropout=0.1, batch_first=True)
        self.transformer.encoder.norm = self.transformer.decoder.norm = None  # as in the paper
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # on attention weights
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0  # inside the feed-forward layer
        angles = torch.arange(length)[:, None] * 10000 ** (-torch.arange(0, 1, 2 / model.d_model))
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


def marian(workload: Workload, attention: str) -> nn.Module:
    """Return Hugging Face's MarianMTModel with the sizes of a workload.

    Args:
        workload: The sizes.
        attention: "sdpa", PyTorch's fused operation, or "eager", one operation after another.
    """
    from transformers import MarianConfig, MarianMTModel

    model = workload.model
    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in {
            "layers": model.num_layers,
            "attention_heads": model.num_heads,
            "ffn_dim": model.d_ff,
        }.items()
    }
    config = MarianConfig(
        vocab_size=workload.rows,
        d_model=model.d_model,
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
    return MarianMTModel(config)


def step_of(peer: str, workload: Workload, bfloat16: bool, compiled: bool) -> Callable[[], float]:
    """Return a function that makes a training step and returns its loss."""
    torch.manual_seed(0)
    shape = workload.batch, workload.length
    source, target = (torch.randint(FIRST, workload.rows, shape) for _ in range(2))
    shifted = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], 1)
    is_marian = peer.startswith("marian")
    attention = "eager" if peer == "marian_eager" else "sdpa"
    model = marian(workload, attention) if is_marian else TorchTransformer(workload)
    model.train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def logits() -> torch.Tensor:
        if is_marian:
            return model(input_ids=source, decoder_input_ids=shifted).logits
        return model(source, shifted)

    def loss_of_batch() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            flat = logits().flatten(0, 1).float()
            return nn.functional.cross_entropy(flat, target.flatten(), label_smoothing=0.1)

    computed = torch.compile(loss_of_batch) if compiled else loss_of_batch

    def step() -> float:
        loss = computed()
        loss.backward()
        adam.step()
        adam.zero_grad()
        return loss.item()

    return step


def main() -> None:
    """Print target tokens per second, from the median of the steps after the third."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("peer", choices=["marian", "marian_eager", "torch"])
    flags.add_argument("size", choices=list(WORKLOADS))
    flags.add_argument("--bfloat16", action="store_true", help="torch.autocast")
    flags.add_argument("--compile", action="store_true", help="torch.compile")
    flags.add_argument("--repeats", type=int, default=10)
    given = flags.parse_args()
    workload = WORKLOADS[given.size]
    step, seconds = step_of(given.peer, workload, given.bfloat16, given.compile), []
    for _ in range(3 + given.repeats):
        began = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds[3:])
    precision = ("bfloat16" if given.bfloat16 else "float32") + ", compiled" * given.compile
    print(
        f"{given.peer} {given.size} {precision}: {workload.tokens / median:,.0f} target tokens per "
        f"second, {median * 1e3:,.0f} ms a step, loss {loss:.2f}"
    )


if __name__ == "__main__":
    main()
