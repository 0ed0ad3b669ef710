"""Batches straight from text files: one tf.data graph, for text that is not prepared first.

    files > shard > shuffle > records > shuffle > text > pieces > filter > buckets > prefetch

`read` goes as far as shuffled records, `encode` as far as pieces that are neither empty nor too
long, and `in_batches` to the end. All that is known of the text in advance are the lengths of a
`sample`, from which `choose` makes the buckets.

An epoch is a function of (seed, epoch), except for BPE dropout: sentencepiece draws it from a
generator that TensorFlow Text cannot seed. The place in an epoch is the state of its iterator,
which holds the pairs that were read but not yet handed out, as text or as the very pieces drawn.
A checkpoint contains this state, so a resumed run neither repeats nor loses a pair.

Several workers read a part each, epoch by epoch, without waiting for one another. One may be in the
next epoch already while others end theirs: every pair still comes once in each epoch.

`pipelines.batching` plans the batches of prepared text instead. It leaves less padding, and its
place in an epoch is an integer.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import ClassVar, Protocol

import numpy as np
import tensorflow as tf

from pipelines.batching import untuned
from pipelines.buckets import Buckets, Rule, choose_buckets
from pipelines.errors import BadInput, first_line

# Records among which the next one is drawn. A checkpoint holds them, in 0.8 kB for a pair of lines.
_SHUFFLED = 50_000
_OPEN_FILES = 16  # read in turn, so that neighbours in a file are apart even before the shuffle
_BLOCK = 512  # records parsed and tokenised at a time
_SAMPLE = 50_000  # pairs whose lengths decide the buckets; 2 to 4 s
# Each bucket holds half a batch on average, which is in checkpoints too: 0.1 MB with 25,000 tokens.
_MOST_BUCKETS = 64

# What reading raises when a file has vanished, has changed, or may no longer be read.
_UNREADABLE = (
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
)

Encode = Callable[[tf.Tensor], tf.RaggedTensor]  # string [n] -> int32 [n, (length)]


class Text(Protocol):
    """The files of a training text; a record is a line, two aligned lines, or a tf.Example."""

    @property
    def files(self) -> tuple[tuple[str, ...], ...]:
        """The groups of paths that are read together: one file, or a source and a target."""

    def read(self, paths: tf.Tensor) -> tf.data.Dataset:
        """Return the records of one member of `files`, string [1 or 2]."""

    def parse(self, *records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the source sentences [n] and the target sentences [n] of n records."""


