"""An encoded split on disk, with random access to its pairs; `encode` writes the files.

A split is a folder of shards and a manifest, which is written once all the shards are complete. A
shard holds up to 131,072 pairs in two arrays: the ids, memory-mapped when read, with the source and
then the target of one pair after another; and the lengths [pairs, 2]. Both sides end with EOS.
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.shard_files import MANIFEST, Damaged, read_manifest, read_shard


@dataclasses.dataclass(frozen=True)
class EncodedSplit:
    """The sentence pairs of a split as ids; p is the number of pairs."""

    ids: Sequence[np.ndarray]  # one array per shard: [sum of its lengths] uint16 or int32
    shard: np.ndarray  # int32 [p], the shard that holds each pair
    start: np.ndarray  # int64 [p], the index of each pair's first id in its shard
    lengths: np.ndarray  # int32 [p, 2], source and target, EOS included
    manifest: Mapping[str, Any]

    @classmethod
    def load(cls, directory: str | Path, vocabulary_size: int | None = None) -> EncodedSplit:
        """Open a folder that `encode.encode_split` has finished; 4.5M pairs take 0.2 s.

        Args:
            directory: The folder.
            vocabulary_size: Every id must be less; None if that is not known.

        Raises:
            Damaged: A file is missing, or not what the manifest describes.
            BadInput: A file cannot be read.
        """
        directory = Path(directory)
        manifest = read_manifest(directory / MANIFEST)
        _allow_open_files()
        shards = [
            read_shard(directory, number, manifest, vocabulary_size)
            for number in range(manifest["shards"])
        ]
        pairs = sum(len(lengths) for _, lengths in shards)
        if not pairs or pairs != manifest["pairs"]:
            reason = f"{manifest['pairs']:,} pairs, but its shards have {pairs:,}"
            raise Damaged(directory / MANIFEST, reason)
        ids, lengths = zip(*shards, strict=True)
        return cls.from_shards(ids, lengths, manifest)

    @classmethod
    def from_shards(
        cls, ids: Sequence[np.ndarray], lengths: Sequence[np.ndarray], manifest: Mapping[str, Any]
    ) -> EncodedSplit:
        """Return a split made of shards, given the ids and the lengths of each shard."""
        starts = [np.cumsum(part.sum(1)) - part.sum(1) for part in lengths]
        return cls(
            ids,
            np.repeat(np.arange(len(ids), dtype=np.int32), [len(part) for part in lengths]),
            np.concatenate(starts),
            np.concatenate(lengths),
            manifest,
        )

    def with_shard(self, ids: np.ndarray, lengths: np.ndarray) -> EncodedSplit:
        """Return a split with the pairs of one more shard after its own."""
        own = EncodedSplit.from_shards([ids], [lengths], self.manifest)
        return EncodedSplit(
            [*self.ids, ids],
            np.append(self.shard, own.shard + len(self.ids)),
            np.append(self.start, own.start),
            np.append(self.lengths, lengths, axis=0),
            self.manifest,
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(
        self, pairs: np.ndarray, source_length: int, target_length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs as padded rows; one core gathers 100 million tokens per second.

        Args:
            pairs: Int [rows], the indices of the pairs; -1 stands for an empty row.
            source_length: s, the length to which source rows are padded.
            target_length: t, the length to which target rows are padded.

        Returns:
            Source int32 [rows, s] and target int32 [rows, t]; PAD follows the ids of a row.
        """
        source = np.zeros((len(pairs), source_length), np.int32)  # PAD is 0
        target = np.zeros((len(pairs), target_length), np.int32)
        full = np.flatnonzero(pairs >= 0)
        for row, (s, t) in zip(full.tolist(), self.sentences(pairs[full]), strict=True):
            source[row, : len(s)] = s
            target[row, : len(t)] = t
        return source, target

    def sentences(self, pairs: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the ids of each of the pairs, source and target, EOS included.

        Args:
            pairs: Int [n], the indices of the pairs.
        """
        where = zip(
            self.shard[pairs].tolist(),
            self.start[pairs].tolist(),
            *self.lengths[pairs].T.tolist(),
            strict=True,
        )
        for shard, start, s, t in where:
            ids = self.ids[shard]
            yield ids[start : start + s], ids[start + s : start + s + t]

    def report(self) -> str:
        """Return a one-line summary, for the user, of the pairs kept and dropped."""
        return counts_line(len(self), self.manifest)


def counts_line(pairs: int, manifest: Mapping[str, Any]) -> str:
    """Return the number of pairs kept, and a manifest's numbers of pieces and pairs dropped."""
    kept = (
        f"{pairs:,} pairs, {manifest['source_tokens']:,} source and "
        f"{manifest['target_tokens']:,} target pieces"
    )
    dropped = manifest["dropped"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    return f"{kept}; dropped: {reasons or 'none'}"


def as_shard(
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of (source ids, target ids) as the two arrays of a shard: ids, lengths."""
    sides = [side for pair in pairs for side in pair]
    lengths = np.array([len(side) for side in sides], np.int32).reshape(-1, 2)
    return np.concatenate([np.empty(0, dtype), *sides], dtype=dtype, casting="unsafe"), lengths


def _allow_open_files() -> None:
    """Raise this process's limit on open files: every shard stays open, up to 312 for WMT14."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
