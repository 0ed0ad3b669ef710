"""Encode a split once, in parallel, into shards of ids; `shards` describes the files.

One process reads the text and cuts it into blocks of 131,072 pairs. Worker processes, one per core,
make a shard from each block: they encode its pairs, drop those that are empty or too long, and
write the rest. A shard's summary records the fingerprints of its text and of the vocabulary, and
the length limit. A run that was killed therefore keeps its finished shards, and a shard is made
again if the text, the vocabulary, the limit or a filter has changed. The process that reads the
text also finds the pairs that repeat earlier ones, since no worker sees the whole text.
"""

from __future__ import annotations

import collections
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from pipelines import progress, storage
from pipelines.errors import BadInput
from pipelines.filters import NO_FILTERS, Filters
from pipelines.repeats import Repeats
from pipelines.shard_files import (
    MANIFEST,
    Damaged,
    checksum,
    describes,
    npy,
    parse_manifest,
    parse_summary,
    shard_files,
)
from pipelines.shards import EncodedSplit
from pipelines.vocabulary import Vocabulary
from pipelines.workers import in_order

Pair = Mapping[str, str]  # {"source", "target"}
Block = tuple[int, list[Pair]]  # the block's number, counted from 0, and its pairs
# A block, and which of its pairs, by index, repeat an earlier pair of the text; none are listed
# unless they are to be dropped.
MarkedBlock = tuple[int, list[Pair], list[int]]
Summary = dict[str, Any]  # a shard's fingerprints, limit, counts, file sizes and checksums

# 32 MB of WMT's text, which take two seconds to encode. WMT14 has 35 (German) and 312 (French)
# shards.
PAIRS_PER_SHARD = 2**17
# A text of documents, or of no sense at all, fills a shard with fewer pairs: five blocks or so are
# in memory. Pairs of sentences have 250 characters; this is reached with 2,048.
_CHARACTERS_PER_SHARD = 2**28
# Version of shards and manifest; raise it when their content or layout changes. Checksums came
# without a new number, so that splits without them are still used.
_FORMAT = 1
_FETCHED = "fetched.json"  # in a local copy: the manifest that the copied files belong to


def encode_split(
    read: Callable[[], Iterable[Pair]],
    vocabulary: Vocabulary,
    max_length: int,
    directory: str | Path,
    filters: Filters = NO_FILTERS,
) -> Summary:
    """Encode a split into shards, reusing those that are up to date, and write its manifest.

    Pairs with an empty side, or with more than `max_length` pieces (EOS included) on a side, are
    dropped and counted, and so are those that the filters find. The process may be killed at any
    moment; the next call reuses the shards that were finished. A text of more than one block is
    divided among processes, see `workers`.

    Args:
        read: Returns the split's pairs; called once.
        vocabulary: The vocabulary that encodes them.
        max_length: The most pieces on a side, EOS included.
        directory: Where the split is stored: a local path or an address for tf.io.gfile.
        filters: Which other pairs are dropped.

    Returns:
        The manifest.

    Raises:
        BadInput: All pairs were dropped, or the directory cannot be used.
    """
    directory, pairs = str(directory), iter(read())
    first = list(islice(pairs, 1))  # a missing text is noticed while the manifest is still there
    storage.remove(directory, MANIFEST)  # it must not cover a mixture of old and new shards
    make = partial(
        make_shard,
        vocabulary=vocabulary,
        max_length=max_length,
        directory=directory,
        filters=filters,
    )
    summaries = []
    interval = progress.interval()
    bar = tqdm(desc="prepare", unit=" pairs", unit_scale=True, delay=2, mininterval=interval)
    with bar:
        for summary in in_order(make, marked(blocks(chain(first, pairs)), filters)):
            summaries.append(summary)
            bar.update(summary["read"])
    return write_manifest(summaries, directory)


def encode_in_memory(
    pairs: Sequence[Pair], vocabulary: Vocabulary, max_length: int
) -> EncodedSplit:
    """Encode a small split without writing it; for the arguments and errors see `encode_split`."""
    ids, lengths, dropped = _encoded(pairs, vocabulary, max_length, NO_FILTERS)
    _check_kept(len(lengths), dropped)
    source_tokens, target_tokens = lengths.sum(axis=0).tolist()
    counts = {"dropped": dropped, "source_tokens": source_tokens, "target_tokens": target_tokens}
    return EncodedSplit.from_shards([ids], [lengths], counts)


def find_manifest(
    vocabulary: Vocabulary,
    max_length: int,
    directory: str | Path,
    filters: Filters = NO_FILTERS,
) -> Summary | None:
    """Return the manifest of a complete split made with these settings, or None.

    The text is not read, so a change of the text goes unnoticed.
    """
    manifest = _parsed(parse_manifest, storage.read(str(directory), MANIFEST))
    if _fits(manifest, _wanted(vocabulary, max_length, filters)) and all(
        _has_files(str(directory), *shard) for shard in enumerate(manifest["bytes"])
    ):
        return manifest
    return None


