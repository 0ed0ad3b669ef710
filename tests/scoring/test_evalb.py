"""EVALB's own samples and reports, number for number, and counts from a second implementation."""

import random
import re
from collections import defaultdict

import pytest
from paths import DATA

from pipelines.errors import BadInput
from pipelines.parsing import trees
from pipelines.parsing.trees import Bracket, Leaf, Tree, bracketed, parse
from t2t_repro.scoring import evalb
from t2t_repro.scoring.evalb import COLLINS, Counts, Rules, Status

EVALB = DATA / "evalb_sample"
GUM = DATA / "gum_trees"
real_report = pytest.mark.skipif(not EVALB.exists(), reason=f"needs EVALB's sample in {EVALB}")
real_trees = pytest.mark.skipif(not GUM.exists(), reason=f"needs GUM's trees in {GUM}")
# The files of the two samples.
SAMPLES = {"sample": ("sample.prm", "sample.rsl"), "bug": ("new.prm", "bug.rsl-new")}


def rules_of(path):
    """Return the rules of a .prm file."""
    values = defaultdict(list)
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, *value = line.split()
            values[name].append(value)
    assert values["LABELED"] == [["1"]]
    return Rules(
        deleted=frozenset(label for (label,) in values["DELETE_LABEL"]),
        uncounted=frozenset(label for (label,) in values["DELETE_LABEL_FOR_LENGTH"]),
        equal_labels={two: one for one, two in values["EQ_LABEL"]},
        equal_words={two: one for one, two in values["EQ_WORD"]},
        quote_tags=frozenset(label for (label,) in values["QUOTE_LABEL"]),
        cutoff=int(values["CUTOFF_LEN"][0][0]),
    )


def trees_of(path):
    return [parse(line) for line in path.read_text().splitlines()]


@pytest.fixture(params=SAMPLES)
def sample(request):
    """Return our counts of a sample, and the lines of EVALB's report on it."""
    parameters, report = SAMPLES[request.param]
    rules = rules_of(EVALB / parameters)
    pairs = zip(
        *(trees_of(EVALB / f"{request.param}.{end}") for end in ("gld", "tst")), strict=True
    )
    counts = [evalb.counts(gold, test, rules) for gold, test in pairs]
    return counts, (EVALB / report).read_text().splitlines()


@real_report
def test_collins_parameters_are_the_default_rules():
    ours, theirs = COLLINS, rules_of(EVALB / "COLLINS.prm")
    assert (ours.deleted, ours.uncounted, ours.cutoff) == (
        *(theirs.deleted, theirs.uncounted, theirs.cutoff),
    )
    assert {frozenset(pair) for pair in ours.equal_labels.items()} == {frozenset(["ADVP", "PRT"])}
    assert theirs.equal_labels == {"PRT": "ADVP"}
    for rules in (ours, theirs):
        assert not {*rules.equal_words, *rules.quote_tags}


@real_report
def test_every_column_of_every_sentence(sample):
    counts, report = sample
    lines = [line.split() for line in report if re.fullmatch(r"[\d. ]+", line)]
    table = [line for line in lines if len(line) == 12]
    assert len(table) == len(counts) >= 5
    for row, (_, length, status, recall, precision, *numbers, accuracy) in zip(
        counts, table, strict=True
    ):
        assert (row.length, row.status) == (int(length), int(status))
        if row.status != Status.VALID:
            # By the sample's README the program prints 0 words; the report has a misprint there.
            assert set(numbers[:4] + numbers[5:]) == {"0"}
            continue
        of_row = row.matched, row.gold, row.test, row.crossing, row.words, row.tags
        assert list(of_row) == list(map(int, numbers))
        shares = (row.matched, row.gold), (row.matched, row.test), (row.tags, row.words)
        for (part, whole), printed in zip(shares, (recall, precision, accuracy), strict=True):
            assert f"{100 * part / whole if whole else 0:.2f}" == printed


@real_report
def test_both_summaries(sample):
    counts, report = sample
    names = {
        "Number of sentence": "lines",
        "Number of Error sentence": "evalb_errors",
        "Number of Skip  sentence": "evalb_skips",
        "Bracketing Recall": "recall",
        "Bracketing Precision": "precision",
        "Bracketing FMeasure": "f1",
        "Complete match": "exact_match",
        "Average crossing": "crossing",
        "No crossing": "no_crossing",
        "2 or less crossing": "at_most_2_crossing",
        "Tagging accuracy": "tagging_accuracy",
    }
    short = [row for row in counts if row.length <= 40]
    assert len(short) < len(counts)
    start = report.index("-- All --"), report.index("-- len<=40 --"), len(report)
    for rows, begin, end in zip((counts, short), start, start[1:], strict=False):
        ours = evalb.summary(rows)
        printed = dict(re.split(r"\s+=\s+", line) for line in report[begin:end] if " = " in line)
        assert len(printed) >= 11
        for theirs, value in printed.items():
            if theirs != "Number of Valid sentence":
                assert f"{ours[names[theirs]]:.2f}" == f"{float(value):.2f}", theirs


