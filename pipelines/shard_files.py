"""The files of an encoded split: their names, their layout, and how they are read and distrusted.

A manifest and a shard's summary hold a checksum of each array, and whoever reads an array compares
it: a flipped bit would be another word, and nobody would notice. Manifests of earlier versions lack
checksums. Their arrays are read all the same, since making them again takes the text and minutes.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from pipelines import json_object, regular_file
from pipelines.errors import BadInput
from pipelines.json_object import is_count, is_fingerprint

MANIFEST = "manifest.json"

Values = dict[str, Any]  # the content of a manifest or a summary

# NumPy's header of the two kinds of arrays. It is matched and not evaluated: no file can ask for
# objects (pickles), another order of its values, or a header of a gigabyte.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype><u2|<i4)', 'fortran_order': False, "
    rb"'shape': \((?P<rows>\d{1,12}),(?P<pair> 2)?\), \} *\n",
    re.DOTALL,
)
_LONGEST_HEADER = 256  # bytes; NumPy's has 128
# Bytes read at a time, so that they are in the processor's cache for the checksum and the largest
# id. As many pairs as WMT14 has for German (570 MB, from the page cache) are verified in 0.1 s on
# one core of an Intel Xeon with AMX: less than 1 % of the 15 s in which their training starts.
_READ_AT_ONCE = 1 << 18


class Damaged(BadInput):
    """A file of a split that is missing, or is not the file that preparation wrote there."""

    def __init__(self, path: str | Path, reason: str):
        folder, _, name = str(path).rpartition("/")
        super().__init__(
            f"{path}: damaged ({reason}); wanted the {name} that preparation wrote: delete the "
            f"folder {folder} and run the same command again, which makes it anew from the text"
        )
        self.path, self.reason = path, reason


def shard_files(number: int) -> tuple[str, str, str]:
    """Return the names of a shard's ids, lengths and summary files; the summary is written last."""
    stem = f"shard-{number:05d}"
    return f"{stem}.ids.npy", f"{stem}.lengths.npy", f"{stem}.json"


def npy(values: np.ndarray) -> bytes:
    """Return an array as the content of a file."""
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def checksum(content: bytes) -> str:
    """Return the checksum of a file's content in hexadecimal: 64 bits, XXH3."""
    return xxhash.xxh3_64_hexdigest(content)


def read_manifest(path: Path) -> Values:
    """Read a manifest.

    Raises:
        Damaged: It is missing, or is none.
        BadInput: It cannot be read.
    """
    try:
        return parse_manifest(regular_file.read(path, json_object.MOST_BYTES))
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise Damaged(path, str(error)) from None


def parse_manifest(content: bytes) -> Values:
    """Return the values of a manifest; raise ValueError if they are not those of one."""
    found = json_object.parse(content)
    counts = ("shards", "pairs", "source_tokens", "target_tokens", "max_length")
    lists = {"bytes": _each(is_count)}
    if "checksums" in found:
        lists["checksums"] = _each(is_fingerprint)
    wanted = dict.fromkeys(counts, is_count) | {"text": is_fingerprint, "dropped": _are_reasons}
    json_object.check(found, wanted | lists)
    for name in lists:
        if len(found[name]) != found["shards"]:
            raise ValueError(f"'{name}' of {len(found[name]):,} shards, not {found['shards']:,}")
    return found


def parse_summary(content: bytes) -> Values:
    """Return the values of a shard's summary; raise ValueError if they are not those of one."""
    found = json_object.parse(content)
    counts = ("number", "read", "pairs", "source_tokens", "target_tokens", "max_length")
    wanted = dict.fromkeys(counts, is_count) | {"text": is_fingerprint, "dropped": _are_reasons}
    json_object.check(found, wanted | {"bytes": _two(is_count), "checksums": _two(is_fingerprint)})
    return found


def describes(summary: Values, ids: bytes, lengths: bytes) -> bool:
    """Return whether a summary is that of a shard with these contents of its two files."""
    if [checksum(ids), checksum(lengths)] != summary["checksums"]:
        return False
    try:
        dtype, shape, offset = _layout("lengths", lengths[:_LONGEST_HEADER], len(lengths))
    except Damaged:
        return False
    pairs = np.frombuffer(lengths, dtype, offset=offset).reshape(shape)
    if pairs.ndim != 2:
        return False
    source, target = pairs.sum(0, dtype=np.int64).tolist()
    counts = {"pairs": len(pairs), "source_tokens": source, "target_tokens": target}
    counts |= {"read": len(pairs) + sum(summary["dropped"].values())}
    return (counts | {"bytes": [len(ids), len(lengths)]}).items() <= summary.items()


