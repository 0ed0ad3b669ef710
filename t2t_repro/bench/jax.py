"""How fast the same layers, loss and optimizer train on Keras's JAX backend.

For accelerators that have no TensorFlow: neither this file nor what it imports needs it. One jitted
step takes the gradients of a batch, in parts if it is large, and makes Adam's update in the buffers
of the weights before. Batches are random pieces without padding, handed over by the host at each
step; the rest is as in `bench_train`. Needs KERAS_BACKEND=jax at the import of Keras.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from t2t_repro import config
from t2t_repro.bench.train import PRECISIONS, WORKLOADS, Row, Workload, figures
from t2t_repro.distributed import machine
from t2t_repro.distributed.machine import median_seconds
from t2t_repro.model.attention import PAD
from t2t_repro.model.transformer import Transformer
from t2t_repro.paper import cost
from t2t_repro.training.loss import cross_entropy
from t2t_repro.training.optimizer import make_optimizer

assert keras.backend.backend() == "jax", "set KERAS_BACKEND=jax before Keras is imported"

State = tuple[list, list, list]  # of weights, random numbers, optimizer
_PAPER_BATCH = (390, 64)  # 24,960 tokens a side; the paper: about 25,000 (5.1)
# What that takes at once, in bytes: the logits alone are 4 GB, and their gradient is another 4.
_MEMORY = 48e9


def rows(repeats: int) -> Iterator[Row]:
    """One row for each workload and precision.

    On a GPU then the paper's batch for base and big in bfloat16: on two CPU cores a step of base
    would take over a minute. `parts`: how many the batch was taken in. `peak_share`: `gflops` over
    the data sheet's figure, where it is known.
    """
    for precision in PRECISIONS:
        matmul = matmul_gflops(precision.removeprefix("mixed_"), repeats)
        for size, workload in WORKLOADS.items():
            yield _row(size, workload, 1, precision, matmul, repeats)
        if precision == "mixed_bfloat16" and jax.default_backend() == "gpu":
            for name in cost.PAPER:
                model = config.resolve("wmt14_ende", name).model
                assert model.embedding_rows
                workload = Workload(model, model.embedding_rows, *_PAPER_BATCH)
                size = f"{name}, 25,000 tokens"
                yield _row(size, workload, _parts(), precision, matmul, repeats)


class Step:
    """A model, its optimizer and its jitted update. Called on a batch, it makes one and waits.

    Axes: b batch, s source, t target, p parts.

    Args:
        model: A Transformer, whose weights are copied; `store` puts them back.
        train: Optimizer and label smoothing.
        parts: In how many equal parts the rows of a batch are taken, one after the other. Memory
            holds one part's activations; the update is that of the whole batch.
    """

    def __init__(self, model: Transformer, train: config.Train, parts: int = 1):
        self.model, self.label_smoothing, self.parts = model, train.label_smoothing, parts
        self.optimizer = make_optimizer(train, model.config.d_model)
        self.optimizer.build(model.trainable_variables)
        self.state: State = (
            _copies(model.trainable_variables),
            _copies(model.non_trainable_variables),
            _copies(self.optimizer.variables),
        )
        self._update = jax.jit(self.update, donate_argnums=0)

    def __call__(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """One update from int32 source [b, s], target [b, t]; see `Trainer.step`: float32 [3]."""
        self.state, sums = self._update(self.state, source, target)
        jax.block_until_ready(self.state)
        return np.asarray(sums)

    def store(self) -> None:
        """Sets the model's weights to those of the last update."""
        for variable, value in zip(self.model.trainable_variables, self.state[0], strict=True):
            variable.assign(value)

    def update(self, state: State, source: Any, target: Any) -> tuple[State, Any]:
        """(state before, batch) -> (state after, sums); pure."""
        weights, random, optimizer = state
        tokens = jnp.sum(target != PAD).astype("float32")

        def loss(weights: list, random: list, source: Any, target: Any) -> tuple[Any, Any]:
            logits, random = self.model.stateless_call(
                weights, random, source, target, training=True
            )
            sums = cross_entropy(logits, target, self.label_smoothing)
            return sums[0] / tokens, (random, jnp.stack(sums))

        gradient = jax.grad(loss, has_aux=True)

        def add_part(carry: Any, part: Any) -> tuple[Any, None]:
            total, random, sums = carry
            gradients, (random, more) = gradient(weights, random, *part)
            total = [before + now for before, now in zip(total, gradients, strict=True)]
            return (total, random, sums + more), None

        if self.parts == 1:
            gradients, (random, sums) = gradient(weights, random, source, target)
        else:
            parts = [
                jnp.reshape(side, (self.parts, -1, side.shape[1]))  # [p, b / p, s or t]
                for side in (source, target)
            ]
            start = ([jnp.zeros_like(weight) for weight in weights], random, jnp.zeros(3))
            (gradients, random, sums), _ = jax.lax.scan(add_part, start, parts)
        weights, optimizer = self.optimizer.stateless_apply(optimizer, gradients, weights)
        return (weights, random, optimizer), sums


def matmul_gflops(dtype: str, repeats: int) -> float:
    """A product of two large square matrices: 4,096 wide, on a GPU 16,384."""
    size = 16_384 if jax.default_backend() == "gpu" else machine.MATRIX
    matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(jnp.matmul)
    seconds = median_seconds(lambda: product(matrix, matrix).block_until_ready(), repeats)
    return 2 * size**3 / seconds / 1e9


def _row(
    size: str, workload: Workload, parts: int, precision: str, matmul: float, repeats: int
) -> Row:
    model = Transformer(workload.model, workload.rows, precision)
    step = Step(model, config.Train(precision=precision), parts)
    seconds = median_seconds(_on_random_batches(step, workload), repeats)
    device = jax.devices()[0]
    row: Row = {"size": size}
    row |= figures(workload, precision, seconds, matmul)
    row |= {"backend": "jax", "device": device.device_kind, "parts": parts}
    if peak := cost.sustained(device.device_kind, precision):
        row["peak_share"] = float(row["gflops"]) / 1e3 / peak.tflops
    return row


def _copies(variables: list[keras.Variable]) -> list:
    """Their values in buffers of our own, since an update uses up those that it is given."""
    return [jnp.array(variable.value) for variable in variables]


def _parts() -> int:
    """How many parts the paper's batch is taken in: 1 on a GPU of 80 GB, else 6 of 65 rows."""
    memory = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    return 1 if memory > _MEMORY else 6


def _on_random_batches(step: Step, workload: Workload) -> Callable[[], Any]:
    """A function that makes a step on the host's next batch."""
    shape = workload.batch, workload.length
    random = np.random.default_rng(0)
    batches = random.integers(3, workload.rows, (4, 2, *shape), np.int32)
    following = itertools.cycle(batches)
    return lambda: step(*next(following))
