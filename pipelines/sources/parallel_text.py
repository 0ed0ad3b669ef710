"""The problem `parallel_text`: a user's own sentence pairs, from aligned or TSV files."""

import hashlib
from collections.abc import Iterator, Sequence

from pipelines.errors import BadInput
from pipelines.sources import text_files

# Held out in this order: with share s, hash values in [0, s) are dev, in [s, 2s) test.
_HELD_OUT = ("dev", "test")


def examples(
    split: str,
    *,
    source_files: Sequence[str],
    target_files: Sequence[str],
    tsv_files: Sequence[str],
    dev_source_files: Sequence[str],
    dev_target_files: Sequence[str],
    test_source_files: Sequence[str],
    test_target_files: Sequence[str],
    held_out_share: float,
) -> Iterator[dict[str, str]]:
    """Yields {"source", "target"} of one split, files one after another, in constant memory.

    Args:
        split: "train", "dev" or "test".
        source_files: Training sentences, one a line, plain or .gz.
        target_files: Their translations: as many files, each with as many lines as its source.
        tsv_files: Instead of the two above: files of lines "source<TAB>target".
        dev_source_files: Dev sentences; if none are given, dev is split off the training pairs.
        dev_target_files: Their translations.
        test_source_files: Test sentences; if none are given, test is split off as well.
        test_target_files: Their translations.
        held_out_share: About this share of the training pairs goes to each split without files of
            its own; 0.01 of 100,000 pairs makes about 1,000.

    Raises:
        BadInput: The flags do not fit together (at once); a file is unusable or no pair falls
            into the split (while iterating).
    """
    own_files = {
        "train": _each_pair("", source_files, target_files),
        "dev": _each_pair("dev_", dev_source_files, dev_target_files),
        "test": _each_pair("test_", test_source_files, test_target_files),
    }
    if split in _HELD_OUT and own_files[split]:
        return _read_aligned(own_files[split])
    if bool(own_files["train"]) == bool(tsv_files):
        raise BadInput(
            f"training text: {'both kinds' if tsv_files else 'nothing'} given; wanted one kind: "
            "--source_files with --target_files, or --tsv_files"
        )
    missing = [name for name in _HELD_OUT if not own_files[name]]
    _check_share(held_out_share, split if split in missing else None)
    pairs = _read_tsv(tsv_files) if tsv_files else _read_aligned(own_files["train"])
    return _only(split, pairs, missing, held_out_share)


def _each_pair(
    prefix: str, sources: Sequence[str], targets: Sequence[str]
) -> list[tuple[str, str]]:
    if len(sources) != len(targets):
        raise BadInput(
            f"--{prefix}source_files names {len(sources)} files, --{prefix}target_files "
            f"{len(targets)}; wanted one target file for each source file, in the same order"
        )
    return list(zip(sources, targets, strict=True))


def _check_share(share: float, asked: str | None) -> None:
    if not 0 <= share < 0.5:
        raise BadInput(
            f"--held_out_share={share}: wanted at least 0 and under 0.5, since dev and test may "
            "each take that share of the training pairs: try 0.01"
        )
    if asked and share == 0:
        raise BadInput(
            f"no {asked} text: no file given and --held_out_share=0; wanted one of them: give "
            f"--{asked}_source_files and --{asked}_target_files, or --held_out_share=0.01"
        )


def _read_aligned(files: Sequence[tuple[str, str]]) -> Iterator[dict[str, str]]:
    for source, target in files:
        yield from text_files.aligned(source, target)


def _read_tsv(files: Sequence[str]) -> Iterator[dict[str, str]]:
    for path in files:
        yield from text_files.tab_separated(path)


def _only(
    split: str, pairs: Iterator[dict[str, str]], missing: Sequence[str], share: float
) -> Iterator[dict[str, str]]:
    """Yields those training pairs that belong to `split`; BadInput if there is none."""
    empty = True
    for pair in pairs:
        if _split_of(pair["source"], missing, share) == split:
            empty = False
            yield pair
    if empty:
        raise BadInput(
            f"no training pair falls into {split} with --held_out_share={share}; "
            "wanted at least one: change the share, or give dev and test files of their own"
        )


def _split_of(source: str, missing: Sequence[str], share: float) -> str:
    """Names the split of a source sentence, from a hash of the sentence alone.

    By position, or by a hash of the whole pair, a sentence that occurs twice could be trained on
    and tested on. By the source alone it cannot, wherever it stands and however it is translated;
    nor does a pair change sides when lines are added or moved, or with the seed of the run: runs
    that differ in their seed can be compared, and can share what was prepared.
    """
    digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
    position = int.from_bytes(digest) / 2**64  # uniform in [0, 1)
    for index, name in enumerate(_HELD_OUT):
        if name in missing and index * share <= position < (index + 1) * share:
            return name
    return "train"
