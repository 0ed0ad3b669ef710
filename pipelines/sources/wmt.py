"""The problems `wmt14_ende` and `wmt14_enfr`: the paper's own data (section 5.1), through TFDS.

TFDS's `wmt14_translate/de-en` and `fr-en` consist of Europarl v7, Common Crawl and News Commentary
v9; French also has the UN and 10^9 corpora. They have 4,508,785 and 40,836,876 training pairs. Dev
is newstest2013 (3,000 pairs), test is newstest2014 (3,003 pairs).
"""

import contextlib
import hashlib
import itertools
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow_datasets as tfds
from tensorflow_datasets.translate.wmt import DATASET_MAP

from pipelines.errors import BadInput
from pipelines.sources import tfds_source

NAME = "wmt14_translate"

# Bytes that TFDS writes for all splits: 1.36 GiB and 14.65 GiB according to its catalogue.
PREPARED_BYTES = {"de-en": int(1.36 * 2**30), "fr-en": int(14.65 * 2**30)}
# The growth of an archive when unpacked, an estimate: gzipped text grows by a factor of 2.5 (news)
# to 4 (manuals), and TFDS unpacks all languages of an archive. The one .tar contains gzipped files,
# which are not decompressed.
UNPACKED = {".tgz": 4, ".tar": 1}
# How often TFDS writes the examples, an estimate from its code: if they exceed 1 GB, once to
# shuffle them and once in their final order.
WRITTEN_TIMES = 2


def examples(split: str, *, languages: str, data_dir: str | None) -> Iterator[dict[str, str]]:
    """Yield {"source": English, "target": the other language} of one split.

    The order is always the same; TFDS shuffles the pairs when it prepares them. No pair has an
    empty side.

    Args:
        split: "train", "dev" or "test".
        languages: "de-en" or "fr-en", TFDS's names; the direction here is from English.
        data_dir: TFDS's data directory, or None for its default (TFDS_DATA_DIR, or
            ~/tensorflow_datasets). If the data set is not prepared there, the archives are
            downloaded to downloads/ in it, and the data set is prepared.

    Raises:
        BadInput: `data_dir` does not exist or its content is unusable, or the archives cannot be
            downloaded or prepared.
    """
    builder = _prepared(languages, data_dir)
    other = languages.removesuffix("-en")
    # Select languages by name: TFDS's supervised pairs translate into English.
    return tfds_source.examples(builder, split, source="en", target=other)


def files(split: str, *, languages: str, data_dir: str | None) -> list[str]:
    """Return the TFRecord files of one split; for the arguments and errors see `examples`."""
    return tfds_source.files(_prepared(languages, data_dir), split)


