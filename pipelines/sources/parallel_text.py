"""The problem `parallel_text`: the user's own sentence pairs, from aligned or TSV files."""

import hashlib
from collections.abc import Iterator, Sequence

from pipelines.errors import BadInput
from pipelines.sources import text_files

# The held-out splits, in order: with share s, hash values in [0, s) are dev and in [s, 2s) test.
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
    """Yield {"source", "target"} of one split, file after file, in constant memory.

    Args:
        split: "train", "dev" or "test".
        source_files: Training sentences, one per line, plain or .gz.
        target_files: Translations of `source_files`: equally many files, each with as many lines
            as its source file.
        tsv_files: Files of lines "source<TAB>target", instead of the two arguments above.
        dev_source_files: Dev sentences; if there are none, dev is split off the training pairs.
        dev_target_files: Translations of `dev_source_files`.
        test_source_files: Test sentences; if there are none, test is split off likewise.
        test_target_files: Translations of `test_source_files`.
        held_out_share: The approximate share of the training pairs that goes to each split without
            files of its own; 0.01 of 100,000 pairs is about 1,000.

    Raises:
        BadInput: The arguments contradict each other (raised at once); a file is unusable, or no
            pair falls into the split (raised while iterating).
    """
    own_files = {
        "train": each_pair("", source_files, target_files),
        "dev": each_pair("dev_", dev_source_files, dev_target_files),
        "test": each_pair("test_", test_source_files, test_target_files),
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


def each_pair(prefix: str, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str]]:
    """Return each source file with its target file; raise BadInput if there are more of one."""
    if len(sources) != len(targets):
        raise BadInput(
            f"--{prefix}source_files names {len(sources)} files, --{prefix}target_files "
            f"{len(targets)}; wanted one target file for each source file, in the same order"
        )
    return list(zip(sources, targets, strict=True))


def _check_share(share: float, asked: str | None) -> None:
    if not 0 <= share < 0.5:
        raise BadInput(
            f"--held_out_share={share}: wanted at least 0 and less than 0.5, because dev and test "
            "may each take that share of the training pairs: try 0.01"
        )
    if asked and share == 0:
        raise BadInput(
            f"no {asked} text: no file is given and --held_out_share=0; wanted either: give "
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
    """Yield the training pairs that belong to `split`; raise BadInput if there are none."""
    empty = True
    for pair in pairs:
        if _split_of(pair["source"], missing, share) == split:
            empty = False
            yield pair
    if empty:
        raise BadInput(
            f"no training pair falls into {split} with --held_out_share={share}; "
            "wanted at least one: change the share, or give separate dev and test files"
        )


def _split_of(source: str, missing: Sequence[str], share: float) -> str:
    """Return the name of a source sentence's split, which a hash of the sentence determines.

    If the position or a hash of the whole pair determined the split, a sentence that occurs twice
    could be both trained on and tested on. With a hash of the source alone it cannot, wherever the
    sentence stands and however it is translated. A pair also keeps its split when lines are added
    or moved, and for every seed of the run, so runs with different seeds can be compared and can
    share their encoded splits.
    """
    if not missing:
        return "train"
    digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
    position = int.from_bytes(digest) / 2**64  # uniform in [0, 1)
    for index, name in enumerate(_HELD_OUT):
        if name in missing and index * share <= position < (index + 1) * share:
            return name
    return "train"
