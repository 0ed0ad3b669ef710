"""How fast training steps are, beside the machine's own large product of matrices.

Forward, backward and Adam, dropout 0.1 and label smoothing 0.1, through the Trainer and the input
pipeline: batches without padding, of a split on disk, and the next one is fetched in the time that
is measured. FLOPs are those of the matrices with weights, see `cost`; attention's own products are
about 2 % more for base.
"""

import dataclasses
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipelines.batching import Batching
from pipelines.shards import MANIFEST, EncodedSplit, shard_files
from t2t_repro import config
from t2t_repro.distributed.machine import matmul_gflops, median_seconds
from t2t_repro.model import flops
from t2t_repro.training import memory_fit

Row = dict[str, float | int | str]


class Workload(NamedTuple):
    """A model and its batches: `batch` pairs of `length` pieces a side, EOS included."""

    model: config.Model
    rows: int  # of the shared matrix
    batch: int
    length: int

    @property
    def tokens(self) -> int:
        """Of a batch, a side."""
        return self.batch * self.length

    @property
    def flops(self) -> int:
        """Of a step, in products with weights."""
        shape = flops.positions([(self.batch, self.length, self.length)])
        return flops.training_flops(self.model, self.rows, shape).matrices


# The workloads that other toolkits are measured with.
TINY = config.Model(num_layers=4, d_model=128, d_ff=256, num_heads=4, d_k=32, d_v=32)
WORKLOADS = {
    "base": Workload(config.Model(), 32_000, 32, 64),
    "tiny": Workload(TINY, 10_000, 128, 24),
}
PRECISIONS = ("float32", "mixed_bfloat16")
_BATCHES = 16  # of an epoch
_EOS = 1
_FEW_ROWS = 128  # a vocabulary whose products, loss and update take next to nothing


def rows(repeats: int, account: bool) -> Iterator[Row]:
    """One row for each workload and precision; with `account` also what the step spends where.

    `matmul_gflops`: a product of 4,096 x 4,096 matrices; `matmul_share`: `gflops` over that.
    """
    for size, workload in WORKLOADS.items():
        for precision in PRECISIONS:
            matmul = matmul_gflops(precision.removeprefix("mixed_"), repeats)
            with tempfile.TemporaryDirectory() as folder:
                split = equally_long(workload, Path(folder))
                seconds = median_seconds(Training(workload, precision, split), repeats)
                row = {"size": size} | figures(workload, precision, seconds, matmul)
                if account:
                    row |= _account(workload, precision, split, seconds, matmul, repeats)
            yield row


def figures(workload: Workload, precision: str, seconds: float, matmul: float) -> Row:
    """What is told of a step that takes so many seconds, beside a product at `matmul` GFLOP/s."""
    gflops = workload.flops / seconds / 1e9
    return {
        "precision": precision.removeprefix("mixed_"),
        "target_tokens_per_s": workload.tokens / seconds,
        "step_ms": seconds * 1e3,
        "gflops": gflops,
        "matmul_gflops": matmul,
        "matmul_share": gflops / matmul,
    }


class Training:
    """Called, it fetches a batch of the split and makes a step, and waits for its loss.

    Args:
        workload: The model; its batches must be those of the split.
        precision: Of the products.
        split: The text.
    """

    def __init__(self, workload: Workload, precision: str, split: EncodedSplit):
        from t2t_repro.distributed.strategy import default_strategy
        from t2t_repro.model.transformer import Transformer
        from t2t_repro.training.trainer import Trainer

        strategy = default_strategy()
        with strategy.scope():
            self.model = Transformer(workload.model, workload.rows, precision)
        self.trainer = Trainer(self.model, config.Train(precision=precision), strategy)
        batching = Batching(
            split,
            tokens_per_batch=workload.tokens,
            max_shapes=1,
            count_padding=True,
            seed=0,
        )
        epochs = (batching.batches(epoch) for epoch in itertools.count())
        self.batches = itertools.chain.from_iterable(epochs)

    def __call__(self) -> Any:
        """float32 [3], see `Trainer.step`."""
        return self.trainer.step(*next(self.batches)).numpy()


