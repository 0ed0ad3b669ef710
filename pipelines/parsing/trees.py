"""Constituency trees as treebanks and parsers write them: `(S (NP (DT the) (NN cat)) ...)`."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from pipelines.errors import BadInput
from pipelines.sources import text_files

ROOT = "TOP"
# Names of the root: none in the LDC's files, ROOT in GUM, S1 in the output of Charniak's parser.
_ROOTS = ("", ROOT, "ROOT", "S1")
# The longest tree of a file, in characters without indentation; GUM's longest has 1,641. Without a
# bound, one bracket that never closes would make a tree of the whole rest of the file.
_LONGEST = 1 << 16
TRACE = "-NONE-"  # the tag of traces and of all other leaves that stand for no word

# A leaf, an opening bracket with its label, a closing bracket, or stray text that belongs to no
# tree. Only ASCII white space separates symbols: a no-break space may be part of a word.
_SYMBOLS = re.compile(
    r"\((?P<tag>[^()\s]+)\s+(?P<word>[^()\s]+)\s*\)|\((?P<label>[^()\s]*)|(?P<end>\))|"
    r"(?P<stray>[^()\s]+)",
    re.ASCII,
)


class Leaf(NamedTuple):
    """A word and its part-of-speech tag."""

    tag: str
    word: str


class Bracket(NamedTuple):
    """A constituent: its label, and the leaves from `start` up to, but not including, `end`."""

    label: str
    start: int
    end: int


@dataclass(frozen=True)
class Tree:
    """A sentence's leaves and the brackets over them, in the order in which the brackets open.

    No bracket is empty, so leaves and brackets determine the tree. The lists are not nested, so no
    code needs recursion, which a model's output could make too deep for Python.
    """

    leaves: tuple[Leaf, ...]
    brackets: tuple[Bracket, ...]

    @property
    def words(self) -> list[str]:
        """The words of the sentence."""
        return [leaf.word for leaf in self.leaves]

    def keeping(self, kept: Sequence[bool]) -> "Tree":
        """Return the tree with only the leaves where `kept` is true, and without empty brackets."""
        place = [0, *accumulate(kept)]
        return Tree(
            tuple(leaf for leaf, keep in zip(self.leaves, kept, strict=True) if keep),
            tuple(
                Bracket(label, place[start], place[end])
                for label, start, end in self.brackets
                if place[start] < place[end]
            ),
        )

    def without(self, tags: Collection[str]) -> "Tree":
        """Return the tree without the leaves that have these tags, and without empty brackets."""
        return self.keeping([leaf.tag not in tags for leaf in self.leaves])


def parse(text: str) -> Tree:
    """Parse a bracketed tree; several trees side by side become one tree without a root.

    Raises:
        BadInput: A bracket does not close or was never opened, or a word has no tag.
    """
    leaves: list[Leaf] = []
    brackets: list[Bracket] = []
    opened: list[int] = []
    for symbol in _SYMBOLS.finditer(text):
        if symbol.lastgroup == "stray" or (symbol.lastgroup == "end" and not opened):
            raise _not_a_tree(text, f"'{symbol[0]}' after {symbol.start()} characters")
        if symbol.lastgroup == "word":
            leaves.append(Leaf(symbol["tag"], symbol["word"]))
        elif symbol.lastgroup == "label":
            opened.append(len(brackets))
            brackets.append(Bracket(symbol["label"], len(leaves), 0))
        else:
            number = opened.pop()
            brackets[number] = brackets[number]._replace(end=len(leaves))
    if opened:
        raise _not_a_tree(text, f"{len(opened)} brackets never close")
    return Tree(tuple(leaves), tuple(b for b in brackets if b.start < b.end))


def _not_a_tree(text: str, reason: str) -> BadInput:
    begins = " ".join(text.split())[:60]
    return BadInput(
        f"not a tree ({reason}): {begins!r}; wanted brackets such as (NP (DT the) (NN cat)), with "
        "-LRB- and -RRB- for brackets among the words"
    )


def read(path: str | Path) -> Iterator[Tree]:
    """Yield the trees of a file, plain or .gz; a tree may extend over any number of lines.

    Raises:
        BadInput: The file is unusable (see `text_files.lines`), or a text in it is not a tree, or
            is one of more than 65,536 characters.
    """
    for number, text in _texts(path):
        try:
            yield parse(text)
        except BadInput as error:
            raise BadInput(f"{path}, line {number}: {error}") from None


def _texts(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) of each tree, which ends where all brackets close."""
    parts: list[str] = []
    depth = first = length = 0
    for number, line in enumerate(text_files.lines(path), start=1):
        for part in filter(None, re.split(r"(?<=\))", line.strip())):
            first = first if parts else number
            parts.append(part)
            length += len(part)
            if length > _LONGEST:
                raise BadInput(
                    f"{path}, line {first}: a tree of more than {_LONGEST:,} characters; wanted "
                    "the tree of one sentence: look there for a bracket that never closes"
                )
            depth += part.count("(") - part.count(")")
            if depth <= 0 and part.endswith(")"):
                yield first, "".join(parts)
                parts, depth, length = [], 0, 0
        parts.extend([" "] * bool(parts))
        length += bool(parts)
    if parts:
        yield first, "".join(parts)


