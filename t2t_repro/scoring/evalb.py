"""Labelled F1 of parses against a treebank, computed like the program EVALB.

In section 6.3, as in all published scores on this treebank, F1 means the result of EVALB (Sekine
and Collins, 1997; version of 2006) with its parameter file COLLINS.prm. EVALB's rules are:

- Leaves whose tag is in `Rules.deleted`, such as punctuation, are deleted, with the brackets that
  this leaves empty. Brackets whose label is in it, such as TOP, are deleted, too. A tag is not a
  bracket.
- A label counts up to its first "-" or "="; tags are compared whole. ADVP equals PRT.
- Brackets match one to one if label, start and end are equal. Duplicates and chains count, too.
- Sums are over the sentences whose words are equal on both sides after deletion. Other sentences
  are errors, or are skipped if nothing is left of the parse; they do not enter any sum.

EVALB gives other counts only beyond its limits: it reads lines up to 5,000 bytes, keeps 200 words
and 200 brackets, and stops at the eleventh error.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from pipelines.errors import BadInput
from pipelines.parsing import trees
from pipelines.parsing.trees import Bracket, Tree


@dataclass(frozen=True)
class Rules:
    """The settings of an EVALB parameter file; the defaults are those of COLLINS.prm.

    Args:
        deleted: Tags and labels that do not count (DELETE_LABEL).
        uncounted: Tags that do not count in a sentence's length (DELETE_LABEL_FOR_LENGTH).
        equal_labels: {label or tag: the one that it counts as} (EQ_LABEL).
        equal_words: {word: the one that it counts as} (EQ_WORD).
        quote_tags: Tags of quotation marks that parsers confuse with deleted tags (QUOTE_LABEL).
        cutoff: Maximum length of the sentences in the second summary (CUTOFF_LEN).
    """

    deleted: frozenset[str] = frozenset(["TOP", trees.TRACE, ",", ":", "``", "''", "."])
    uncounted: frozenset[str] = frozenset([trees.TRACE])
    equal_labels: Mapping[str, str] = field(default_factory=lambda: {"PRT": "ADVP"})
    equal_words: Mapping[str, str] = field(default_factory=dict)
    quote_tags: frozenset[str] = frozenset()
    cutoff: int = 40


COLLINS = Rules()
_QUOTES = ("'", '"', "/")  # the words that `quote_tags` applies to


class Status(IntEnum):
    """EVALB's status codes of a sentence."""

    VALID = 0
    ERROR = 1
    SKIPPED = 2


class Counts(NamedTuple):
    """A sentence's line in EVALB's table, which prints zeros for a sentence that is not valid.

    `length` and `gold` (brackets) always describe the treebank's tree. `test` (brackets) describes
    the parse. `words` is the number of words whose tags are compared.
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
    """Return EVALB's scores of bracketed trees, one per line, with COLLINS.prm.

    Args:
        hypotheses: A parser's output lines; a line may be empty or not a tree.
        references: The treebank's trees of the same sentences, in the same order.

    Returns:
        `f1`, `precision`, `recall`, `exact_match` and `tagging_accuracy` in percent, over all
        lengths; `skipped`, the number of sentences that EVALB leaves out, which is the sum of
        `evalb_errors` and `evalb_skips`; `f1_punished`, the F1 if the parses of these sentences
        counted as trees without brackets; `f1_40`, the F1 of the `lines_40` sentences of at most 40
        words; and `lines`, the number of all sentences.

    Raises:
        BadInput: The numbers of lines differ or are 0, or a reference is not a tree.
    """
    if len(hypotheses) != len(references) or not references:
        raise BadInput(
            f"got {len(hypotheses)} parses and {len(references)} reference trees; wanted one tree "
            "per line in both files, and an empty line for a missing parse: give both files whole"
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
    """Return the summary that EVALB prints below its table: sums, means and percentages.

    F1 is 0 where EVALB divides by zero and prints "nan".
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
    """Return 2PR / (P + R) in percent, which is twice the matches over all brackets."""
    return _percent(2 * matched, gold + test)


def counts(gold: Tree, test: Tree | None, rules: Rules = COLLINS) -> Counts:
    """Compare a parse with the treebank's tree; `test` is None if the parse is not a tree."""
    length = sum(leaf.tag not in rules.uncounted for leaf in gold.leaves)
    expected = _counted_brackets(_without_deleted(gold, rules), rules)
    if test is None:
        return Counts(Status.ERROR, length, len(expected))
    if not _without_deleted(test, rules).leaves:
        return Counts(Status.SKIPPED, length, len(expected))
    gold, test = _align_quotes(gold, test, rules)
    if _words(gold, rules) != _words(test, rules):
        return Counts(Status.ERROR, length, len(expected))
    expected, found = _counted_brackets(gold, rules), _counted_brackets(test, rules)
    tags = [_tags(tree, rules) for tree in (gold, test)]
    return Counts(
        Status.VALID,
        length,
        gold=len(expected),
        test=len(found),
        matched=(Counter(expected) & Counter(found)).total(),
        crossing=_count_crossing(expected, found),
        words=len(tags[0]),
        tags=sum(one == other for one, other in zip(*tags, strict=True)),
    )


def _without_deleted(tree: Tree, rules: Rules) -> Tree:
    return tree.without(rules.deleted)


def _counted_brackets(tree: Tree, rules: Rules) -> list[Bracket]:
    """Return the brackets that count, with the labels that they count as."""
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


def _count_crossing(expected: Sequence[Bracket], found: Sequence[Bracket]) -> int:
    """Return how many of `found` overlap one of `expected`, neither containing the other."""
    # One comparison in NumPy for each bracket: a line of 65,536 characters may hold 16,000.
    start, end = np.array([bracket[1:] for bracket in expected], int).reshape(-1, 2).T

    def crosses(one: Bracket) -> bool:
        from_left = (start < one.start) & (one.start < end) & (end < one.end)
        from_right = (one.start < start) & (start < one.end) & (one.end < end)
        return bool((from_left | from_right).any())

    return sum(map(crosses, found))


def _align_quotes(gold: Tree, test: Tree, rules: Rules) -> tuple[Tree, Tree]:
    """Return both trees without deleted leaves, except for quotation marks tagged differently.

    If the trees would have different lengths, a quotation mark that only one of them deletes is
    kept in both. This is EVALB's correction of 2006, for ' as a possessive among others.
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