def equally_long(workload: Workload, folder: Path) -> EncodedSplit:
    """Pairs of random pieces and EOS, `_BATCHES` batches, as preparation leaves them on disk."""
    pairs, length = _BATCHES * workload.batch, workload.length
    ids = np.random.default_rng(0).integers(3, workload.rows, (pairs * 2, length), np.uint16)
    ids[:, -1] = _EOS
    ids_file, lengths_file, _ = shard_files(0)
    np.save(folder / ids_file, ids.ravel())
    np.save(folder / lengths_file, np.full((pairs, 2), length, np.int32))
    (folder / MANIFEST).write_text(json.dumps({"shards": 1, "pairs": pairs}), encoding="utf-8")
    return EncodedSplit.load(folder)


def _account(
    workload: Workload,
    precision: str,
    split: EncodedSplit,
    seconds: float,
    matmul: float,
    repeats: int,
) -> Row:
    """Milliseconds of a step that go away with a part of it; what is left is not shared out.

    `products_ms`: its products with weights at the speed of the large one. `attention_ms`: the same
    for those without. `dropout_ms`: less by that without dropout. `vocabulary_ms`: less by that
    with a vocabulary of 128; the output matrix' products, which `output_products_ms` has at the
    large one's speed, its update, and the loss. `pipeline_ms`: less by that with a batch at hand.
    `optimizer_ms`: Adam by itself, on gradients at hand. `padding_share`: of the batches. And
    memory, see `_memory`.
    """

    def without(**changes: Any) -> float:
        """Milliseconds saved by a workload that is changed so."""
        changed = workload._replace(**changes)
        with tempfile.TemporaryDirectory() as folder:
            pairs = equally_long(changed, Path(folder))
            return (seconds - median_seconds(Training(changed, precision, pairs), repeats)) * 1e3

    training = Training(workload, precision, split)
    batch = next(training.batches)
    at_hand = median_seconds(lambda: training.trainer.step(*batch).numpy(), repeats)
    shape = flops.positions([(workload.batch, workload.length, workload.length)])
    attention = flops.training_flops(workload.model, workload.rows, shape).attention
    output = workload.flops - workload._replace(rows=0).flops
    cells = sum(side.shape[0] * side.shape[1] for side in batch)
    tokens = sum(int(np.count_nonzero(side)) for side in batch)
    no_dropout = dataclasses.replace(workload.model, dropout=0.0)
    return _memory(workload, precision) | {
        "products_ms": workload.flops / matmul / 1e6,
        "attention_ms": attention / matmul / 1e6,
        "dropout_ms": without(model=no_dropout),
        "vocabulary_ms": without(rows=_FEW_ROWS),
        "output_products_ms": output / matmul / 1e6,
        "pipeline_ms": (seconds - at_hand) * 1e3,
        "optimizer_ms": median_seconds(_updates(training), repeats) * 1e3,
        "padding_share": 1 - tokens / cells,
    }


def _memory(workload: Workload, precision: str) -> Row:
    """Bytes of memory by which each token of a side adds to a step's, from half a batch on."""
    model, rows, train = workload.model, workload.rows, config.Train(precision=precision)
    sizes = (workload.batch // 2, workload.batch)
    shapes = [(pairs, workload.length, workload.length) for pairs in sizes]
    half, whole = (memory_fit.try_step(model, rows, train, shape) or math.nan for shape in shapes)
    less, more = (memory_fit.predicted(model, rows, precision, shape) for shape in shapes)
    tokens = (sizes[1] - sizes[0]) * workload.length
    return {
        "bytes_per_token": (whole - half) / tokens,
        "predicted_bytes_per_token": (more - less) / tokens,
    }


def _updates(training: Training) -> Callable[[], Any]:
    """A function that lets the optimizer make an update, all gradients 0.001."""
    import tensorflow as tf

    trainer, variables = training.trainer, training.model.trainable_variables
    gradients = [tf.fill(variable.shape, 1e-3) for variable in variables]

    @tf.function
    def update() -> None:
        trainer.strategy.run(lambda: trainer.optimizer.apply(gradients, variables))

    def wait() -> Any:
        update()
        return trainer.optimizer.iterations.numpy()

    return wait
