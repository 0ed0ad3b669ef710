"""The rows of a batch that a replica computes, in one piece or in micro-batches."""

from typing import Any

import tensorflow as tf

from t2t_repro.model.attention import PAD


def with_even_rows(batch: tf.Tensor, parts: int) -> tf.Tensor:
    """Append empty rows to ids [b, n], so that all of `parts` have the same number of rows.

    Otherwise XLA would compile a step for two numbers of rows.
    """
    return tf.pad(batch, [[0, -tf.shape(batch)[0] % parts], [0, 0]], constant_values=PAD)


def own_rows(batch: tf.Tensor, replicas: int, index: Any = 0, count: int = 1) -> tf.Tensor:
    """Return this replica's micro-batch `index` of `count`: every (replicas * count)-th row.

    Args:
        batch: Ids [b, n].
        replicas: The number of replicas that share the batch: all, or those of this worker.
        index: Which micro-batch.
        count: The number of micro-batches.
    """
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group % replicas
    return batch[replica + index * replicas :: replicas * count]
