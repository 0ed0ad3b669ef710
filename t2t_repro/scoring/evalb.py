"""Labelled brackets of parses against those of a treebank, counted as the program EVALB counts.

EVALB (Sekine and Collins, 1997; version of 2006) under its COLLINS.prm is what section 6.3 and all
published scores of this treebank mean by F1. Its rules:

- A leaf whose tag is in `Rules.deleted` goes, as punctuation does, and brackets left empty with it;
  of the other brackets those go whose label is in it, as TOP does. A tag is no bracket.
- Labels count up to their first "-" or "="; tags are compared whole. ADVP equals PRT.
- Brackets match one to one when label, start and end are equal, duplicates and chains included.
- Sums are over the sentences whose words are the same on both sides after deletion. Others are
  errors, and where nothing is left of the parse, skipped; neither counts for anything.

Where EVALB differs from these counts, it is out of its bounds: it reads lines up to 5,000 bytes and
keeps 200 words and 200 brackets, and it stops at the eleventh error.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from pipelines.errors import BadInput
from pipelines.parsing import trees
from pipelines.parsing.trees import Bracket, Tree


@dataclass(frozen=True)
class Rules:
    """What a parameter file of EVALB sets; the defaults are COLLINS.prm.

    Args:
        deleted: Tags and labels that do not count (DELETE_LABEL).
        uncounted: Tags that do not count in a sentence's length (DELETE_LABEL_FOR_LENGTH).
        equal_labels: A label or tag and the one it counts as (EQ_LABEL).
        equal_words: A word and the one it counts as (EQ_WORD).
        quote_tags: Tags of quotation marks that parsers mix up with deleted ones (QUOTE_LABEL).
        cutoff: Length of the longest sentences in the second summary (CUTOFF_LEN).
    """

    deleted: frozenset[str] = frozenset(["TOP", trees.TRACE, ",", ":", "``", "''", "."])
    uncounted: frozenset[str] = frozenset([trees.TRACE])
    equal_labels: Mapping[str, str] = field(default_factory=lambda: {"PRT": "ADVP"})
    equal_words: Mapping[str, str] = field(default_factory=dict)
    quote_tags: frozenset[str] = frozenset()
    cutoff: int = 40


COLLINS = Rules()
_QUOTES = ("'", '"', "/")  # the words that `quote_tags` is about


class Status(IntEnum):
    """EVALB's numbers for what became of a sentence."""

    VALID = 0
    ERROR = 1
    SKIPPED = 2


class Counts(NamedTuple):
    """One sentence's line in EVALB's table; of a sentence that is not valid it prints zeros.

    `length` and `gold` are of the treebank's tree, `test` of the parse, whatever the status.
    `words` are those that tags are compared of.
    """

    status: Status
    length: int
    gold: int
    test: int = 0
    matched: int = 0
    crossing: int = 0
    words: int = 0
    tags: int = 0


def scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float | str | int]:
    """EVALB's numbers over bracketed trees, one a line, under COLLINS.prm.

    Args:
        hypotheses: a parser's output lines; a line may be empty, or not a tree.
        references: the treebank's trees of the same sentences, in the same order.

    Returns:
        In percent and over all lengths `f1`, `precision`, `recall`, `exact_match` and
        `tagging_accuracy`; the number of `skipped` sentences, which EVALB leaves out: what it calls
        errors, `evalb_errors`, and skips, `evalb_skips`; `f1_punished`, as if those were parses
        without a bracket; `f1_40`, of sentences of at most 40 words, of which `lines_40` are;
        and `lines`.

    Raises:
        BadInput: the numbers of lines differ, there are none, or a reference is not a tree.
    """
    if len(hypotheses) != len(references) or not references:
        raise BadInput(
            f"got {len(hypotheses)} parses and {len(references)} reference trees; wanted one tree "
            "a line for every parse, an empty line where there is none: give both files whole"
        )
    rows = [
        counts(_reference(number, reference), _parse(hypothesis))
        for number, (hypothesis, reference) in enumerate(
            zip(hypotheses, references, strict=True), start=1
        )
    ]
    short = [row for row in rows if row.length <= COLLINS.cutoff]
    every = summary(rows)
    chosen = ("f1", "precision", "recall", "exact_match", "tagging_accuracy")
    return {
        **{name: every[name] for name in chosen},
        "skipped": every["evalb_errors"] + every["evalb_skips"],
        "f1_punished": _f1(
            sum(row.matched for row in rows),
            sum(row.gold for row in rows),
            sum(row.test for row in rows if row.status == Status.VALID),
        ),
        "f1_40": summary(short)["f1"],
        "lines_40": len(short),
        **{name: every[name] for name in ("evalb_errors", "evalb_skips", "lines")},
    }