def find_damage(manifest: Summary, directory: str | Path) -> Damaged | None:
    """Return an error about the first file of a split whose checksum is wrong, or None."""
    for number, checksums in enumerate(manifest.get("checksums", [])):
        for name, wanted in zip(shard_files(number)[:2], checksums, strict=True):
            content = storage.read(str(directory), name)
            if content is None or checksum(content) != wanted:
                return Damaged(f"{directory}/{name}", f"its checksum is not {wanted}")
    return None


def blocks(examples: Iterable[Pair]) -> Iterator[Block]:
    """Yield the text in numbered blocks of `PAIRS_PER_SHARD` pairs; the last may be shorter.

    A block ends earlier where it reaches 268 million characters.
    """
    numbers, pairs, characters = count(), [], 0
    for pair in examples:
        pairs.append(pair)
        characters += len(pair["source"]) + len(pair["target"])
        if len(pairs) == PAIRS_PER_SHARD or characters >= _CHARACTERS_PER_SHARD:
            yield next(numbers), pairs
            pairs, characters = [], 0
    if pairs:
        yield next(numbers), pairs


def marked(blocks: Iterable[Block], filters: Filters) -> Iterator[MarkedBlock]:
    """Add to each block which of its pairs repeat earlier ones, if filters drop these."""
    repeats = Repeats() if filters.drop_duplicates else None
    for number, pairs in blocks:
        repeated = [] if repeats is None else np.flatnonzero(repeats.among(pairs)).tolist()
        yield number, pairs, repeated


def text_fingerprint(block_fingerprints: Iterable[str]) -> str:
    """Return the fingerprint of a whole text, given those of its blocks in order."""
    return _digest("\n".join(block_fingerprints))


def block_fingerprint(pairs: Iterable[Pair]) -> str:
    """Return the fingerprint of a block's pairs, both sides included."""
    return _digest("\n".join(f"{pair['source']}\t{pair['target']}" for pair in pairs))


def make_shard(
    block: MarkedBlock,
    *,
    vocabulary: Vocabulary,
    max_length: int,
    directory: str,
    filters: Filters = NO_FILTERS,
) -> Summary:
    """Write the shard of a block unless it is up to date, and return its summary.

    A shard is up to date if its summary has the fingerprints of the text and the vocabulary, the
    limit, the filters, and the checksums of its files. Summaries of earlier versions have no
    checksums; their shards are made anew.
    """
    number, pairs, repeated = block
    *names, summary_file = shard_files(number)
    wanted = _wanted(vocabulary, max_length, filters) | {"text": block_fingerprint(pairs)}
    wanted |= {"number": number, "read": len(pairs)}
    if filters.drop_duplicates:  # they depend on the blocks before, which may have changed
        wanted["repeated"] = _digest(str(repeated))
    found = _parsed(parse_summary, storage.read(directory, summary_file))
    if _fits(found, wanted):
        if describes(found, *(storage.read(directory, name) or b"" for name in names)):
            return found | wanted
        print(f"{directory}/{summary_file[:-5]}: damaged; it is made again", file=sys.stderr)
    ids, lengths, dropped = _encoded(pairs, vocabulary, max_length, filters, repeated)
    storage.remove(directory, summary_file)  # until the files that it describes are written
    files = dict(zip(names, (npy(ids), npy(lengths)), strict=True))
    for name, content in files.items():
        storage.write(directory, name, content)
    summary = wanted | {
        "pairs": len(lengths),
        "source_tokens": int(lengths[:, 0].sum()),
        "target_tokens": int(lengths[:, 1].sum()),
        "dropped": dropped,
        "bytes": [len(content) for content in files.values()],
        "checksums": [checksum(content) for content in files.values()],
    }
    storage.write(directory, summary_file, _text(summary))
    return summary


