"""Training speed of the same layers, loss and optimizer on Keras's JAX backend.

This benchmark is for accelerators without TensorFlow, which neither this module nor its imports
need. One jitted step computes the gradients of a batch, in micro-batches if the batch is large, and
applies Adam's update in place by donating the buffers of the old weights. Batches are random pieces
without padding, which the host transfers at each step. On a GPU the host waits once in ten steps,
so that it prepares the next step meanwhile. All else is as in `bench.train`. KERAS_BACKEND=jax must
be set before Keras is imported.
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
from t2t_repro.distributed.data_sheets import sustained
from t2t_repro.distributed.machine import median_seconds
from t2t_repro.model.attention import PAD
from t2t_repro.model.transformer import Transformer
from t2t_repro.paper import cost
from t2t_repro.training.loss import output_cross_entropy
from t2t_repro.training.optimizer import make_optimizer

assert keras.backend.backend() == "jax", "set KERAS_BACKEND=jax before Keras is imported"

State = tuple[list, list, list]  # values of weights, random states, optimizer variables
_PAPER_BATCH = (390, 64)  # 24,960 tokens per side; the paper: about 25,000 (5.1)
# Bytes that a step on the whole batch needs: on an H200 big took 21.5 GB at most, base 11.2.
_PAPER_BATCH_BYTES = 24e9
_STEPS_BEFORE_WAITING = 10  # on a GPU; on a CPU a step takes seconds, and waiting no time


def rows(repeats: int) -> Iterator[Row]:
    """Yield a row for each workload and precision.

    On a GPU, rows with the paper's batch for base and big in bfloat16 follow. On two CPU cores such
    a step would take over a minute for base.

    Yields:
        The figures of `bench.train`; `parts`, the number of micro-batches; and `peak_share`, the
        measured speed (`gflops`) over the peak in the GPU's data sheet, where that is known.
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
                yield _row(size, workload, _micro_batches(), precision, matmul, repeats)


class Step:
    """A model, its optimizer and the jitted update; a call starts one update.

    Axes: b batch, s source, t target, m micro-batches.

    Args:
        model: A Transformer. Its weights are copied, and `store` writes the updated ones back.
        train: The optimizer's settings and the label smoothing.
        micro_batches: Number of equal micro-batches that are computed one after another. Memory
            holds the activations of one micro-batch; the update is the whole batch's.
    """

    def __init__(self, model: Transformer, train: config.Train, micro_batches: int = 1):
        self.model, self.label_smoothing = model, train.label_smoothing
        self.micro_batches = micro_batches
        self.optimizer = make_optimizer(train, model.config.d_model)
        self.optimizer.build(model.trainable_variables)
        self.state: State = (
            _copies(model.trainable_variables),
            _copies(model.non_trainable_variables),
            _copies(self.optimizer.variables),
        )
        self._update = jax.jit(self.update, donate_argnums=0)

    def __call__(self, source: np.ndarray, target: np.ndarray) -> jax.Array:
        """Start one update and return the sums of `Trainer.step`, which wait for it when read.

        Args:
            source: int32 [b, s].
            target: int32 [b, t].

        Returns:
            float32 [3].
        """
        self.state, sums = self._update(self.state, source, target)
        return sums

    def store(self) -> None:
        """Set the model's weights to the values after the last update."""
        for variable, value in zip(self.model.trainable_variables, self.state[0], strict=True):
            variable.assign(value)

    def update(self, state: State, source: Any, target: Any) -> tuple[State, Any]:
        """Return (state after the update, sums of `Trainer.step`), as a pure function."""
        weights, random, optimizer = state
        tokens = jnp.sum(target != PAD).astype("float32")

        def loss(weights: list, random: list, source: Any, target: Any) -> tuple[Any, Any]:
            model = self.model
            learnt, states = model.trainable_variables, model.non_trainable_variables
            values = zip((*learnt, *states), (*weights, *random), strict=True)
            with keras.StatelessScope(values) as scope:
                vectors = model.vectors(source, target, training=True)
                matrix = model.embedding.matrix.value
                sums = output_cross_entropy(vectors, matrix, target, self.label_smoothing)
            random = [scope.get_current_value(state) for state in states]
            return sums[0] / tokens, (random, jnp.stack(sums))

        gradient = jax.grad(loss, has_aux=True)

        def accumulate(carry: Any, micro_batch: Any) -> tuple[Any, None]:
            total, random, sums = carry
            gradients, (random, more) = gradient(weights, random, *micro_batch)
            total = [before + now for before, now in zip(total, gradients, strict=True)]
            return (total, random, sums + more), None

        if self.micro_batches == 1:
            gradients, (random, sums) = gradient(weights, random, source, target)
        else:
            micro_batches = [
                jnp.reshape(side, (self.micro_batches, -1, side.shape[1]))  # [m, b / m, s or t]
                for side in (source, target)
            ]
            start = ([jnp.zeros_like(weight) for weight in weights], random, jnp.zeros(3))
            (gradients, random, sums), _ = jax.lax.scan(accumulate, start, micro_batches)
        weights, optimizer = self.optimizer.stateless_apply(optimizer, gradients, weights)
        return (weights, random, optimizer), sums


def matmul_gflops(dtype: str, repeats: int) -> float:
    """Measure a product of square matrices, 4,096 wide or on a GPU 16,384, in GFLOP/s."""
    size = 16_384 if jax.default_backend() == "gpu" else machine.MATRIX
    matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(jnp.matmul)
    seconds = median_seconds(lambda: product(matrix, matrix).block_until_ready(), repeats)
    return 2 * size**3 / seconds / 1e9


def _row(
    size: str, workload: Workload, micro_batches: int, precision: str, matmul: float, repeats: int
) -> Row:
    model = Transformer(workload.model, workload.rows, precision)
    step = Step(model, config.Train(precision=precision), micro_batches)
    steps = _STEPS_BEFORE_WAITING if jax.default_backend() == "gpu" else 1
    seconds = median_seconds(_on_random_batches(step, workload, steps), repeats) / steps
    device = jax.devices()[0]
    row: Row = {"size": size}
    row |= figures(workload, precision, seconds, matmul)
    row |= {"backend": "jax", "device": device.device_kind, "parts": micro_batches}
    if peak := sustained(device.device_kind, precision):
        row["peak_share"] = float(row["gflops"]) / 1e3 / peak.tflops
    return row


def _copies(variables: list[keras.Variable]) -> list:
    """Return copies of the variables' values, because an update donates its input buffers."""
    return [jnp.array(variable.value) for variable in variables]


def _micro_batches() -> int:
    """Return the number of micro-batches for the paper's batch: 1 on 40 GB, else 6 of 65 pairs."""
    memory = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    return 1 if memory > _PAPER_BATCH_BYTES else 6


def _on_random_batches(step: Step, workload: Workload, steps: int) -> Callable[[], Any]:
    """Return a function that makes steps on the host's next random batches, and waits for them."""
    shape = workload.batch, workload.length
    random = np.random.default_rng(0)
    batches = random.integers(3, workload.rows, (4, 2, *shape), np.int32)
    following = itertools.cycle(batches)

    def call() -> None:
        for _ in range(steps):
            step(*next(following))
        jax.block_until_ready(step.state)

    return call
