"""Perplexity of a model on given pairs, without dropout, and without the memory of an optimizer."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from t2t_repro.distributed.strategy import has_divided_cores
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.loss import output_cross_entropy
from t2t_repro.training.rows import own_rows, with_even_rows

_BATCH = [tf.TensorSpec([None, None], tf.int32, name=side) for side in ("source", "target")]


class Perplexity:
    """The perplexity of a model, computed on the replicas of a strategy.

    Args:
        model: The model, built inside `strategy.scope()`.
        strategy: Where to compute.
        micro_batches: The number of parts into which a replica divides its rows of a batch.
    """

    def __init__(
        self, model: Transformer, strategy: tf.distribute.Strategy, micro_batches: int = 1
    ):
        self.model, self.strategy = model, strategy
        self.at_once = 2 if has_divided_cores() else 1  # as a training step computes halves
        self.micro_batches = self.at_once * micro_batches

    def of(self, batches: Iterable[tuple[np.ndarray | tf.Tensor, ...]]) -> float:
        """Return exp(cross-entropy per piece), without label smoothing, as in Table 3."""
        sums = [self.sums(*batch).numpy().astype(np.float64) for batch in batches]
        entropy, tokens = np.sum(sums, axis=0)
        return float(np.exp(entropy / tokens))

    @tf.function(input_signature=_BATCH, autograph=False)
    def sums(self, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """Score pairs, source [b, s] and target [b, t].

        Returns:
            float32 [2]: the cross-entropy in nats, summed over target tokens, and their number.
        """
        replicas = self.strategy.num_replicas_in_sync
        parts = replicas * self.micro_batches
        source, target = with_even_rows(source, parts), with_even_rows(target, parts)

        def own() -> tf.Tensor:
            def add(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                return index + 1, total + self._sums_of(source, target, index)

            return tf.while_loop(
                lambda index, _: index < self.micro_batches,
                add,
                [0, tf.zeros(2)],
                parallel_iterations=self.at_once,
            )[1]

        return self.strategy.reduce("SUM", self.strategy.run(own), axis=None)

    def _sums_of(self, source: tf.Tensor, target: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        """Return the two numbers of `sums` for one of this replica's micro-batches."""
        replicas = self.strategy.num_replicas_in_sync
        source, target = (
            own_rows(side, replicas, index, self.micro_batches) for side in (source, target)
        )
        vectors = self.model.vectors(source, target)
        matrix = self.model.embedding.matrix.value
        _, unsmoothed, tokens = output_cross_entropy(vectors, matrix, target)
        return tf.stack([unsmoothed, tokens])
