"""Tokenise a split once, in parallel, into shards of ids; see `prepared` for what is written.

One process reads the text and cuts it into blocks of 131,072 pairs. Others, one a core, make a
shard of each block: encode, drop what is empty or too long, write. A shard is known by the
fingerprints of its block's text and of the vocabulary and by the length limit. So what a killed
start has finished is not made again, and what another text, vocabulary or limit has made is.
"""

from __future__ import annotations

import collections
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from pipelines import storage
from pipelines.errors import BadInput
from pipelines.shards import MANIFEST, shard_files
from pipelines.vocabulary import Vocabulary
from pipelines.workers import in_order

Pair = Mapping[str, str]  # {"source", "target"}
Block = tuple[int, list[Pair]]  # number, from 0, and pairs
Summary = dict[str, Any]  # of a shard: fingerprints, limit, counts, bytes of its files

# 32 MB of WMT's text, made into a shard in two seconds; 35 and 312 shards for WMT14.
PAIRS_PER_SHARD = 2**17
_FORMAT = 1  # of shards and manifest; another one for every change of what is kept and how
_FETCHED = "fetched.json"  # the manifest that the files of a copy belong to


def encode_split(
    read: Callable[[], Iterable[Pair]],
    vocabulary: Vocabulary,
    max_length: int,
    directory: str | Path,
) -> Summary:
    """Makes the shards of a split that are not there yet, then its manifest.

    Pairs with an empty side, or with more than `max_length` pieces (EOS included) on a side, are
    dropped and counted. May be killed at any moment. A text of more than one block is shared out to
    processes, see `workers`.

    Args:
        read: gives the split's text.
        vocabulary: what encodes it.
        max_length: most pieces of a side.
        directory: where the split is kept, also an address for tf.io.gfile.

    Returns:
        The manifest.

    Raises:
        BadInput: no pair is left, or the directory cannot be used.
    """
    directory = str(directory)
    storage.remove(directory, MANIFEST)  # it must not vouch for a mixture of old and new shards
    make = partial(make_shard, vocabulary=vocabulary, max_length=max_length, directory=directory)
    summaries = []
    # Drawn ten times a second for a person, twice a minute for a log file; not if it is soon done.
    interval = 0.1 if sys.stderr.isatty() else 30
    bar = tqdm(desc="prepare", unit=" pairs", unit_scale=True, delay=2, mininterval=interval)
    with bar:
        for summary in in_order(make, blocks(read())):
            summaries.append(summary)
            bar.update(summary["read"])
    return write_manifest(summaries, directory)


def find_manifest(vocabulary: Vocabulary, max_length: int, directory: str | Path) -> Summary | None:
    """The manifest of a split that is there, whole and made as it would be now, or None.

    Its text is not read to see whether it is still the same.
    """
    manifest = _json(storage.read(str(directory), MANIFEST))
    if _wanted(vocabulary, max_length).items() <= manifest.items() and all(
        _has_files(str(directory), *shard) for shard in enumerate(manifest["bytes"])
    ):
        return manifest
    return None


def blocks(examples: Iterable[Pair]) -> Iterator[Block]:
    """The text in blocks of `PAIRS_PER_SHARD` pairs, the last one shorter."""
    iterator = iter(examples)
    for number in count():
        if not (pairs := list(islice(iterator, PAIRS_PER_SHARD))):
            return
        yield number, pairs


def text_fingerprint(block_fingerprints: Iterable[str]) -> str:
    """Of a whole text, from those of its blocks in order."""
    return _digest("\n".join(block_fingerprints))


def block_fingerprint(pairs: Iterable[Pair]) -> str:
    """Of both sides of every pair."""
    return _digest("\n".join(f"{pair['source']}\t{pair['target']}" for pair in pairs))


def make_shard(block: Block, *, vocabulary: Vocabulary, max_length: int, directory: str) -> Summary:
    """Writes the shard of a block, unless it is there, and returns its summary."""
    number, pairs = block
    ids_file, lengths_file, summary_file = shard_files(number)
    wanted = _wanted(vocabulary, max_length) | {"text": block_fingerprint(pairs)}
    found = _json(storage.read(directory, summary_file))
    if wanted.items() <= found.items() and _has_files(directory, number, found["bytes"]):
        return found
    ids, lengths, dropped = _encoded(pairs, vocabulary, max_length)
    storage.remove(directory, summary_file)  # while the files beside it are not its own
    files = {ids_file: _npy(ids), lengths_file: _npy(lengths)}
    for name, content in files.items():
        storage.write(directory, name, content)
    summary = wanted | {
        "number": number,
        "read": len(pairs),
        "pairs": len(lengths),
        "source_tokens": int(lengths[:, 0].sum()),
        "target_tokens": int(lengths[:, 1].sum()),
        "dropped": dropped,
        "bytes": [len(content) for content in files.values()],
    }
    storage.write(directory, summary_file, _text(summary))
    return summary