def _prepared(languages: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Return TFDS's builder, after the data set has been downloaded and prepared if need be."""
    if data_dir is not None:
        data_dir = str(Path(data_dir).expanduser())
        if not Path(data_dir).is_dir():
            raise BadInput(
                f"--data_dir={data_dir}: no such directory; wanted TFDS's data directory, with or "
                f"without {NAME}/{languages} in it: make it, or leave --data_dir out"
            )
    builder = tfds_source.open_builder(tfds.builder_cls(NAME), languages, data_dir)
    if not _is_prepared(builder):
        _download_and_prepare(builder, languages)
    return builder


@dataclass(frozen=True)
class Archive:
    """An archive of statmt.org, with its size and checksum as registered in TFDS.

    `place` is the local file, or None if there is none; `by_hand` is where a user may put it.
    """

    url: str
    size: int
    sha256: str
    place: Path | None
    by_hand: Path

    def extracted(self) -> list[Path]:
        """Return the directories into which TFDS has unpacked the archive: one or none."""
        if self.place is None:
            return []
        return list((self.by_hand.parents[1] / "extracted").glob(f"T*.{self.place.name}"))


def archives(builder: tfds.core.DatasetBuilder, languages: str) -> list[Archive]:
    """Return the archives of a data set, each once, in the order in which TFDS downloads them."""
    corpora = itertools.chain.from_iterable(builder.subsets.values())
    other = languages.removesuffix("-en")
    urls = dict.fromkeys(url for name in corpora for url in DATASET_MAP[name].get_url(other))
    # TFDS 4.9.10 lists the UN and 10^9 archives only with wmt13_translate, but looks up addresses
    # in the lists of all data sets, so these archives are checked like the others.
    infos = tfds.download.checksums.get_all_url_infos() | builder.url_infos
    return [_archive(url, infos[url], _downloads(builder)) for url in urls]


def _archive(url: str, info: tfds.download.checksums.UrlInfo, downloads: Path) -> Archive:
    by_hand = downloads / "manual" / url.rpartition("/")[2]
    cached = tfds.download.resource.get_dl_fname(url, info.checksum)
    # TFDS first takes a file put there by hand, which it checks each time, and then looks into its
    # cache. Older versions of TFDS had no cache folder per data set.
    in_cache = (downloads / NAME / cached, downloads / cached)
    places = [by_hand] * by_hand.exists()
    places += [path for path in in_cache if path.exists() and _info_file(path).exists()]
    return Archive(url, int(info.size), info.checksum, places[0] if places else None, by_hand)


def _info_file(path: Path) -> Path:
    """Return the file beside a cached archive, without which TFDS does not use the archive."""
    return path.with_name(f"{path.name}.INFO")


def _downloads(builder: tfds.core.DatasetBuilder) -> Path:
    return Path(builder.data_dir_root) / "downloads"


def _is_prepared(builder: tfds.core.DatasetBuilder) -> bool:
    """Return whether the data set is prepared; raise BadInput for a part or another version."""
    if tfds_source.is_prepared(builder):
        return True
    path = Path(builder.data_path)
    if path.exists():  # TFDS would read it as if it were complete
        raise BadInput(
            f"{path}: incomplete, without dataset_info.json; wanted a data set as TFDS prepares "
            "it: delete that directory so that it is prepared anew, or give another --data_dir"
        )
    root = Path(builder.data_dir_root)
    if NAME in root.parts:
        above = Path(*root.parts[: root.parts.index(NAME)])
        raise BadInput(
            f"--data_dir={root}: inside {NAME}/; wanted the directory that holds {NAME}/: give "
            f"--data_dir={above}"
        )
    if others := sorted(other.name for other in path.parent.glob("[0-9]*.*.*")):
        raise BadInput(
            f"{path.parent}: holds version {', '.join(others)}; wanted {path.name}: delete that "
            "directory so that it is prepared anew, or give another --data_dir"
        )
    return False


def _download_and_prepare(builder: tfds.core.DatasetBuilder, languages: str) -> None:
    """Check disk and network, announce the sizes, and let TFDS download and prepare the data."""
    downloads = _downloads(builder)
    parts = archives(builder, languages)
    missing = [part for part in parts if part.place is None]
    _check_disk(parts, languages, downloads)
    _check_network(missing, languages)
    print(
        f"{NAME}/{languages}: downloading {len(missing)} of {len(parts)} archives "
        f"({_gib(sum(part.size for part in missing))}) to {downloads}, then unpacking and "
        f"preparing; total disk space needed: {_gib(needed_bytes(parts, languages))}",
        file=sys.stderr,
    )
    try:
        with _without_leftovers(downloads):
            # With validation forced, an address without a registered checksum is an error.
            tfds_source.prepare(builder, force_checksums_validation=True)
    except Exception as error:  # unpacking and parsing raise nearly anything
        raise _explained(error, archives(builder, languages), languages) from error


def needed_bytes(parts: Sequence[Archive], languages: str) -> int:
    """Return the bytes of disk still needed: archives, their content, and TFDS's records."""
    missing = sum(part.size for part in parts if part.place is None)
    packed = [part for part in parts if not part.extracted()]
    unpacked = sum(UNPACKED[part.by_hand.suffix] * part.size for part in packed)
    return missing + unpacked + WRITTEN_TIMES * PREPARED_BYTES[languages]


def _check_disk(parts: Sequence[Archive], languages: str, downloads: Path) -> None:
    there = next(path for path in (downloads, *downloads.parents) if path.exists())
    needed, free = needed_bytes(parts, languages), shutil.disk_usage(there).free
    if needed > free:
        raise BadInput(
            f"{there}: {_gib(free)} free; wanted {_gib(needed)} to download, unpack and prepare "
            f"{NAME}/{languages}: give --data_dir on another disk, or {_BY_OTHER_MEANS}"
        )


def _check_network(missing: Sequence[Archive], languages: str) -> None:
    """Ask for each archive first, so that no long download fails at a dead address."""
    for part in missing:
        try:
            tfds_source.ask(part.url)
        except tfds_source.DOWNLOAD_ERRORS as error:
            raise _not_downloaded(error, part, languages) from error


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB"


@contextlib.contextmanager
def _without_leftovers(downloads: Path) -> Iterator[None]:
    """Delete the partial files of a failed download or unpacking, which TFDS never deletes."""
    before = set(_unfinished(downloads))
    try:
        yield
    finally:
        for path in set(_unfinished(downloads)) - before:
            shutil.rmtree(path, ignore_errors=True)


def _unfinished(downloads: Path) -> Iterator[Path]:
    yield from (downloads / NAME).glob("*.tmp.*")
    yield from (downloads / "extracted").glob("incomplete.*")


def _explained(error: Exception, parts: Sequence[Archive], languages: str) -> BadInput:
    """Return an error that tells the user what to do; delete a damaged archive in the cache."""
    if isinstance(error, tfds_source.DOWNLOAD_ERRORS):
        # TFDS downloads one after another, so the first missing archive is the one that failed.
        part = next((part for part in parts if part.place is None), parts[0])
        return _not_downloaded(error, part, languages)
    if isinstance(error, tfds.download.download_manager.NonMatchingChecksumError):
        part = next(part for part in parts if part.url in str(error))
        return BadInput(
            f"{part.place or part.url}: its checksum is not the one that TFDS knows; wanted "
            f"{part.size:,} bytes with sha256 {part.sha256}: "
            f"{'delete it and' if part.place else 'it was not kept;'} run again, "
            f"{_ways_out(part, languages)}"
        )
    for part in parts:
        if part.place and _sha256(part.place) != part.sha256:
            _forget(part)
            return BadInput(
                f"{part.place}: damaged ({tfds_source.reason(error)}) and now deleted; wanted "
                f"{part.url} with sha256 {part.sha256}: run again to download it again, "
                f"{_ways_out(part, languages)}"
            )
    return BadInput(
        f"{NAME}/{languages} cannot be prepared ({tfds_source.reason(error)}); wanted a disk and "
        f"archives that can be read: fix that and run again, or {_BY_OTHER_MEANS}"
    )


def _not_downloaded(error: Exception, part: Archive, languages: str) -> BadInput:
    return BadInput(
        f"{NAME}/{languages} cannot be downloaded ({tfds_source.reason(error)}); wanted "
        f"{part.url}: connect to the network and run again, {_ways_out(part, languages)}"
    )


_BY_OTHER_MEANS = (
    "train on files obtained otherwise with --problem=parallel_text --source_files ... "
    "--target_files ..."
)


def _ways_out(part: Archive, languages: str) -> str:
    return (
        f"which keeps finished downloads; or put {part.by_hand.name} into {part.by_hand.parent}, "
        f"or give a --data_dir in which TFDS has prepared {NAME}/{languages}, or {_BY_OTHER_MEANS}"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _forget(part: Archive) -> None:
    """Delete an archive from TFDS's cache, together with its unpacked content."""
    assert part.place is not None
    for path in part.extracted():
        shutil.rmtree(path)
    _info_file(part.place).unlink(missing_ok=True)
    part.place.unlink()
