"""Training speed, beside the speed of a large matrix product on the same machine.

A step is forward pass, backward pass and Adam, with dropout 0.1 and label smoothing 0.1, through
the Trainer and the input pipeline. Batches have no padding and come from a split in memory; the
measured time includes fetching the next batch. FLOPs count the products with weight matrices
(see `model.flops`); for base, attention's own products would add about 2 %.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from pipelines.batching import Batching
from pipelines.errors import BadInput
from pipelines.shards import EncodedSplit
from t2t_repro import config
from t2t_repro.distributed.machine import matmul_gflops, median_seconds
from t2t_repro.model import flops
from t2t_repro.training import memory_fit

Row = dict[str, float | int | str]


class Workload(NamedTuple):
    """A model and its batches: `batch` pairs of `length` pieces per side, EOS included."""

    model: config.Model
    rows: int  # rows of the shared embedding matrix
    batch: int
    length: int

    @property
    def tokens(self) -> int:
        """Tokens per side of a batch."""
        return self.batch * self.length

    @property
    def flops(self) -> int:
        """FLOPs of a step in products with weight matrices."""
        shape = flops.positions([(self.batch, self.length, self.length)])
        return flops.training_flops(self.model, self.rows, shape).matrices


# The workloads that other toolkits are measured with.
TINY = config.Model(num_layers=4, d_model=128, d_ff=256, num_heads=4, d_k=32, d_v=32)
WORKLOADS = {
    "base": Workload(config.Model(), 32_000, 32, 64),
    "tiny": Workload(TINY, 10_000, 128, 24),
}
PRECISIONS = ("float32", "mixed_bfloat16")
_BATCHES = 16  # batches in an epoch
_EOS = 1
_FEW_ROWS = 128  # a vocabulary so small that its products, loss and update take almost no time


def rows(repeats: int, account: bool) -> Iterator[Row]:
    """Yield a row for each workload and precision.

    Args:
        repeats: Number of steps to take the median of.
        account: Whether rows also break down the time of a step; see `_breakdown`.

    Yields:
        See `figures`.

    Raises:
        BadInput: The process is a worker of a job.
    """
    from t2t_repro.distributed.strategy import is_in_cluster, prepare_cpu

    if is_in_cluster():
        raise BadInput(
            "bench train measures one process alone; unset TF_CONFIG, or start it without srun"
        )
    prepare_cpu()  # as `train` does
    for size, workload in WORKLOADS.items():
        for precision in PRECISIONS:
            matmul = matmul_gflops(precision.removeprefix("mixed_"), repeats)
            split = equal_length_split(workload)
            seconds = median_seconds(Training(workload, precision, split), repeats)
            row = {"size": size} | figures(workload, precision, seconds, matmul)
            if account:
                row |= _breakdown(workload, precision, split, seconds, matmul, repeats)
            yield row


def figures(workload: Workload, precision: str, seconds: float, matmul: float) -> Row:
    """Return the figures of a training step.

    Args:
        workload: The model and its batches.
        precision: "float32" or "mixed_bfloat16".
        seconds: Duration of a step.
        matmul: Speed of a product of two 4,096 x 4,096 matrices in GFLOP/s.

    Returns:
        Target tokens per second, milliseconds of a step, its speed `gflops` in GFLOP/s, and
        `matmul_share`, that speed over `matmul_gflops`.
    """
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
    """A Trainer on a split; a call fetches a batch, makes a step and waits for the loss.

    Args:
        workload: The model and its batches, which must be the split's.
        precision: Precision of the matrix products.
        split: The training text.
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
        """Make a step and return the numbers of `Trainer.step`: float32 [4]."""
        return self.trainer.step(*next(self.batches)).numpy()


def equal_length_split(workload: Workload) -> EncodedSplit:
    """Return a split of `_BATCHES` batches, in which all sentences have one length.

    Sentences are random pieces and EOS.
    """
    pairs, length = _BATCHES * workload.batch, workload.length
    ids = np.random.default_rng(0).integers(3, workload.rows, (pairs * 2, length), np.uint16)
    ids[:, -1] = _EOS
    lengths = np.full((pairs, 2), length, np.int32)
    return EncodedSplit.from_shards([ids.ravel()], [lengths], {"pairs": pairs})


def _breakdown(
    workload: Workload,
    precision: str,
    split: EncodedSplit,
    seconds: float,
    matmul: float,
    repeats: int,
) -> Row:
    """Return the milliseconds that parts of a step take; they need not add up to the whole step.

    Returns:
        `products_ms`: the products with weight matrices, at the speed of the large product.
        `attention_ms`: attention's products without weights, at the same speed.
        `dropout_ms`: time saved by training without dropout.
        `vocabulary_ms`: time saved with a vocabulary of 128: the loss, and products and update of
        the output matrix.
        `output_products_ms`: the products of the output matrix, at the speed of the large product.
        `pipeline_ms`: time saved by a step on a batch that is already in memory.
        `optimizer_ms`: Adam's update alone, on constant gradients.
        `padding_share`: share of padding in the batch.
        The memory per token, see `_memory`.
    """

    def without(**changes: Any) -> float:
        """Return the milliseconds that a changed workload saves."""
        changed = workload._replace(**changes)
        pairs = equal_length_split(changed)
        return (seconds - median_seconds(Training(changed, precision, pairs), repeats)) * 1e3

    training = Training(workload, precision, split)
    batch = next(training.batches)
    in_memory = median_seconds(lambda: training.trainer.step(*batch).numpy(), repeats)
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
        "pipeline_ms": (seconds - in_memory) * 1e3,
        "optimizer_ms": median_seconds(_optimizer_update(training), repeats) * 1e3,
        "padding_share": 1 - tokens / cells,
    }


def _memory(workload: Workload, precision: str) -> Row:
    """Return the bytes that a token per side adds to a step, from half a batch to a whole one."""
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


def _optimizer_update(training: Training) -> Callable[[], Any]:
    """Return a function that makes an optimizer update with all gradients 0.001."""
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