def write_manifest(summaries: Iterable[Summary], directory: str) -> Summary:
    """Writes the manifest of a split whose shards are all there; deletes those of another text.

    Raises:
        BadInput: no pair is left.
    """
    summaries = sorted(summaries, key=lambda summary: summary["number"])
    dropped: collections.Counter[str] = collections.Counter()
    for summary in summaries:
        dropped.update(summary["dropped"])
    pairs = sum(summary["pairs"] for summary in summaries)
    if not pairs:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
        raise BadInput(
            f"no sentence pair is left, dropped: {reasons or 'none, the text is empty'}; check the "
            "text and its length limit"
        )
    ours = {name for number in range(len(summaries)) for name in shard_files(number)}
    for name in storage.names(directory):
        if name.startswith("shard-") and name not in ours:
            storage.remove(directory, name)
    manifest = {
        **{name: summaries[0][name] for name in ("format", "vocabulary", "max_length")},
        "text": text_fingerprint(summary["text"] for summary in summaries),
        "shards": len(summaries),
        "pairs": pairs,
        "source_tokens": sum(summary["source_tokens"] for summary in summaries),
        "target_tokens": sum(summary["target_tokens"] for summary in summaries),
        "dropped": dict(dropped),
        "bytes": [summary["bytes"] for summary in summaries],
    }
    storage.write(directory, MANIFEST, _text(manifest))
    return manifest


def fetch_split(address: str, directory: Path) -> None:
    """Copies a finished split from an address to this machine, but for what is there already.

    Raises:
        BadInput: there is no finished split at the address.
    """
    content, local = storage.read(address, MANIFEST), str(directory)
    manifest = _json(content)
    if content is None or not manifest:
        raise BadInput(
            f"{address}: no finished split there, {MANIFEST} is missing or damaged; make it with "
            "python -m t2t_repro.prepare"
        )
    if storage.read(local, _FETCHED) != content:  # files of another split may be as long
        for name in storage.names(local):
            storage.remove(local, name)
        storage.write(local, _FETCHED, content)
    for number, sizes in enumerate(manifest["bytes"]):
        for name, size in zip(shard_files(number)[:2], sizes, strict=True):
            if storage.size(local, name) != size:
                storage.write(local, name, _read_all(address, name, size))
    storage.write(local, MANIFEST, content)


def _read_all(address: str, name: str, size: int) -> bytes:
    content = storage.read(address, name)
    if content is None or len(content) != size:
        raise BadInput(
            f"{address}: {name} is missing or cut short; prepare it again with python -m "
            "t2t_repro.prepare"
        )
    return content


def _wanted(vocabulary: Vocabulary, max_length: int) -> Summary:
    return {"format": _FORMAT, "vocabulary": vocabulary.fingerprint, "max_length": max_length}


def _encoded(
    pairs: list[Pair], vocabulary: Vocabulary, max_length: int
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """(ids of the pairs kept, their lengths int32 [pairs, 2], {reason: pairs dropped})."""
    ids, lengths = vocabulary.encode_flat(
        [pair[side] for pair in pairs for side in ("source", "target")]
    )
    lengths = lengths.reshape(-1, 2)
    empty = lengths.min(axis=1) <= 1  # EOS alone
    long = ~empty & (lengths.max(axis=1) > max_length)
    kept = ~(empty | long)
    dropped = {
        "with an empty side": int(empty.sum()),
        f"longer than {max_length} pieces": int(long.sum()),
    }
    return ids[np.repeat(kept, lengths.sum(axis=1))], lengths[kept].astype(np.int32), dropped


def _has_files(directory: str, number: int, sizes: list[int]) -> bool:
    """Whether the ids and the lengths of a shard are there, in full length."""
    names = shard_files(number)[:2]
    return [storage.size(directory, name) for name in names] == sizes


def _npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def _text(values: Summary) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()


def _json(content: bytes | None) -> Summary:
    """Empty if there is no content, or if it is damaged."""
    try:
        values = json.loads(content) if content else {}
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