# Each rule is tested on trees written for it.

GOLD = "(TOP (S (NP-SBJ (DT The) (NN cat)) (VP (VBZ wakes) (PRT (RP up)) (ADVP (RB now))) (. .)))"


def compared(test, gold=GOLD):
    return evalb.counts(parse(gold), parse(test))


def test_a_tree_equals_itself():
    assert compared(GOLD) == Counts(Status.VALID, 6, 5, 5, 5, 0, 5, 5)


def test_function_tags_and_indices_do_not_count():
    other = GOLD.replace("NP-SBJ", "NP=2-LGS").replace("(VP ", "(VP-3 ")
    assert compared(other) == compared(GOLD)


def test_but_what_follows_a_vertical_bar_does():
    assert compared(GOLD.replace("ADVP", "ADVP|PRT")).matched == 4


def test_a_particle_is_an_adverb_phrase():
    assert compared(GOLD.replace("PRT", "ADVP")).matched == 5


@pytest.mark.parametrize("root", ["ROOT", "S1", ""])
def test_only_top_is_a_root_that_does_not_count(root):
    row = compared(GOLD.replace("TOP", root))
    assert (row.gold, row.test, row.matched) == (5, 6, 5)


def test_traces_vanish_with_what_is_over_them():
    other = GOLD.replace("(VP (VBZ wakes)", "(VP (VBZ wakes) (NP (-NONE- *T*-1))")
    row = compared(GOLD, gold=other)
    assert row == compared(GOLD)


def test_wrong_punctuation_costs_nothing_but_a_wrong_tag_does():
    assert compared(GOLD.replace("(. .)", "(: ;)")) == compared(GOLD)
    assert compared(GOLD.replace("(RB now)", "(NN now)")).tags == 4


def test_punctuation_taken_for_a_word_is_an_error():
    assert compared(GOLD.replace("(. .)", "(NN .)")).status == Status.ERROR


@pytest.mark.parametrize(
    ("test", "matched", "found"),
    [("(NP (NP (NN x)))", 2, 2), ("(NP (NP (NP (NN x))))", 2, 3), ("(NP (NN x))", 1, 1)],
)
def test_brackets_over_the_same_words_match_one_to_one(test, matched, found):
    row = compared(test, gold="(NP (NP (NN x)))")
    assert (row.matched, row.test, row.gold) == (matched, found, 2)


def test_a_test_bracket_crosses_at_most_once():
    """(b c d) crosses both (a b) and (d e) and counts once; (c d) crosses (d e)."""
    gold = "(S (X (A a) (B b)) (C c) (X (D d) (E e)))"
    assert compared("(S (A a) (X (B b) (X (C c) (D d))) (E e))", gold=gold).crossing == 2
    assert compared(gold, gold=gold).crossing == 0


def test_left_out_sentences_and_punished_f1():
    """Each gold tree has 5 brackets. One parse is right, one lacks a bracket, four fail."""
    flat = GOLD.replace("(ADVP (RB now))", "(RB now)")
    failed = ["", "(. .)", GOLD.replace("cat", "dog"), GOLD[:-1]]
    result = evalb.scores([GOLD, flat, *failed], [GOLD] * 6)
    assert (result["evalb_skips"], result["evalb_errors"], result["skipped"]) == (2, 2, 4)
    assert result["lines"] == 6
    assert result["recall"] == pytest.approx(100 * 9 / 10)
    assert result["precision"] == pytest.approx(100 * 9 / 9)
    assert result["f1"] == pytest.approx(200 * 9 / 19)
    assert result["exact_match"] == 50
    assert result["tagging_accuracy"] == 100
    assert result["f1_punished"] == pytest.approx(200 * 9 / (30 + 9))
    assert next(iter(result)) == "f1"


def test_the_line_of_40_counts_punctuation_but_no_traces():
    words = "".join(f"(NN w{n})" for n in range(39))
    just, longer = (f"(S {words} (. .) {more} (-NONE- *))" for more in ("", "(, ,)"))
    result = evalb.scores([just, ""], [just, longer])
    assert (result["lines_40"], result["f1_40"]) == (1, 100)
    assert evalb.scores([just, just], [just, longer])["lines_40"] == 1


