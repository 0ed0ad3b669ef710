"""Speed of beam search at base size, beside the time of its bare matrix products.

The model has random weights and a vocabulary of 32,000; beam 4, alpha 0.6. The first workload, base
with 30 source and 30 target pieces, is the one that other toolkits are measured with. The second is
a file of sentences of mixed lengths.
"""

import functools
import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from t2t_repro import config
from t2t_repro.bench.op_times import op_times
from t2t_repro.distributed.machine import matmul_gflops, median_seconds, read_gb_per_s
from t2t_repro.model import flops

Row = dict[str, Any]

LENGTH, ROWS, EOS, BEAM = 30, 32_000, 1, config.Decode().beam_size
OPERATIONS = 8  # number of kinds of operation printed: the slowest ones
PRECISIONS = ("float32", "mixed_bfloat16")
BATCHES = (1, 16, 64)
# Lengths, in words, punctuation marks and EOS: 32 quantiles of newstest2013's 3,000 English lines
# (mean 23.2). Each is repeated for eight lines, so that the file has four batches of 64.
MIXED = np.repeat(
    [5, 7, 9, 10, 11, 12, 13, 14, 14, 15, 16, 17, 18, 19, 19, 20, 21, 22, 23, 24, 25, 26, 27, 29,
     30, 32, 34, 36, 39, 42, 49, 60], 8,
)  # fmt: skip


def rows(repeats: int) -> Iterator[Row]:
    """Yield a row for each precision and batch size, then a row for the file in batches of 64.

    A step decodes one target position of all sentences in the batch.

    Yields:
        `target_tokens_per_s`: target tokens, EOS included, per second of encoder and decoder.
        `step_ms`: time of a step, to which the encoder's time is added in equal parts.
        `products_ms`: time of a step's matrix products alone, with an equal part of the encoder's.
        `products_share`: `products_ms` over `step_ms`.
        `later_step_ms`: time of a step without the encoder at positions 31 to 60, where the cache
        is longer.
        `memory_floor_ms`: time to read the decoder's weights once, at the rate at which this
        machine reads 1 GB.
        `arithmetic_floor_ms`: time of the products' FLOPs at the rate of a large product. A step
        takes at least the greater of the two floors.
        `operation_ms`: time of a step by kind of operation, from TensorFlow's profiler, summed over
        all threads.
    """
    for precision in PRECISIONS:
        decoder = Decoder(precision)
        floors = _floors_ms(precision, repeats)
        for batch in BATCHES:
            source = sources(np.full(batch, LENGTH))
            forced = functools.partial(decoder.forced, source)
            seconds = median_seconds(forced, repeats)
            longer = median_seconds(functools.partial(decoder.twice_as_long, source), repeats)
            products = median_seconds(bare_products(precision, batch), repeats)
            yield {
                "batch": batch,
                "precision": precision.removeprefix("mixed_"),
                "sentences_per_s": batch / seconds,
                "target_tokens_per_s": batch * LENGTH / seconds,
                "step_ms": seconds / LENGTH * 1e3,
                "products_ms": products / LENGTH * 1e3,
                "products_share": products / seconds,
                "later_step_ms": (longer - seconds) / LENGTH * 1e3,
                "memory_floor_ms": floors.memory,
                "arithmetic_floor_ms": floors.arithmetic * batch,
                "operation_ms": {
                    op.kind: op.seconds / LENGTH * 1e3 for op in op_times(forced)[:OPERATIONS]
                },
            }
        mixed = _mixed(decoder, repeats)
        yield {"batch": "mixed", "precision": precision.removeprefix("mixed_"), **mixed}


class Floors(typing.NamedTuple):
    """Lower bounds on the milliseconds of a decoding step."""

    memory: float  # for a batch of any size
    arithmetic: float  # for each sentence