def _reference(number: int, line: str) -> Tree:
    try:
        return trees.parse(line)
    except BadInput as error:
        raise BadInput(f"reference in line {number}: {error}") from None


def _parse(line: str) -> Tree | None:
    try:
        return trees.parse(line)
    except BadInput:
        return None


def summary(rows: Sequence[Counts]) -> dict[str, float | int]:
    """The sums that EVALB prints below its table, by names of ours, percentages where it has them.

    F1 is 0 where EVALB, dividing by nothing, prints "nan".
    """
    valid = [row for row in rows if row.status == Status.VALID]
    total = {name: sum(getattr(row, name) for row in valid) for name in Counts._fields}
    matched, gold, test = total["matched"], total["gold"], total["test"]
    crossing = [row.crossing for row in valid]
    return {
        "lines": len(rows),
        "evalb_errors": sum(row.status == Status.ERROR for row in rows),
        "evalb_skips": sum(row.status == Status.SKIPPED for row in rows),
        "recall": _percent(matched, gold),
        "precision": _percent(matched, test),
        "f1": _f1(matched, gold, test),
        "exact_match": _percent(sum(r.gold == r.test == r.matched for r in valid), len(valid)),
        "crossing": total["crossing"] / max(1, len(valid)),
        "no_crossing": _percent(sum(n == 0 for n in crossing), len(valid)),
        "at_most_2_crossing": _percent(sum(n <= 2 for n in crossing), len(valid)),
        "tagging_accuracy": _percent(total["tags"], total["words"]),
    }


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _f1(matched: int, gold: int, test: int) -> float:
    """2PR / (P + R), which is twice the matches over all brackets."""
    return _percent(2 * matched, gold + test)


def counts(gold: Tree, test: Tree | None, rules: Rules = COLLINS) -> Counts:
    """Compares one parse, None if it could not be read as a tree, with the treebank's tree."""
    length = sum(leaf.tag not in rules.uncounted for leaf in gold.leaves)
    expected = _counted(_remaining(gold, rules), rules)
    if test is None:
        return Counts(Status.ERROR, length, len(expected))
    if not _remaining(test, rules).leaves:
        return Counts(Status.SKIPPED, length, len(expected))
    gold, test = _with_quotes_alike(gold, test, rules)
    if _words(gold, rules) != _words(test, rules):
        return Counts(Status.ERROR, length, len(expected))
    expected, found = _counted(gold, rules), _counted(test, rules)
    tags = [_tags(tree, rules) for tree in (gold, test)]
    return Counts(
        Status.VALID,
        length,
        gold=len(expected),
        test=len(found),
        matched=(Counter(expected) & Counter(found)).total(),
        crossing=sum(any(_cross(one, other) for other in expected) for one in found),
        words=len(tags[0]),
        tags=sum(one == other for one, other in zip(*tags, strict=True)),
    )


def _remaining(tree: Tree, rules: Rules) -> Tree:
    return tree.without(rules.deleted)


def _counted(tree: Tree, rules: Rules) -> list[Bracket]:
    """The brackets that count, under the labels they count as."""
    plain = [b._replace(label=b.label.split("-")[0].split("=")[0]) for b in tree.brackets]
    return [
        b._replace(label=rules.equal_labels.get(b.label, b.label))
        for b in plain
        if b.label not in rules.deleted
    ]


def _words(tree: Tree, rules: Rules) -> list[str]:
    return [rules.equal_words.get(word, word) for _, word in tree.leaves]


def _tags(tree: Tree, rules: Rules) -> list[str]:
    return [rules.equal_labels.get(tag, tag) for tag, _ in tree.leaves]


def _cross(one: Bracket, other: Bracket) -> bool:
    """Whether they overlap and neither holds the other."""
    first, second = sorted([one[1:], other[1:]])
    return first[0] < second[0] < first[1] < second[1]


def _with_quotes_alike(gold: Tree, test: Tree, rules: Rules) -> tuple[Tree, Tree]:
    """Both without what is deleted; where that makes their lengths differ, with `quote_tags` kept.

    Of a quotation mark that one side tags as one to be deleted and the other does not, both stay:
    the correction of 2006, for ' as a possessive among others.
    """
    kept = [[leaf.tag not in rules.deleted for leaf in tree.leaves] for tree in (gold, test)]
    if sum(kept[0]) != sum(kept[1]):
        for here in _quote_places(test, rules):
            for there in _quote_places(gold, rules):
                if sum(kept[0][:there]) == sum(kept[1][:here]) and (
                    kept[0][there] != kept[1][here]
                ):
                    kept[0][there] = kept[1][here] = True
    return gold.keeping(kept[0]), test.keeping(kept[1])


def _quote_places(tree: Tree, rules: Rules) -> list[int]:
    return [
        place
        for place, (tag, word) in enumerate(tree.leaves)
        if tag in rules.quote_tags and word in _QUOTES
    ]
