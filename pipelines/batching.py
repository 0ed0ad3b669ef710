"""An epoch's batches: planned in NumPy, then gathered and prefetched by tf.data.

All lengths are known after preparation, so which pairs form which batch, and in which order, is
computed from (seed, epoch). A run's place in its data is therefore two integers, the epoch and the
number of batches already seen, and a resumed run sees the batches that an uninterrupted one would
have seen. Nothing here depends on the number of replicas: each takes its rows of the whole batch.
"""

from __future__ import annotations

import dataclasses
import typing
import weakref
from collections.abc import Callable
from functools import cached_property

import numpy as np

from pipelines.buckets import Buckets, choose_buckets
from pipelines.shards import EncodedSplit

if typing.TYPE_CHECKING:
    import tensorflow as tf


Alteration = Callable[[EncodedSplit, int], EncodedSplit]  # (split, epoch) -> what is read instead


class Batch(typing.NamedTuple):
    """Which pairs, padded to which lengths."""

    pairs: np.ndarray  # int64 [rows]; -1 is an empty row
    source_length: int
    target_length: int


@dataclasses.dataclass(frozen=True)
class Batching:
    """All batches of a split, epoch after epoch.

    Args:
        split: the split.
        tokens_per_batch: tokens of a batch, a side.
        max_shapes: most shapes that an epoch's batches have.
        count_padding: whether `tokens_per_batch` includes padding.
        seed: of the run.
        alterations: what changes the split for an epoch, one after another.
        altered_updates: of a run; an epoch that begins after so many has the split as prepared.
    """

    split: EncodedSplit
    _: dataclasses.KW_ONLY
    tokens_per_batch: int
    max_shapes: int
    count_padding: bool
    seed: int
    alterations: tuple[Alteration, ...] = ()
    altered_updates: int = 0

    @cached_property
    def buckets(self) -> Buckets:
        """Which lengths share a batch."""
        source, target = self.split.lengths.T
        sizes = self.tokens_per_batch, self.max_shapes, self.count_padding
        return choose_buckets(source, target, *sizes)

    def of_epoch(self, epoch: int, begun: int) -> Batching:
        """The batching to take an epoch's batches from, which begins after so many updates.

        With `alterations` it has pairs of its own, and so shapes of its own.
        """
        if not self.alterations or begun >= self.altered_updates:
            return self
        split = self.split
        for alter in self.alterations:
            split = alter(split, epoch)
        return dataclasses.replace(self, split=split, alterations=())

    def plan(self, epoch: int) -> list[Batch]:
        """Every pair once, in batches whose order is random; other ones in each epoch.

        Pairs are shuffled within their bucket, and the bucket cut into batches of its own shape.
        Where the pairs are not enough for all of them, the last row of some batches is empty: of
        4.5M pairs of news text 2,400 rows in 5,900 batches. These take 0.5 s to plan.
        """
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.split))
        order = order[np.argsort(self.buckets.bucket[order], kind="stable")]
        ends = np.cumsum(np.bincount(self.buckets.bucket, minlength=len(self.buckets.rows)))
        plan = [
            Batch(rows, int(source_length), int(target_length))
            for pairs, source_length, target_length, count in zip(
                np.split(order, ends[:-1]), *self.buckets[:3], strict=True
            )
            for rows in _in_batches(pairs, int(count))
        ]
        return [plan[index] for index in rng.permutation(len(plan))]

    def batches(self, epoch: int, first: int = 0) -> tf.data.Dataset:
        """Batches `first` and later of an epoch: (source int32 [b, s], target int32 [b, t])."""
        import tensorflow as tf

        plan = self.plan(epoch)
        # As tensors, and weakly: TensorFlow never lets go of what a numpy_function refers to, of
        # 4.5M pairs 40 MB an epoch, and their ids where these are an epoch's own.
        split_ref = weakref.ref(self.split)
        pairs = tf.RaggedTensor.from_row_lengths(
            np.concatenate([batch.pairs for batch in plan]), [len(batch.pairs) for batch in plan]
        )
        lengths = tf.constant([batch[1:] for batch in plan])

        def read(pairs: np.ndarray, s: int, t: int) -> tuple[np.ndarray, np.ndarray]:
            split = split_ref()
            assert split is not None  # the data set keeps it
            return split.padded(pairs, s, t)

        def gather(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            wanted = [pairs[number], lengths[number, 0], lengths[number, 1]]
            source, target = tf.numpy_function(read, wanted, [tf.int32] * 2, False)
            return tf.ensure_shape(source, [None, None]), tf.ensure_shape(target, [None, None])

        # No parallel calls: Python runs one, and it is 100 times as fast as a training step.
        dataset = tf.data.Dataset.range(first, len(plan)).map(gather).prefetch(4)
        dataset.split = self.split
        return dataset


def _in_batches(pairs: np.ndarray, most: int) -> np.ndarray:
    """The pairs of a bucket as batches: int64 [batches, most], the last of some rows -1."""
    count = -(-len(pairs) // most)
    short = count * most - len(pairs)  # batches with a row too few; fewer than there are batches
    full = pairs[: (count - short) * most].reshape(-1, most)
    rest = pairs[(count - short) * most :].reshape(short, most - 1)
    return np.concatenate([full, np.pad(rest, ((0, 0), (0, 1)), constant_values=-1)])