@dataclasses.dataclass(frozen=True)
class AlignedFiles:
    """Text in pairs of files (source, target), whose lines of one number belong together."""

    files: tuple[tuple[str, str], ...]

    def read(self, paths: tf.Tensor) -> tf.data.Dataset:
        """Return the pairs of lines of two files, plain or .gz."""
        return tf.data.Dataset.zip((_lines(paths[0]), _lines(paths[1])))

    def parse(self, source: tf.Tensor, target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the lines themselves."""
        return source, target


@dataclasses.dataclass(frozen=True)
class TabSeparatedFiles:
    """Text in files of lines source<TAB>target."""

    files: tuple[tuple[str], ...]

    def read(self, paths: tf.Tensor) -> tf.data.Dataset:
        """Return the lines of a file, plain or .gz."""
        return _lines(paths[0])

    def parse(self, lines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Split lines at their tab."""
        sides = tf.strings.split(lines, "\t").to_tensor(shape=[None, 2])
        return sides[:, 0], sides[:, 1]


@dataclasses.dataclass(frozen=True)
class TFRecordFiles:
    """Text in TFRecord files of tf.Examples, as TFDS prepares them."""

    files: tuple[tuple[str], ...]
    source: str  # the name of the feature, such as "en"
    target: str

    def read(self, paths: tf.Tensor) -> tf.data.Dataset:
        """Return the serialised examples of a file."""
        return tf.data.TFRecordDataset(paths[0])

    def parse(self, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse examples and return their two features."""
        feature = tf.io.FixedLenFeature([], tf.string)
        parsed = tf.io.parse_example(examples, {self.source: feature, self.target: feature})
        return parsed[self.source], parsed[self.target]


def _lines(path: tf.Tensor) -> tf.data.Dataset:
    is_gzipped = tf.strings.regex_full_match(path, r".*\.gz")
    return tf.data.TextLineDataset(path, tf.where(is_gzipped, "GZIP", ""))


def read(text: Text, seed: int, shard: int | tf.Tensor = 0, shards: int = 1) -> tf.data.Dataset:
    """Return shuffled records of a text.

    Args:
        text: The files.
        seed: Decides the order.
        shard: Which part of the text to read, from 0. The parts of one seed are disjoint, and all
            of them together are the text.
        shards: The number of parts. They are whole files if there are as many files, otherwise
            every n-th record.
    """
    order, mix = map(int, np.random.default_rng(seed).integers(2**31, size=2))
    files = tf.data.Dataset.from_tensor_slices(list(text.files))
    files = files.shuffle(len(text.files), seed=order, reshuffle_each_iteration=False)
    by_file = len(text.files) >= shards
    if by_file:
        files = files.shard(shards, shard)
    records = files.interleave(
        text.read, cycle_length=_OPEN_FILES, num_parallel_calls=tf.data.AUTOTUNE
    )
    if not by_file:
        records = records.shard(shards, shard)
    return records.shuffle(_SHUFFLED, seed=mix, reshuffle_each_iteration=False)


def encode(
    records: tf.data.Dataset, text: Text, encode_text: Encode, max_length: int
) -> tf.data.Dataset:
    """Return blocks of pairs as pieces, (source, target), both ragged int32 [n, (length)].

    Pairs with an empty side or more than `max_length` pieces on a side, EOS included, are left out.
    """

    def pieces(*block: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        source, target = map(encode_text, text.parse(*block))
        lengths = tf.stack([source.row_lengths(), target.row_lengths()])
        kept = tf.reduce_all((lengths > 1) & (lengths <= max_length), axis=0)  # 1: EOS alone
        return tf.ragged.boolean_mask(source, kept), tf.ragged.boolean_mask(target, kept)

    return records.batch(_BLOCK).map(pieces, num_parallel_calls=tf.data.AUTOTUNE)


def in_batches(blocks: tf.data.Dataset, buckets: Buckets) -> tf.data.Dataset:
    """Return batches (source int32 [b, s], target int32 [b, t]), each padded to its longest pair.

    A bucket hands out a batch when it has enough pairs, and what is left at the end.
    """
    source_length, target_length = (tf.constant(side, tf.int64) for side in buckets[:2])

    def rows(
        source: tf.RaggedTensor, target: tf.RaggedTensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Pad a block's pairs, and add the first bucket that is large enough on both sides."""
        fits = source.row_lengths()[:, None] <= source_length
        fits &= target.row_lengths()[:, None] <= target_length
        bucket = tf.argmax(tf.cast(fits, tf.int32), axis=1, output_type=tf.int32)
        return source.to_tensor(), target.to_tensor(), bucket

    def trimmed(source: tf.Tensor, target: tf.Tensor, bucket: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Cut off the columns that hold only padding, since a block is as wide as its longest."""
        longest = [tf.reduce_max(tf.math.count_nonzero(side, axis=1)) for side in (source, target)]
        return source[:, : longest[0]], target[:, : longest[1]]

    return (
        blocks.map(rows, num_parallel_calls=tf.data.AUTOTUNE)
        .unbatch()
        .bucket_by_sequence_length(
            # The "length" is the bucket's number; bucket k lies between boundaries k and k + 1.
            lambda source, target, bucket: bucket,
            bucket_boundaries=list(range(1, len(buckets.rows))),
            bucket_batch_sizes=buckets.rows.tolist(),
            padded_shapes=([None], [None], []),
        )
        .map(trimmed)
        .prefetch(4)
    )


def choose(
    lengths: np.ndarray,
    *,
    tokens_per_batch: int,
    max_shapes: int,
    count_padding: bool,
    max_length: int,
) -> Buckets:
    """Choose the buckets of a stream, the smallest first; `bucket` is empty.

    Args:
        lengths: int [pairs, 2], the source and target lengths of a sample. `_SAMPLE` of them stand
            for a longer text, fewer are all of it.
        tokens_per_batch: The token budget of a batch, on each side.
        max_shapes: The most buckets, without the last one, for pairs that no other bucket holds.
        count_padding: Whether padding counts towards `tokens_per_batch`.
        max_length: The most pieces that a side can have.
    """
    source, target = np.tile(lengths, (20 if len(lengths) == _SAMPLE else 1, 1)).T
    shapes = min(max_shapes, _MOST_BUCKETS)
    chosen = choose_buckets(source, target, tokens_per_batch, shapes, count_padding)
    order = np.argsort(chosen.source_length + chosen.target_length, kind="stable")
    source_length, target_length, rows = (side[order] for side in chosen[:3])
    return Buckets(
        np.append(source_length, max_length),
        np.append(target_length, max_length),
        np.append(rows, Rule(tokens_per_batch).most_rows(max_length)),
        np.empty(0, np.int64),
    )


def sample(text: Text, encode_text: Encode, seed: int, max_length: int) -> np.ndarray:
    """Return the source and target lengths of up to `_SAMPLE` pairs: int [pairs, 2].

    Raises:
        BadInput: The text can no longer be read, or no pair is left of it.
    """
    blocks = encode(read(text, seed), text, encode_text, max_length)
    lengths = blocks.map(lambda *sides: tf.stack([side.row_lengths() for side in sides], 1))
    with _explained():
        for found in lengths.unbatch().batch(_SAMPLE).take(1).as_numpy_iterator():
            return found
    raise BadInput(
        f"training text: all pairs have an empty side or more than {max_length} pieces; check the "
        "files, or raise --max_length"
    )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raise BadInput in place of TensorFlow's errors about a text that cannot be read."""
    try:
        yield
    except _UNREADABLE as error:
        raise BadInput(
            f"training text: cannot be read any more ({first_line(error)}); bring the same files "
            "back and run the same command again; it resumes from the last checkpoint"
        ) from None


class Place(tf.Module):
    """The part of a checkpoint that says where a stream is.

    A checkpoint restores the iterator when the attribute is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.iterator: Iterator[tuple[tf.Tensor, tf.Tensor]] = iter(())
        # Sums over the batches that were handed out, of b s, b t, b s s, b t t and b t s; see
        # `t2t_repro.model.flops.Positions`.
        self.positions = tf.Variable(np.zeros(5, np.int64), trainable=False)


@dataclasses.dataclass(frozen=True)
class Stream:
    """The batches of a text, epoch after epoch; the training loop uses it like a `Batching`.

    Args:
        text: The files of the training text.
        buckets: Which lengths share a batch, and how many rows it has; see `choose`.
        encode_text: Turns sentences into pieces.
        altered: Does so with BPE dropout; None if there is none.
        altered_updates: An epoch that begins after this many updates or more is not altered.
        max_length: The most pieces on a side; longer pairs are left out.
        seed: The run's seed.
        shard: Which part of each epoch this worker reads; see `read`.
        shards: The number of parts.
        place: The place in the data, to be saved and restored.
    """

    text: Text
    buckets: Buckets
    encode_text: Encode
    _: dataclasses.KW_ONLY
    altered: Encode | None = None
    altered_updates: int = 0
    max_length: int
    seed: int
    shard: int = 0
    shards: int = 1
    place: Place = dataclasses.field(default_factory=Place)

    pairs: ClassVar[int] = 0  # they are not counted

    def for_epoch(self, epoch: int, updates_before: int) -> Stream:
        """Return the stream for an epoch that begins after `updates_before` updates."""
        if not self.altered or updates_before >= self.altered_updates:
            return self
        return dataclasses.replace(self, encode_text=self.altered)

    def batches(self, epoch: int, first: int = 0) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yield the batches of this worker's part of an epoch (int32 [b, s], int32 [b, t]).

        If a checkpoint was read before, these are the batches that follow its place, `first` of
        the epoch's batches being handed out already.

        Raises:
            BadInput: The text can no longer be read, or no pair falls on this part.
        """
        is_empty = not first
        with _explained():
            self.place.iterator = iter(self.dataset(epoch, self.shard, self.shards))
            for source, target in self.place.iterator:
                is_empty = False
                (b, s), t = source.shape, target.shape[1]
                self.place.positions.assign_add([b * s, b * t, b * s * s, b * t * t, b * t * s])
                yield source, target
        if is_empty:
            raise BadInput(
                f"training text: part {self.shard} of {self.shards} has no pair that can be "
                "trained on; start fewer workers, or leave --stream out"
            )

    def dataset(self, epoch: int, shard: int | tf.Tensor = 0, shards: int = 1) -> tf.data.Dataset:
        """Return the batches of an epoch, or of one part of it; see `read`."""
        seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
        records = read(self.text, seed, shard, shards)
        blocks = encode(records, self.text, self.encode_text, self.max_length)
        return untuned(in_batches(blocks, self.buckets))
