"""A split as ids, with random access: what `prepare` wrote, read back.

A folder of shards and, once all of them are there, a manifest. A shard holds up to 131,072 pairs in
two arrays, memory-mapped when read: the ids of each pair, source then target, one pair after the
other; and the lengths [pairs, 2]. Both sides end with EOS.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MANIFEST = "manifest.json"


def shard_files(number: int) -> tuple[str, str, str]:
    """Names of a shard's ids, lengths and summary; it is whole once the summary is there."""
    stem = f"shard-{number:05d}"
    return f"{stem}.ids.npy", f"{stem}.lengths.npy", f"{stem}.json"


@dataclasses.dataclass(frozen=True)
class EncodedSplit:
    """Pairs of sentences as ids; p is their number."""

    ids: Sequence[np.ndarray]  # of each shard, [sum of its lengths] uint16 or int32
    shard: np.ndarray  # [p], where a pair is
    start: np.ndarray  # [p], where it begins in the shard's ids
    lengths: np.ndarray  # int32 [p, 2], source and target, EOS included
    manifest: Mapping[str, Any]

    @classmethod
    def load(cls, directory: str | Path) -> EncodedSplit:
        """Maps a folder that `prepare` finished; 4.5M pairs take 0.1 s.

        Raises:
            OSError: it is not finished, or cannot be read.
            ValueError: it is damaged.
        """
        directory = Path(directory)
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        _allow_open_files()
        shards = [_shard(directory, number) for number in range(manifest["shards"])]
        ids, lengths = [shard[0] for shard in shards], [shard[1] for shard in shards]
        result = cls.of_shards(ids, lengths, manifest)
        if len(result) != manifest["pairs"]:
            raise ValueError(f"{len(result)} pairs, wanted {manifest['pairs']}")
        return result

    @classmethod
    def of_shards(
        cls, ids: Sequence[np.ndarray], lengths: Sequence[np.ndarray], manifest: Mapping[str, Any]
    ) -> EncodedSplit:
        """The pairs of some shards: the ids and the lengths of each."""
        starts = [np.cumsum(part.sum(1)) - part.sum(1) for part in lengths]
        return cls(
            ids,
            np.repeat(np.arange(len(ids), dtype=np.int32), [len(part) for part in lengths]),
            np.concatenate(starts),
            np.concatenate(lengths),
            manifest,
        )

    def with_shard(self, ids: np.ndarray, lengths: np.ndarray) -> EncodedSplit:
        """These pairs and, behind them, those of one more shard."""
        own = EncodedSplit.of_shards([ids], [lengths], self.manifest)
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
        """The pairs as rows (source int32 [rows, s], target int32 [rows, t]), PAD behind them.

        A pair of -1 is an empty row. 100 million tokens a second on one core.
        """
        source = np.zeros((len(pairs), source_length), np.int32)  # PAD is 0
        target = np.zeros((len(pairs), target_length), np.int32)
        full = np.flatnonzero(pairs >= 0)
        chosen = pairs[full]
        where = zip(
            full.tolist(),
            self.shard[chosen].tolist(),
            self.start[chosen].tolist(),
            *self.lengths[chosen].T.tolist(),
            strict=True,
        )
        for row, shard, start, s, t in where:
            ids = self.ids[shard]
            source[row, :s] = ids[start : start + s]
            target[row, :t] = ids[start + s : start + s + t]
        return source, target

    def report(self) -> str:
        """What was kept and dropped, in one line for the user."""
        kept = (
            f"{len(self):,} pairs, {self.manifest['source_tokens']:,} source and "
            f"{self.manifest['target_tokens']:,} target pieces"
        )
        dropped = self.manifest["dropped"]
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
        return f"{kept}; dropped: {reasons or 'none'}"


def as_shard(
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of pairs (source, target) as a shard's arrays: ids, lengths."""
    sides = [side for pair in pairs for side in pair]
    lengths = np.array([len(side) for side in sides], np.int32).reshape(-1, 2)
    return np.concatenate([[], *sides]).astype(dtype), lengths


def _allow_open_files() -> None:
    """As many as the system lets this process have: every shard stays open, 312 of WMT14's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS's hard limit is more than it allows
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _shard(directory: Path, number: int) -> tuple[np.ndarray, np.ndarray]:
    """A shard's ids, memory-mapped, and its lengths."""
    ids_file, lengths_file, _ = shard_files(number)
    try:
        # Without np.memmap around it: slicing that costs five times as much.
        ids = np.asarray(np.load(directory / ids_file, mmap_mode="r"))
        lengths = np.load(directory / lengths_file)
    except EOFError as error:
        raise ValueError(f"shard {number} is cut short") from error
    if lengths.sum() != len(ids):
        raise ValueError(f"{ids_file} does not fit {lengths_file}")
    return ids, lengths
