"""How fast beam search is at base size, and how much of that its bare matrix products would take.

Random weights, vocabulary of 32,000, beam 4, alpha 0.6. Base with 30 source and 30 target pieces
is the workload that other toolkits are measured with; a file of mixed lengths comes after it.
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
OPERATIONS = 8  # kinds shown, those that take longest
PRECISIONS = ("float32", "mixed_bfloat16")
BATCHES = (1, 16, 64)
# Words and punctuation marks, and EOS, of newstest2013's English side: every 32nd part of its
# 3,000 lines (mean 23.2). Each stands for eight lines, so that a file has four batches of 64.
MIXED = np.repeat(
    [5, 7, 9, 10, 11, 12, 13, 14, 14, 15, 16, 17, 18, 19, 19, 20, 21, 22, 23, 24, 25, 26, 27, 29,
     30, 32, 34, 36, 39, 42, 49, 60], 8,
)  # fmt: skip


def rows(repeats: int) -> Iterator[Row]:
    """One row for each precision and batch size, and one for the file in batches of 64.

    `target_tokens_per_s`: EOS counted, the encoder's time included. `step_ms`: a position of the
    target, all sentences together. `products_ms`: what its matrix products take by themselves,
    the encoder's spread over the positions; `products_share`: their part of `step_ms`.
    `later_step_ms`: a position from 31 to 60, where the cache is longer, without the encoder.

    `memory_floor_ms`: what it takes to read the decoder's weights once, as fast as this machine
    reads 1 GB; `arithmetic_floor_ms`: what the operations of its products take at the rate of a
    large product. A step cannot take less than the greater of the two. `operation_ms`: where the
    time of a step goes, by TensorFlow's profiler, on all threads together.
    """
    for precision in PRECISIONS:
        decoder = Decoder(precision)
        floors = _floors_ms(precision, repeats)
        for batch in BATCHES:
            source = _sources(np.full(batch, LENGTH))
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
    """Milliseconds that a position cannot be decoded in less than."""

    memory: float  # for a batch of any size
    arithmetic: float  # for each sentence


def _floors_ms(precision: str, repeats: int) -> Floors:
    """By the matrices that act on a position of the target."""
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
            # Random weights do not end by themselves: no output beyond the length of its source.
            decode = make_decoder(
                model, config.Decode(max_extra_length=0), np.arange(ROWS) > 2, EOS, **settings
            )
            function = tf.function(decode, input_signature=any_shape)
            return lambda source: function(source)[0].numpy()

        self.forced = decoder(forced_length=LENGTH)
        self.twice_as_long = decoder(forced_length=2 * LENGTH)
        self.as_long_as_source = decoder()


def bare_products(precision: str, batch: int) -> Callable[[], object]:
    """A function that does the products of matrices of one `forced` call, and nothing else.

    The products of queries with keys and of weights with values are not among them.
    """
    import tensorflow as tf

    model = config.Model()
    d, dtype = model.d_model, precision.removeprefix("mixed_")

    def matrix(*shape: int) -> Any:
        return tf.cast(tf.random.normal(shape, stddev=shape[0] ** -0.5), dtype)

    def layers(square: int) -> list[list[Any]]:
        """Of each layer `square` products with d x d, and the feed-forward pair."""
        return [
            [*(matrix(d, d) for _ in range(square)), matrix(d, model.d_ff), matrix(model.d_ff, d)]
            for _ in range(model.num_layers)
        ]

    encoder, decoder, output = layers(4 + 2), layers(4 + 2), matrix(d, ROWS)

    def stack(x: Any, layers: list[list[Any]]) -> Any:
        for kernels in layers:
            for kernel in kernels:
                x = tf.linalg.matmul(x, kernel)
        return x

    @tf.function
    def products() -> Any:
        source = stack(tf.ones((batch * LENGTH, d), dtype), encoder)  # with the keys and values
        return tf.while_loop(
            lambda step, _: step < LENGTH,
            lambda step, x: (step + 1, tf.linalg.matmul(stack(x, decoder), output)[:, :d]),
            (0, source[: batch * BEAM]),
        )[1]

    return lambda: products().numpy()


def _mixed(decoder: Decoder, repeats: int) -> Row:
    """The file, longest lines first."""
    batches = [_sources(part) for part in np.split(np.sort(MIXED)[::-1], len(MIXED) // 64)]
    seconds = median_seconds(
        lambda: [decoder.as_long_as_source(batch) for batch in batches], repeats
    )
    return {
        "sentences_per_s": len(MIXED) / seconds,
        "target_tokens_per_s": int(MIXED.sum()) / seconds,
    }


def _sources(lengths: np.ndarray) -> np.ndarray:
    """Random pieces, then EOS, then PAD: int32 [b, s]."""
    position = np.arange(lengths.max())[None]
    pieces = np.random.default_rng(0).integers(3, ROWS, (len(lengths), lengths.max()))
    ends = np.where(position == lengths[:, None] - 1, EOS, 0)
    return np.where(position < lengths[:, None] - 1, pieces, ends).astype("int32")