def normalised(tree: Tree) -> Tree:
    """Return a tree without traces, function tags and indices (NP-SBJ-1, NP=2), with the root TOP.

    These are the trees that a parser is trained on. Apart from that, labels, structure, tags and
    words are unchanged.
    """
    tree = tree.without({TRACE})
    brackets = [Bracket(_plain(label), start, end) for label, start, end in tree.brackets]
    whole = (0, len(tree.leaves))
    if brackets and brackets[0].label in _ROOTS and brackets[0][1:] == whole:
        del brackets[0]
    return rooted(tree.leaves, brackets)


def rooted(leaves: Sequence[Leaf], brackets: Sequence[Bracket]) -> Tree:
    """Return a tree under TOP; a sentence without words gives a tree without brackets."""
    root = [Bracket(ROOT, 0, len(leaves))] if leaves else []
    return Tree(tuple(leaves), (*root, *brackets))


def joined(tree: Tree, other: Tree) -> Tree:
    """Return one tree under TOP with the words and constituents of `tree` and then of `other`."""
    place = len(tree.leaves)
    moved = [Bracket(label, start + place, end + place) for label, start, end in other.brackets[1:]]
    return rooted(tree.leaves + other.leaves, [*tree.brackets[1:], *moved])


def subtrees(tree: Tree, least: int) -> Iterator[Tree]:
    """Yield a tree under TOP for each bracket over at least `least` words but not over all.

    Several brackets over the same words give one tree, which contains them all.
    """
    seen = {(0, len(tree.leaves))}
    for number, (_, start, end) in enumerate(tree.brackets):
        if (start, end) not in seen and end - start >= least:
            seen.add((start, end))
            inside = [
                Bracket(label, first - start, last - start)
                for label, first, last in tree.brackets[number:]
                if start <= first and last <= end
            ]
            yield rooted(tree.leaves[start:end], inside)


def _plain(label: str) -> str:
    """Return a label up to its first "-" or "="; a label that starts with one is kept whole."""
    match = re.match(r"[^-=]+", label)
    return match[0] if match else label


def symbols(tree: Tree) -> Iterator[tuple[str, Bracket | Leaf]]:
    """Yield "(" and ")" with their bracket, and "" with a leaf, in the order of the text."""
    waiting = list(reversed(tree.brackets))
    opened: list[Bracket] = []
    for place, leaf in enumerate(tree.leaves):
        while waiting and waiting[-1].start == place:
            opened.append(waiting.pop())
            yield "(", opened[-1]
        yield "", leaf
        while opened and opened[-1].end == place + 1:
            yield ")", opened.pop()


def bracketed(tree: Tree) -> str:
    """Return the tree as one line of brackets and words, which `parse` reads."""
    return "".join(_text(kind, item) for kind, item in symbols(tree)).lstrip()


def indented(tree: Tree) -> str:
    """Return `bracketed` text over several lines: each bracket starts an indented line."""
    text, depth = "", 0
    for kind, item in symbols(tree):
        if kind == "(":
            text += "\n" + "  " * depth
            depth += 1
        depth -= kind == ")"
        text += _text(kind, item).lstrip() if kind == "(" else _text(kind, item)
    return text.strip()


def _text(kind: str, item: Bracket | Leaf) -> str:
    if isinstance(item, Leaf):
        return f" ({item.tag} {item.word})"
    return f" ({item.label}" if kind == "(" else ")"
