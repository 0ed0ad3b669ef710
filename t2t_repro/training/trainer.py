"""One training step under a tf.distribute strategy.

Every replica receives the whole batch and takes every n-th row of it, or, where each worker reads a
part of a stream, its worker's part of the batch. The loss of a step is the sum over target tokens
divided by the number of target tokens in the whole batch. A step on n replicas therefore equals the
step on one, rows sorted by length are divided evenly, and no dataset has to be distributed. A
replica with little memory divides its rows into micro-batches, computes one after another, and adds
up their gradients, which again gives the same step. On two cores of a CPU two halves of the rows
are computed at the same time (`halves.py`).

The norm of the gradient is taken after all these sums, so clipping and skipping treat the gradient
of the whole batch, and all replicas of all workers do the same.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from t2t_repro.config import Train
from t2t_repro.distributed.machine import softmax_is_exact
from t2t_repro.distributed.strategy import has_divided_cores
from t2t_repro.model import fast_ops
from t2t_repro.model.transformer import Transformer, called
from t2t_repro.training.fused_adam import FusedAdam
from t2t_repro.training.halves import Halves
from t2t_repro.training.layer_functions import KEPT, LayerFunctions, rewritten
from t2t_repro.training.loss import output_cross_entropy
from t2t_repro.training.optimizer import make_optimizer
from t2t_repro.training.rows import own_rows, with_even_rows

_BATCH = [tf.TensorSpec([None, None], tf.int32, name=side) for side in ("source", "target")]


class Trainer:
    """A model, its optimizer and its step on the replicas of a strategy.

    Axes: b batch, s source positions, t target positions.

    Args:
        model: The model, built inside `strategy.scope()`.
        config: The training settings; `accumulate` is the number of micro-batches, `clip_norm` the
            largest norm of a gradient, and `skip_nonfinite` lets a step do without its update.
        strategy: Where to train.
        sharing: The number of replicas that share a batch given to `step`. The default is all of
            them: every worker gives the same batch. If each worker gives a part of its own, it is
            the number of that worker's replicas.
    """

    def __init__(
        self,
        model: Transformer,
        config: Train,
        strategy: tf.distribute.Strategy,
        sharing: int | None = None,
    ):
        self.model, self.strategy = model, strategy
        self.sharing = sharing or strategy.num_replicas_in_sync
        self.label_smoothing, self.micro_batches = config.label_smoothing, config.accumulate
        self.clip_norm, self.skips = config.clip_norm, config.skip_nonfinite > 0
        self._layers: Callable[..., Any] = LayerFunctions()
        self._loss: Callable[..., Any] = self._cross_entropy
        own_type = model.compute_dtype
        exact = not config.xla and softmax_is_exact(own_type)
        self._softmax_type = own_type if exact else "float32"
        self._gradients = self._gradients_of
        if config.xla:
            # Of functions called by its own, XLA takes all weights for constants, and would compile
            # them anew for each step.
            self._layers = called
            self._loss = self._cross_entropy.python_function
            self._gradients = tf.function(
                fast_ops.compiled()(self._gradients_of), autograph=False, jit_compile=True
            )
        elif has_divided_cores():
            self._gradients = Halves(self._gradients_of, model.random_states)
        with strategy.scope():
            self.optimizer = make_optimizer(config, model.config.d_model, FusedAdam)
            self.optimizer.build(model.trainable_variables)

    @property
    def parts(self) -> int:
        """The number of workers' parts that make up a batch; 1 if every worker gives all of it."""
        return self.strategy.num_replicas_in_sync // self.sharing

    def seed_replicas(self) -> None:
        """Give each replica random numbers of its own; call once, after any restore.

        Keras's random states are equal on all replicas. A checkpoint saves those of the first
        replica, whose states stay as they are.
        """

        def add_replica_id() -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            for state in self.model.random_states:
                state.value.assign_add(tf.cast(tf.stack([replica, 0]), state.value.dtype))

        self.strategy.run(tf.function(add_replica_id, autograph=False))

    @property
    def averages(self) -> dict[str, tf.Variable]:
        """The moving averages of the weights that learn, by the weights' paths; empty if off."""
        weights = self.model.trainable_variables if self.optimizer.averages else []
        pairs = zip(weights, self.optimizer.averages, strict=True)
        return {weight.path: average.value for weight, average in pairs}

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Let weights and moving averages change places until the context ends; none if off."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @tf.function(autograph=False)
    def _exchange(self) -> None:
        adam = self.optimizer
        if adam.averages:
            self.strategy.run(functools.partial(adam.exchange, self.model.trainable_variables))

    @tf.function(input_signature=_BATCH, autograph=False)  # base starts 3 s sooner
    def step(self, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """Make one update from source [b, s], target [b, t]: the batch, or this worker's part.

        Returns:
            float32 [4]: smoothed and unsmoothed cross-entropy, summed over the target tokens of all
            workers; the number of these tokens; the L2 norm of the whole gradient, before any
            clipping. If the update was skipped, the first three are 0 and the norm is infinite or
            NaN.
        """
        given = tf.math.count_nonzero(target, dtype=tf.float32)
        parts = self.sharing * self.micro_batches
        source, target = with_even_rows(source, parts), with_even_rows(target, parts)

        def update() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            tokens = given
            if self.sharing < context.num_replicas_in_sync:
                tokens = context.all_reduce(tf.distribute.ReduceOp.SUM, given / self.sharing)
            gradients, sums = self._summed_gradients(source, target, tokens)
            if context.num_replicas_in_sync > 1:  # a sum of one would be 254 operations in base
                gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            norm = tf.linalg.global_norm(gradients)
            self._update(gradients, norm)
            if self.skips:
                sums = tf.where(tf.math.is_finite(norm), sums, 0.0)
            return tf.concat([sums, [norm / context.num_replicas_in_sync]], axis=0)

        return self.strategy.reduce("SUM", self.strategy.run(update), axis=None)

    def _summed_gradients(
        self, source: tf.Tensor, target: tf.Tensor, tokens: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return what `_gradients_of` does, summed over this replica's micro-batches."""

        def add(
            index: tf.Tensor, gradients: list[tf.Tensor], sums: tf.Tensor
        ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
            more, more_sums = self._gradients(*self._own_rows(source, target, index), tokens)
            both = [one + other for one, other in zip(gradients, more, strict=True)]
            return index + 1, both, sums + more_sums

        first = self._gradients(*self._own_rows(source, target, 0), tokens)
        if self.micro_batches == 1:  # otherwise the gradient would be traced twice
            return first
        return tf.while_loop(
            lambda index, *_: index < self.micro_batches,
            add,
            [1, *first],
            parallel_iterations=1,  # with the default, 10, eight of them took twice the memory
        )[1:]

    def _update(self, gradients: list[tf.Tensor], norm: tf.Tensor) -> None:
        """Apply the summed gradients on this replica, clipped; count the update even if skipped."""
        if self.clip_norm:
            scale = tf.minimum(1.0, self.clip_norm / norm)
            gradients = [gradient * scale for gradient in gradients]
        adam = self.optimizer
        update = functools.partial(adam.update, gradients, self.model.trainable_variables)
        if self.skips:
            tf.cond(tf.math.is_finite(norm), update, lambda: None)
        else:
            update()
        adam.iterations.assign_add(1)

    def _gradients_of(
        self, source: tf.Tensor, target: tf.Tensor, tokens: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Compute the gradients of the loss of some rows, and the first three numbers of `step`."""
        learnt, shared = self.model.trainable_variables, self.model.embedding.matrix
        # The loss has a dense gradient in the matrix, that of looked-up rows is sparse. They are
        # added up below, and not by TensorFlow, which would make each of the sparse ones dense.
        matrix = tf.convert_to_tensor(shared.value)
        with rewritten(fused=self.model.compute_dtype == "float32"):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([variable.value for variable in learnt])  # nothing below what is frozen
                tape.watch(matrix)
                vectors = self.model.vectors(source, target, training=True, call_layer=self._layers)
                # A lookup in the variable itself would make all readers of it get copies.
                rows = tf.gather(tf.convert_to_tensor(shared.value), target)
                sums = self._loss(vectors, matrix, rows, target)
                loss = sums[0] / tokens
            *gradients, of_matrix = tape.gradient(loss, [*learnt, matrix])
        # Sparse gradients, of looked-up rows and of a learned table of positions, become dense.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        for index, variable in enumerate(learnt):
            if variable is shared:
                gradients[index] += of_matrix
        return gradients, tf.stack(sums)

    @tf.function(autograph=False, experimental_attributes=KEPT)
    def _cross_entropy(
        self, vectors: tf.Tensor, matrix: tf.Tensor, rows: tf.Tensor, target: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return `output_cross_entropy`, by a function that is rewritten as those of layers are."""
        if not self.model.embedding.matrix.trainable:  # no gradient, which nothing would read
            matrix, rows = tf.stop_gradient(matrix), tf.stop_gradient(rows)
        return output_cross_entropy(
            vectors, matrix, target, self.label_smoothing, rows, self._softmax_type
        )

    def _own_rows(
        self, source: tf.Tensor, target: tf.Tensor, index: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the rows of one of this replica's micro-batches."""
        sharing, count = self.sharing, self.micro_batches
        return own_rows(source, sharing, index, count), own_rows(target, sharing, index, count)