@pytest.mark.parametrize(("parses", "gold"), [(["(A (B c))"], []), ([], [])])
def test_files_that_do_not_fit_are_refused(parses, gold):
    with pytest.raises(BadInput, match="one tree per line"):
        evalb.scores(parses, gold)


def test_a_reference_that_is_no_tree_is_refused():
    with pytest.raises(BadInput, match="reference in line 2: not a tree"):
        evalb.scores([GOLD] * 2, [GOLD, "The cat"])


# Perturbed real trees, counted by a second implementation that follows EVALB's loops.


def cross(one, other):
    """Return whether two brackets overlap and neither contains the other."""
    first, second = sorted([one[1:], other[1:]])
    return first[0] < second[0] < first[1] < second[1]


def perturbed(tree, rng):
    """Drop, relabel, repeat or move some brackets of a tree, and change some tags."""
    changed = []
    for bracket in tree.brackets:
        if rng.random() < 0.9:
            changed.append(bracket._replace(label=rng.choice([bracket.label] * 8 + ["NP", "PRT"])))
        if rng.random() < 0.1:
            changed.append(Bracket(rng.choice(["NP", "ADVP-X", "S=1"]), *bracket[1:]))
    kept = [b for b in changed if rng.random() < 0.9 or b.end - b.start > 3]
    if len(tree.leaves) > 4:
        start = rng.randrange(len(tree.leaves) - 2)
        moved = Bracket("VP", start, start + 2)
        kept = [b for b in kept if not cross(b, moved)] + [moved]
    kept.sort(key=lambda b: (b.start, -b.end))
    tags = {",": "NN"} if rng.random() < 0.05 else {"NN": "NNP"} if rng.random() < 0.5 else {}
    leaves = tuple(Leaf(tags.get(leaf.tag, leaf.tag), leaf.word) for leaf in tree.leaves)
    return Tree(leaves, tuple(kept))


def spans_by_nesting(text, deleted):
    """Return (words, tags, brackets) of a line by recursion over its parentheses."""
    position, words, tags, found = 0, [], [], []

    def bracket():
        nonlocal position
        end = min(text.index(c, position) for c in "( )" if c in text[position:])
        label, position = text[position:end], end
        start = len(words)
        content = ""
        while text[position] != ")":
            if text[position] == "(":
                position += 1
                bracket()
            else:
                content += text[position]
                position += 1
        position += 1
        if content.strip():
            if label not in deleted:
                words.append(content.strip())
                tags.append(label)
        elif len(words) > start:
            label = re.split("[-=]", label)[0]
            if label not in deleted:
                found.append((label, start, len(words)))

    position = 1
    bracket()
    return words, tags, found


def by_hand(gold, test):
    """Match brackets greedily over all pairs, in the order of EVALB's loops."""
    (words, tags, expected), (other_words, other_tags, found) = (
        spans_by_nesting(f"(TOP {bracketed(tree)})", COLLINS.deleted) for tree in (gold, test)
    )
    if words != other_words:
        return Status.ERROR
    same = {"PRT": "ADVP"}
    matched, crossing = 0, 0
    rest = list(found)
    for label, *span in expected:
        for candidate in rest:
            if same.get(candidate[0], candidate[0]) == same.get(label, label) and (
                span == list(candidate[1:])
            ):
                rest.remove(candidate)
                matched += 1
                break
    for _, start, end in found:
        crossing += any(s < start < e < end or start < s < end < e for _, s, e in expected)
    right = sum(a == b for a, b in zip(tags, other_tags, strict=True))
    return len(expected), len(found), matched, crossing, len(words), right


@real_trees
def test_perturbed_trees_count_as_they_do_by_hand():
    rng = random.Random(1)
    seen = defaultdict(int)
    for raw in trees.read(GUM / "dev.ptb"):
        gold = trees.normalised(raw) if rng.random() < 0.5 else raw
        test = perturbed(gold, rng)
        row, expected = evalb.counts(gold, test), by_hand(gold, test)
        seen[row.status] += 1
        if row.status == Status.VALID:
            assert row[2:] == expected
            seen["perfect"] += row.gold == row.matched == row.test
            seen["crossing"] += row.crossing
        elif row.status == Status.ERROR:
            assert expected == Status.ERROR
    assert seen[Status.VALID] > 350
    assert min(seen[Status.ERROR], seen["perfect"], seen["crossing"]) >= 3
