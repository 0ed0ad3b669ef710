"""Plan an epoch's batches from the lengths, then gather, pad and prefetch them with tf.data.

All lengths are known after preparation, so which pairs form which batch, and in which order, is
computed in NumPy from (seed, epoch). A run's place in its data is therefore two integers, the epoch
and the number of batches already seen, and a resumed run sees the batches that an uninterrupted one
would have seen.
"""

from __future__ import annotations

import typing

import numpy as np

from pipelines.prepare import Prepared
from pipelines.vocabulary import PAD

if typing.TYPE_CHECKING:
    import tensorflow as tf


def plan_epoch(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    tokens_per_batch: int,
    seed: int,
    epoch: int,
) -> list[np.ndarray]:
    """Every pair once, in batches of about `tokens_per_batch` tokens a side, in random order.

    "Sentence pairs were batched together by approximate sequence length" (5.1): pairs are sorted by
    source length, then target length, equal ones in random order, and cut into batches such that
    rows x longest is at most `tokens_per_batch` on both sides; padding counts. A pair longer than
    that is a batch of its own. On Multi30k with 4,096 tokens 5 % of the cells are padding.

    Args:
        source_lengths: int [pairs].
        target_lengths: int [pairs].
        tokens_per_batch: Cells of a batch, a side.
        seed: Of the run.
        epoch: From 0; each epoch has other batches.

    Returns:
        The batches, each an int64 array of pair indices.
    """
    rng = np.random.default_rng([seed, epoch])
    ties = rng.random(len(source_lengths))
    # Snake order: target lengths rise and fall in turn, so that they do not jump where the source
    # length changes in the middle of a batch.
    snake = np.where(source_lengths % 2 == 0, target_lengths, -target_lengths)
    order = np.lexsort((ties, snake, source_lengths))
    batches = _cut(order, source_lengths[order], target_lengths[order], tokens_per_batch)
    return [batches[index] for index in rng.permutation(len(batches))]


def _cut(
    order: np.ndarray, source: np.ndarray, target: np.ndarray, tokens_per_batch: int
) -> list[np.ndarray]:
    """Consecutive runs of `order`, each as long as both sides allow; lengths are sorted alike."""
    batches, start = [], 0
    while start < len(order):
        most = max(1, tokens_per_batch // int(source[start]))
        window = slice(start, start + most)
        longest_source = np.maximum.accumulate(source[window])
        longest_target = np.maximum.accumulate(target[window])
        rows = np.arange(1, len(longest_source) + 1)
        cells = rows * np.maximum(longest_source, longest_target)  # rising
        count = max(1, int(np.searchsorted(cells, tokens_per_batch, side="right")))
        batches.append(order[start : start + count])
        start += count
    return batches


def padded_batches(prepared: Prepared, plan: list[np.ndarray], first: int = 0) -> tf.data.Dataset:
    """Batches `first` and later of a plan: (source int32 [b, s], target int32 [b, t])."""
    import tensorflow as tf

    rest = plan[first:]
    # Int64 also when nothing is left, as after a checkpoint with an epoch's last batch.
    rows = np.array([len(batch) for batch in rest], np.int64)
    pairs = np.concatenate([np.zeros(0, np.int64), *rest])
    indices = tf.RaggedTensor.from_row_lengths(pairs, rows)
    source, target = prepared.source.ragged, prepared.target.ragged

    def gather(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pairs = indices[number]
        return _padded(source, pairs), _padded(target, pairs)

    dataset = tf.data.Dataset.range(len(rest))
    return dataset.map(gather, num_parallel_calls=2, deterministic=True).prefetch(2)


def _padded(side: tf.RaggedTensor, pairs: tf.Tensor) -> tf.Tensor:
    import tensorflow as tf

    return tf.cast(tf.gather(side, pairs).to_tensor(PAD), tf.int32)