def _are_reasons(value: Any) -> bool:
    """Return whether a value is {why pairs were dropped: how many}."""
    return (
        isinstance(value, dict)
        and len(value) <= 8
        and all(name.isprintable() and len(name) <= 60 for name in value)
        and all(map(is_count, value.values()))
    )


def _two(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check for a list of two values of a kind: for a shard's ids and its lengths."""
    return lambda value: isinstance(value, list) and len(value) == 2 and all(map(kind, value))


def _each(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check for a list with such a list for each shard."""
    return lambda value: isinstance(value, list) and all(map(_two(kind), value))


def read_shard(
    directory: Path, number: int, manifest: Values, vocabulary_size: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return a shard's ids, memory-mapped, and its lengths [pairs, 2], both verified.

    Args:
        directory: The folder of the split.
        number: The shard's number.
        manifest: The split's manifest.
        vocabulary_size: Every id must be less; None if that is not known.

    Raises:
        Damaged: A file is missing, or not what the manifest describes.
        BadInput: A file cannot be read.
    """
    ids_file, lengths_file = (directory / name for name in shard_files(number)[:2])
    checksums = manifest.get("checksums", [[None, None]] * manifest["shards"])[number]
    sizes = manifest["bytes"][number]
    ids, largest = _read_array(ids_file, sizes[0], checksums[0])
    lengths, _ = _read_array(lengths_file, sizes[1], checksums[1])
    if ids.ndim != 1:
        raise Damaged(ids_file, "pairs of numbers, wanted ids")
    if lengths.ndim != 2 or lengths.dtype != np.int32:
        raise Damaged(lengths_file, f"{lengths.dtype} {list(lengths.shape)}, wanted pairs of int32")
    if len(lengths) and not 0 < lengths.min() <= lengths.max() <= manifest["max_length"]:
        reason = f"lengths from {lengths.min():,} to {lengths.max():,}, not 1 to "
        raise Damaged(lengths_file, f"{reason}{manifest['max_length']:,}")
    if (total := int(lengths.sum(dtype=np.int64))) != len(ids):
        reason = f"the sum of its lengths is {total:,}, but {ids_file.name} has {len(ids):,} ids"
        raise Damaged(lengths_file, reason)
    if vocabulary_size is not None and largest >= vocabulary_size:
        raise Damaged(ids_file, f"an id beyond the vocabulary's {vocabulary_size:,} pieces")
    return ids, lengths


def _read_array(path: Path, size: int, wanted: str | None) -> tuple[np.ndarray, int]:
    """Return an array, memory-mapped, and its largest value, where a negative one is huge."""
    try:
        with regular_file.opened(path) as file:
            if (found := os.fstat(file.fileno()).st_size) != size:
                raise Damaged(path, f"{found:,} bytes, not {size:,}")
            dtype, shape, offset = _layout(path, file.read(_LONGEST_HEADER), size)
            file.seek(0)
            digest, largest = _scan(file, offset, dtype)
            if wanted not in (None, digest):
                raise Damaged(path, f"checksum {digest}, not {wanted}")
            # A plain array: slicing an np.memmap takes five times as long.
            return np.asarray(np.memmap(file, dtype, "r", offset, shape)), largest
    except OSError as error:
        raise _unreadable(path, error) from None


def _layout(path: str | Path, start: bytes, size: int) -> tuple[np.dtype, tuple[int, ...], int]:
    """Return an array's type and shape, and its place in the file, given the file's start."""
    if not (header := _HEADER.match(start)):
        raise Damaged(path, "not an array of ids or lengths in NumPy's format")
    dtype = np.dtype(header["dtype"].decode())
    shape = (int(header["rows"]), *([2] if header["pair"] else []))
    if header.end() + int(np.prod(shape)) * dtype.itemsize != size:
        raise Damaged(path, f"{list(shape)} in a file of {size:,} bytes")
    return dtype, shape, header.end()


def _scan(file: io.BufferedReader, offset: int, dtype: np.dtype) -> tuple[str, int]:
    """Return the checksum of a whole file, and the largest value after the first bytes."""
    digest, largest = xxhash.xxh3_64(file.read(offset)), 0
    # Reading from the memory-mapped array would be no faster, and a bad sector of the disk would
    # kill the process (SIGBUS) instead of raising an OSError.
    chunk = memoryview(bytearray(_READ_AT_ONCE))
    unsigned = np.dtype(f"<u{dtype.itemsize}")
    while count := file.readinto(chunk):
        digest.update(chunk[:count])
        largest = max(largest, int(np.frombuffer(chunk[:count], unsigned).max()))
    return digest.hexdigest(), largest


def _unreadable(path: Path, error: OSError) -> BadInput:
    if isinstance(error, FileNotFoundError):
        return Damaged(path, "missing")
    return BadInput(
        f"{path}: cannot be read ({error.strerror or error}); wanted a file that preparation "
        "wrote: check the disk and the permissions"
    )
