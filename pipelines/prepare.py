"""Tokenise a split once, count what is dropped, and keep the ids with random access.

A prepared split is a folder of four NumPy files and a manifest. Each side is one long array of ids
and the offsets at which its sentences begin, so that sentence i is tokens[offsets[i]:offsets[i+1]];
the arrays are memory-mapped when read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipelines.errors import BadInput
from pipelines.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tensorflow as tf

_CHUNK = 8192  # sentences encoded at a time: enough to keep sentencepiece's threads busy


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a split."""

    tokens: np.ndarray  # [sum of lengths] uint16 or int32
    offsets: np.ndarray  # [pairs + 1] int64

    @property
    def lengths(self) -> np.ndarray:
        """Pieces in each sentence, EOS included: int64 [pairs]."""
        return np.diff(self.offsets)

    @cached_property
    def ragged(self) -> tf.RaggedTensor:
        """The sentences in the CPU's memory, [pairs, (length)]; made once, on first use."""
        import tensorflow as tf

        with tf.device("/cpu:0"):
            tokens, offsets = tf.constant(self.tokens), tf.constant(self.offsets)
            return tf.RaggedTensor.from_row_splits(tokens, offsets, validate=False)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A split as ids: pair i is sentence i of both sides."""

    source: Side
    target: Side
    manifest: dict[str, object]

    def __len__(self) -> int:
        return len(self.source.offsets) - 1

    def report(self) -> str:
        """What was kept and dropped, in one line for the user."""
        dropped = self.manifest["dropped"]
        assert isinstance(dropped, dict)
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
        kept = (
            f"{len(self):,} pairs, {len(self.source.tokens):,} source and "
            f"{len(self.target.tokens):,} target pieces"
        )
        return f"{kept}; dropped: {reasons or 'none'}"


def prepare(
    examples: Iterable[Mapping[str, str]],
    vocabulary: Vocabulary,
    max_length: int,
    directory: Path,
) -> Prepared:
    """The split as ids, from `directory` if it was prepared there with the same settings.

    Pairs with an empty side, or with more than `max_length` pieces (EOS included) on a side, are
    dropped and counted. The folder appears in one piece: a kill leaves nothing half-written.

    Raises:
        BadInput: no pair is left.
    """
    wanted = {"vocabulary": vocabulary.fingerprint, "max_length": max_length}
    found = _load(directory)
    if found is not None and wanted.items() <= found.manifest.items():
        return found
    sides, dropped = _encode(examples, vocabulary, max_length)
    if len(sides["source"][1]) == 1:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        raise BadInput(
            f"no sentence pair is left, dropped: {reasons}; check the text and its length limit"
        )
    manifest = wanted | {"pairs": len(sides["source"][1]) - 1, "dropped": dropped}
    _store(sides, manifest, directory, np.uint16 if vocabulary.size <= 2**16 else np.int32)
    return _load(directory) or _unreadable(directory)


def _encode(
    examples: Iterable[Mapping[str, str]], vocabulary: Vocabulary, max_length: int
) -> tuple[dict[str, tuple[array, array]], dict[str, int]]:
    """({side: (tokens, offsets)}, {reason: pairs dropped})."""
    sides = {side: (array("i"), array("q", [0])) for side in ("source", "target")}
    reasons = ("with an empty side", f"longer than {max_length} pieces")
    dropped = dict.fromkeys(reasons, 0)
    for chunk in _chunks(examples):
        sources = vocabulary.encode([example["source"] for example in chunk])
        targets = vocabulary.encode([example["target"] for example in chunk])
        for source, target in zip(sources, targets, strict=True):
            if min(len(source), len(target)) <= 1:  # EOS alone
                dropped[reasons[0]] += 1
            elif max(len(source), len(target)) > max_length:
                dropped[reasons[1]] += 1
            else:
                _append(sides["source"], source)
                _append(sides["target"], target)
    return sides, dropped


def _append(side: tuple[array, array], ids: list[int]) -> None:
    tokens, offsets = side
    tokens.extend(ids)
    offsets.append(len(tokens))


def _chunks(examples: Iterable[Mapping[str, str]]) -> Iterator[list[Mapping[str, str]]]:
    iterator = iter(examples)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _store(
    sides: dict[str, tuple[array, array]],
    manifest: dict[str, object],
    directory: Path,
    dtype: type[np.generic],
) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    for leftover in directory.parent.glob(f".{directory.name}.*"):  # of a start that was killed
        shutil.rmtree(leftover)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        for side, (tokens, offsets) in sides.items():
            np.save(unfinished / f"{side}_tokens.npy", np.asarray(tokens, dtype))
            np.save(unfinished / f"{side}_offsets.npy", np.asarray(offsets, np.int64))
        (unfinished / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        unfinished.chmod(0o755)  # mkdtemp's 0o700 is for its maker alone
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(unfinished, directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _load(directory: Path) -> Prepared | None:
    """What is in the folder, or None if it is not a whole prepared split."""
    try:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        source, target = (
            Side(
                np.load(directory / f"{side}_tokens.npy", mmap_mode="r"),
                np.load(directory / f"{side}_offsets.npy", mmap_mode="r"),
            )
            for side in ("source", "target")
        )
    except (OSError, EOFError, ValueError):
        return None
    whole = len(source.offsets) == len(target.offsets) == manifest.get("pairs", -1) + 1
    return Prepared(source, target, manifest) if whole else None


def _unreadable(directory: Path) -> Prepared:
    raise BadInput(f"{directory}: what was just written there cannot be read back; is it full?")
