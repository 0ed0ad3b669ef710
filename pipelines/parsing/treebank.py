"""The problem `wsj_parsing`: the Penn Treebank's Wall Street Journal, or another treebank.

Section 6.3 of the paper. The treebank's sections 02-21 are for training, 22 is the dev set and 23
the test set; expect 39,832, 1,700 and 2,416 trees. The Linguistic Data Consortium owns the text, so
nothing is downloaded; `examples` says where the files have to be.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.errors import BadInput
from pipelines.parsing import trees
from pipelines.parsing.altered_trees import altered
from pipelines.parsing.linear_trees import CLOSE, OPEN, linear, unwritable
from pipelines.parsing.trees import Tree

SECTIONS = {"train": range(2, 22), "dev": range(22, 23), "test": range(23, 24)}
# The folders of Treebank-2 (LDC95T7) and Treebank-3 (LDC99T42), and of sections copied from them.
_SECTION_HOMES = ("combined/wsj", "parsed/mrg/wsj", "wsj", ".")
_TREE_FILE = re.compile(r".+\.(mrg|ptb)(\.gz)?", re.IGNORECASE)


def examples(
    split: str,
    *,
    data_dir: str | None,
    extra_tree_files: Sequence[str] = (),
    gold_repeats: int = 1,
    altered_copies: int = 0,
    spell_words: bool = False,
) -> Iterator[dict[str, str]]:
    """Yield {"source": the words, "target": the tree in one line}, normalised; see `linear_trees`.

    The training text is the treebank, repeated, and then the extra trees. An epoch's batches are
    drawn from all of it, so the repeats set the ratio in which the two are mixed. The vocabulary is
    learnt from the same text, in which repeated trees have more weight.

    Args:
        split: "train", "dev" or "test".
        data_dir: Holds combined/wsj/02 to 23 as the LDC ships them (or parsed/mrg/wsj/NN, wsj/NN,
            NN), or else train, dev and test files of trees, named .mrg or .ptb, plain or .gz.
        extra_tree_files: Files of further training trees, such as a parser's output for the
            semi-supervised setting; plain or .gz.
        gold_repeats: How often the training text contains each tree of the treebank.
        altered_copies: How many copies with other words the training text contains of each tree of
            the treebank, and how many joined trees. If positive, it also contains each part of the
            tree once; see `altered_trees`.
        spell_words: Whether targets spell each word before its tag.

    Raises:
        BadInput: `data_dir` has neither layout (raised at once), or a file is unusable (raised
            while iterating).
    """
    gold = _files(split, data_dir)
    extra = [Path(name) for name in extra_tree_files]
    train = split == "train"
    found = _train_trees(gold, gold_repeats, altered_copies, extra) if train else _trees(gold)
    return (pair(tree, spell_words) for tree in found)


def pair(tree: Tree, spell_words: bool = False) -> dict[str, str]:
    """Return {"source", "target"} for a normalised tree."""
    return {"source": " ".join(tree.words), "target": linear(tree, spell_words)}


def _train_trees(gold: list[Path], repeats: int, copies: int, extra: list[Path]) -> Iterator[Tree]:
    yield from _trees(gold * repeats)
    if copies:
        yield from altered(list(_trees(gold)), copies)
    yield from _trees(extra)


def _trees(files: Sequence[Path]) -> Iterator[Tree]:
    """Yield the trees of files, normalised; trees without words are skipped."""
    for path in files:
        for number, tree in enumerate(map(trees.normalised, trees.read(path)), start=1):
            if name := unwritable(tree):
                raise BadInput(
                    f"{path}, tree {number}: {name}; wanted labels and tags without _, and tags "
                    f"that do not begin with {OPEN} or {CLOSE}, which mean something else in a "
                    "target: rename them"
                )
            if tree.leaves:
                yield tree


def _files(split: str, data_dir: str | None) -> list[Path]:
    """Return the files that contain a split; BadInput describes the layouts."""
    if data_dir is None:
        raise BadInput(f"no --data_dir; wanted a treebank: {_LAYOUTS}")
    directory = Path(data_dir).expanduser()
    if not directory.is_dir():
        raise BadInput(f"--data_dir={data_dir}: no such directory; {_LAYOUTS}")
    names = {name: _named(directory, name) for name in SECTIONS}
    if any(names.values()):
        return _one(names[split], split, data_dir)
    for home in _SECTION_HOMES:
        if any((directory / home).glob("[0-9][0-9]")):
            return _sections(directory / home, split)
    raise BadInput(f"--data_dir={data_dir}: no treebank in it; {_LAYOUTS}")


def _named(directory: Path, split: str) -> list[Path]:
    return [path for path in _tree_files(directory) if path.name.split(".")[0] == split]


def _one(found: list[Path], split: str, data_dir: str) -> list[Path]:
    if len(found) != 1:
        what = " and ".join(path.name for path in found) or "no file"
        raise BadInput(
            f"--data_dir={data_dir}: {what} for {split}; wanted one, {split}.mrg or {split}.ptb, "
            "plain or .gz, beside those of the other splits"
        )
    return found


def _sections(home: Path, split: str) -> list[Path]:
    """Return the files of a split's sections in order; BadInput names missing sections."""
    found = {number: _tree_files(home / f"{number:02}") for number in SECTIONS[split]}
    if missing := [f"{number:02}" for number, files in found.items() if not files]:
        raise BadInput(
            f"{home}: no .mrg files in section {', '.join(missing)}; wanted all of {split}'s, "
            f"{missing[0]}/wsj_{missing[0]}01.mrg and so on: copy them there; or {_LAYOUTS}"
        )
    return [path for files in found.values() for path in files]


def _tree_files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _TREE_FILE.fullmatch(path.name))


_LAYOUTS = (
    "give --data_dir=D with the LDC's Penn Treebank, D/combined/wsj/NN/*.mrg (or "
    "D/parsed/mrg/wsj/NN, D/wsj/NN, D/NN) for sections 02 to 23, or with files of trees "
    "D/train.mrg, D/dev.mrg, D/test.mrg (.mrg or .ptb, each plain or .gz)"
)