def write_manifest(summaries: Iterable[Summary], directory: str) -> Summary:
    """Write the manifest of a split whose shards are complete, and delete left-over shards.

    Left-over shards, numbered beyond the last one, belong to an earlier and longer text.

    Args:
        summaries: The summaries of the split's shards, in any order.
        directory: Where the split is stored.

    Returns:
        The manifest.

    Raises:
        BadInput: All pairs were dropped.
    """
    summaries = sorted(summaries, key=lambda summary: summary["number"])
    dropped: collections.Counter[str] = collections.Counter()
    for summary in summaries:
        dropped.update(summary["dropped"])
    pairs = sum(summary["pairs"] for summary in summaries)
    _check_kept(pairs, dropped, f"{directory}: ")
    ours = {name for number in range(len(summaries)) for name in shard_files(number)}
    for name in storage.names(directory):
        if name.startswith("shard-") and name not in ours:
            storage.remove(directory, name)
    manifest = {
        **{name: summaries[0][name] for name in ("format", "vocabulary", "max_length", "filters")},
        "text": text_fingerprint(summary["text"] for summary in summaries),
        "shards": len(summaries),
        "pairs": pairs,
        "source_tokens": sum(summary["source_tokens"] for summary in summaries),
        "target_tokens": sum(summary["target_tokens"] for summary in summaries),
        "dropped": dict(dropped),
        "bytes": [summary["bytes"] for summary in summaries],
        "checksums": [summary["checksums"] for summary in summaries],
    }
    storage.write(directory, MANIFEST, _text(manifest))
    return manifest


def _check_kept(pairs: int, dropped: Mapping[str, int], where: str = "") -> None:
    if not pairs:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
        raise BadInput(
            f"{where}no sentence pair is left (dropped: {reasons or 'none, the text is empty'}); "
            "check the text, the length limit and the filters"
        )


def fetch_split(address: str, directory: Path) -> None:
    """Copy a finished split from an address to a local directory, skipping files already copied.

    Raises:
        BadInput: There is no finished split at the address.
        Damaged: A file at the address is missing or damaged.
    """
    content, local = storage.read(address, MANIFEST), str(directory)
    manifest = _parsed(parse_manifest, content)
    if content is None or not manifest:
        raise BadInput(
            f"{address}: no finished split there, {MANIFEST} is missing or damaged; create it "
            "with python -m t2t_repro.prepare"
        )
    if storage.read(local, _FETCHED) != content:  # another split's files may have equal sizes
        for name in storage.names(local):
            storage.remove(local, name)
        storage.write(local, _FETCHED, content)
    for number, sizes in enumerate(manifest["bytes"]):
        checksums = manifest["checksums"][number] if "checksums" in manifest else [None, None]
        for name, size, wanted in zip(shard_files(number)[:2], sizes, checksums, strict=True):
            copied = storage.read(local, name) if storage.size(local, name) == size else None
            if copied is None or wanted not in (None, checksum(copied)):
                storage.write(local, name, _read_all(address, name, size, wanted))
    storage.write(local, MANIFEST, content)


def _read_all(address: str, name: str, size: int, wanted: str | None) -> bytes:
    content = storage.read(address, name)
    if content is None or len(content) != size:
        raise Damaged(f"{address}/{name}", "missing or cut short")
    if wanted not in (None, checksum(content)):
        raise Damaged(f"{address}/{name}", f"its checksum is not {wanted}")
    return content


def _wanted(vocabulary: Vocabulary, max_length: int, filters: Filters) -> Summary:
    return {
        "format": _FORMAT,
        "vocabulary": vocabulary.fingerprint,
        "max_length": max_length,
        "filters": filters.used,
    }


def _fits(found: Summary, wanted: Summary) -> bool:
    """Return whether a summary or manifest has these values; earlier versions had no filters."""
    return wanted.items() <= ({"filters": {}} | found).items()


def _encoded(
    pairs: Sequence[Pair],
    vocabulary: Vocabulary,
    max_length: int,
    filters: Filters,
    repeated: Sequence[int] = (),
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Return (ids of the pairs kept, their lengths int32 [pairs, 2], {reason: pairs dropped}).

    A pair is counted under the first of its reasons.
    """
    ids, lengths = vocabulary.encode_flat(
        [pair[side] for pair in pairs for side in ("source", "target")]
    )
    lengths = lengths.reshape(-1, 2)
    reasons = {
        "with an empty side": lengths.min(axis=1) <= 1,  # EOS alone
        f"longer than {max_length} pieces": lengths.max(axis=1) > max_length,
    }
    kept, dropped = np.ones(len(pairs), bool), {}
    for reason, found in (reasons | filters.reasons(pairs, lengths, repeated)).items():
        dropped[reason] = int((kept & found).sum())
        kept &= ~found
    return ids[np.repeat(kept, lengths.sum(axis=1))], lengths[kept].astype(np.int32), dropped


def _has_files(directory: str, number: int, sizes: list[int]) -> bool:
    """Return whether a shard's ids and lengths files exist and have these sizes in bytes."""
    names = shard_files(number)[:2]
    return [storage.size(directory, name) for name in names] == sizes


def _text(values: Summary) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()


def _parsed(parse: Callable[[bytes], Summary], content: bytes | None) -> Summary:
    """Parse a manifest or a summary; return {} if it is missing or damaged."""
    try:
        return parse(content) if content else {}
    except ValueError:
        return {}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