def _floors_ms(precision: str, repeats: int) -> Floors:
    """Return the floors that follow from the matrices applied to a target position."""
    dtype = precision.removeprefix("mixed_")
    weights = flops.matrix_weights(config.Model(), ROWS).target  # 38.4M at base size
    size = {"float32": 4, "bfloat16": 2}[dtype]
    return Floors(
        weights * size / read_gb_per_s(repeats) / 1e6,
        2 * weights * BEAM / matmul_gflops(dtype, repeats) / 1e6,
    )


class Decoder:
    """The package's decoder on a model with random weights."""

    def __init__(self, precision: str):
        import tensorflow as tf

        from t2t_repro.decoding.decoder import make_decoder
        from t2t_repro.model.transformer import Transformer

        model = Transformer(config.Model(), ROWS, precision)
        any_shape = [tf.TensorSpec([None, None], tf.int32)]

        def decoder(**settings: Any) -> Callable[[np.ndarray], Any]:
            # With random weights a hypothesis may never end, so no output exceeds its source.
            decode = make_decoder(
                model, config.Decode(max_extra_length=0), np.arange(ROWS) > 2, EOS, **settings
            )
            function = tf.function(decode, input_signature=any_shape)
            return lambda source: function(source)[0].numpy()

        self.forced = decoder(forced_length=LENGTH)
        self.twice_as_long = decoder(forced_length=2 * LENGTH)
        self.as_long_as_source = decoder()


def bare_products(precision: str, batch: int) -> Callable[[], object]:
    """Return a function that computes only the products with weight matrices of a `forced` call.

    It leaves out attention's products: queries with keys, and attention weights with values.
    """
    import tensorflow as tf

    model = config.Model()
    d, dtype = model.d_model, precision.removeprefix("mixed_")

    def matrix(*shape: int) -> Any:
        return tf.cast(tf.random.normal(shape, stddev=shape[0] ** -0.5), dtype)

    def layers(square: int) -> list[list[Any]]:
        """Return each layer's matrices: `square` of d x d, then the feed-forward pair."""
        return [
            [*(matrix(d, d) for _ in range(square)), matrix(d, model.d_ff), matrix(model.d_ff, d)]
            for _ in range(model.num_layers)
        ]

    # Encoder: 4 of self-attention, and the keys and values of a decoder layer's cross-attention.
    # Decoder: 4 of self-attention, and the queries and output of cross-attention.
    encoder, decoder, output = layers(4 + 2), layers(4 + 2), matrix(d, ROWS)

    def stack(x: Any, layers: list[list[Any]]) -> Any:
        for kernels in layers:
            for kernel in kernels:
                x = tf.linalg.matmul(x, kernel)
        return x

    @tf.function
    def products() -> Any:
        source = stack(tf.ones((batch * LENGTH, d), dtype), encoder)
        return tf.while_loop(
            lambda step, _: step < LENGTH,
            lambda step, x: (step + 1, tf.linalg.matmul(stack(x, decoder), output)[:, :d]),
            (0, source[: batch * BEAM]),
        )[1]

    return lambda: products().numpy()


def _mixed(decoder: Decoder, repeats: int) -> Row:
    """Measure the file of mixed lengths, with the longest lines first."""
    batches = [sources(part) for part in np.split(np.sort(MIXED)[::-1], len(MIXED) // 64)]
    seconds = median_seconds(
        lambda: [decoder.as_long_as_source(batch) for batch in batches], repeats
    )
    return {
        "sentences_per_s": len(MIXED) / seconds,
        "target_tokens_per_s": int(MIXED.sum()) / seconds,
    }


def sources(lengths: np.ndarray) -> np.ndarray:
    """Return random pieces, each row ended by EOS and padded with PAD: int32 [b, s]."""
    position = np.arange(lengths.max())[None]
    pieces = np.random.default_rng(0).integers(3, ROWS, (len(lengths), lengths.max()))
    ends = np.where(position == lengths[:, None] - 1, EOS, 0)
    return np.where(position < lengths[:, None] - 1, pieces, ends).astype("int32")
