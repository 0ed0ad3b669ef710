"""Trees survive conversion to targets and back, and every output of a model gives a tree."""

import itertools
import random
import re
import unicodedata

import pytest
from paths import DATA

from pipelines.parsing import linear_trees, treebank, trees
from pipelines.parsing.linear_trees import (
    are_linear,
    linear,
    restored,
    tree_of,
    with_numbered_words,
)
from pipelines.parsing.trees import Bracket, bracketed, parse
from pipelines.vocabulary import Vocabulary
from t2t_repro.config import resolve
from t2t_repro.problems import PROBLEMS
from t2t_repro.scoring import evalb

real_trees = pytest.mark.skipif(
    not all((DATA / name).exists() for name in ("gum_trees", "treebank_sample")),
    reason=f"needs the treebanks in {DATA}",
)
TREE = "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))"
TARGET = "openS openNP DT NN closeNP openVP VBZ closeVP . closeS"
SPELT_TARGET = "openS openNP The_DT cat_NN closeNP openVP sleeps_VBZ closeVP ._. closeS"
WORDS = ["The", "cat", "sleeps", "."]


def spelt(text):
    """Convert (NP DT )NP, which is easier to read, to the letters of a target."""
    return re.sub(r"(?<!\S)\)(?=\S)", "close", re.sub(r"(?<!\S)\((?=\S)", "open", text))


def mended(text, words="a b c d"):
    return bracketed(restored(spelt(text), words.split())).removeprefix("(TOP ").removesuffix(")")


def test_a_tree_and_its_target():
    assert linear(parse(TREE)) == TARGET
    assert bracketed(restored(TARGET, WORDS)) == TREE


def test_words_before_their_tags():
    assert linear(parse(TREE), spell_words=True) == SPELT_TARGET
    assert bracketed(restored(SPELT_TARGET, WORDS)) == TREE


def test_a_spelt_word_stays_one_symbol_of_the_vocabulary():
    """NFKC would make a space of U+00A0 and a bracket of U+FF08."""
    tree = parse("(TOP (S (DT les) (CD 10\u00a0000) (-LRB- \uff08) (NN gens)))")
    target = unicodedata.normalize("NFKC", linear(tree, spell_words=True))
    assert restored(target, tree.words) == tree


def test_a_spelt_word_may_look_like_a_bracket_and_hold_the_mark():
    tree = parse("(TOP (S (NP (DT openS) (NN _closeNP_)) (. _)))")
    assert restored(linear(tree, spell_words=True), tree.words) == tree


@real_trees
@pytest.mark.parametrize("file", ["gum_trees/dev.ptb", "treebank_sample/dev.mrg"])
def test_nothing_of_real_trees_is_lost(file):
    for tree in map(trees.normalised, trees.read(DATA / file)):
        assert restored(linear(tree), tree.words) == tree
        assert restored(linear(tree, spell_words=True), tree.words) == tree


@real_trees
@pytest.mark.parametrize("name", ["gum_trees", "treebank_sample"])
def test_the_vocabulary_loses_no_symbol_and_most_are_one_piece(name):
    pairs = list(treebank.examples("train", data_dir=str(DATA / name)))
    text = [side for pair in pairs for side in (pair["source"], pair["target"])]
    vocabulary = Vocabulary.learn(text, 2000)
    targets = [pair["target"] for pair in pairs]
    ids = vocabulary.encode(targets)
    assert vocabulary.decode(ids) == targets
    symbols = sum(len(target.split()) for target in targets)
    assert sum(map(len, ids)) < 1.05 * symbols + len(targets)
    spelt = treebank.examples("train", data_dir=str(DATA / name), spell_words=True)
    decoded = vocabulary.decode(vocabulary.encode([pair["target"] for pair in spelt]))
    for pair, target in zip(pairs, decoded, strict=True):
        assert restored(target, pair["source"].split()) == restored(
            pair["target"], pair["source"].split()
        )


# Malformed outputs; every tree has the words a b c d.


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        # closing brackets that are missing, surplus, or have another label
        ("(S (NP A B (VP C D )S", "(S (NP (A a) (B b) (VP (C c) (D d))))"),
        ("(S (NP A B )NP )NP C )VP D )S )S", "(S (NP (A a) (B b)) (C c) (D d))"),
        ("(S (NP A )VP B )NP C D )S", "(S (NP (A a) (B b)) (C c) (D d))"),
        (")S )S A B C D", "(A a) (B b) (C c) (D d)"),
        # surplus and missing words
        ("(S A B C D E (NP F )NP )S", "(S (A a) (B b) (C c) (D d))"),
        ("(S (NP A B", "(S (NP (A a) (B b) (XX c) (XX d)))"),
        ("(S (NP A )NP B )S", "(S (NP (A a)) (B b) (XX c) (XX d))"),
        ("(S A )S (S (NP B )NP )S", "(S (A a)) (S (NP (B b)) (XX c) (XX d))"),
        ("(S A )S (S )S", "(S (A a) (XX b) (XX c) (XX d))"),
        ("(S (NP )NP )S", "(S (XX a) (XX b) (XX c) (XX d))"),
        ("A", "(A a) (XX b) (XX c) (XX d)"),
        ("", "(XX a) (XX b) (XX c) (XX d)"),
        # brackets without words, chains, unknown labels
        ("(S (NP )NP A (PP (NP )NP )PP B C D )S", "(S (A a) (B b) (C c) (D d))"),
        ("(S (S A B C D )S )S", "(S (S (A a) (B b) (C c) (D d)))"),
        ("(Hund A )Hund B ⁇ D", "(Hund (A a)) (B b) (⁇ c) (D d)"),
        # stray brackets, bracket symbols without a label
        ("(S A( ) B) C(D )S", "(S (A a) (B b) (C c) (D d))"),
        ("open A B close C D", "( (A a) (B b)) (C c) (D d)"),
        # spelt words: the right number, one of them misspelt
        ("(S (NP a_A b_B )NP x_C d_D )S", "(S (NP (A a) (B b)) (C c) (D d))"),
        # missing words belong to the word before, or to the first
        ("(S (NP a_A d_D )NP )S", "(S (NP (A a) (XX b) (XX c) (D d)))"),
        ("(S (NP a_A )NP (VP d_D )VP )S", "(S (NP (A a) (XX b) (XX c)) (VP (D d)))"),
        ("(S (NP a_A b_B )NP )S", "(S (NP (A a) (B b) (XX c) (XX d)))"),
        ("(S (NP c_C d_D )NP )S", "(S (NP (XX a) (XX b) (C c) (D d)))"),
        # repeated words and words of another sentence stand for no word
        ("(S (NP a_A b_B )NP b_E c_C d_D )S", "(S (NP (A a) (B b)) (C c) (D d))"),
        ("(S (NP a_A )NP (VP x_X y_Y )VP b_B c_C d_D )S", "(S (NP (A a)) (B b) (C c) (D d))"),
        ("(S (NP x_X )NP )S", "(S (NP (X a) (XX b) (XX c) (XX d)))"),
        # some words are spelt, some are not
        ("(S (NP A b_B )NP D )S", "(S (NP (A a) (B b)) (D c) (XX d))"),
    ],
)
def test_a_malformed_output_is_repaired(text, tree):
    assert mended(text) == tree


def test_as_many_words_as_possible_are_matched():
    """No common subsequence is longer."""
    rng = random.Random(4)
    for _ in range(2000):
        said, words = (rng.choices("abc", k=rng.randrange(1, 12)) for _ in range(2))
        match = linear_trees._matches(said, words)
        assert list(match.values()) == sorted(set(match.values()), reverse=True)
        assert list(match) == sorted(match, reverse=True)
        assert all(said[i] == words[j] for i, j in match.items())
        longer = (set(itertools.combinations(line, len(match) + 1)) for line in (said, words))
        assert not set.intersection(*longer)


def test_a_repaired_tree_has_penns_tag_for_each_mark():
    for mark, tag in zip([",", ".", "?", "!", ":", ";", "--"], ",...:::", strict=True):
        tags = [leaf.tag for leaf in restored("openS NN NN closeS", ["a", mark, "b"]).leaves]
        assert tags[1] == tag


def test_every_output_gives_a_tree_with_exactly_the_words():
    rng = random.Random(1)
    marks = ["(S", ")S", "(NP", ")NP", ")VP", "DT", "NN", ".", "(", ")", "()", "x)y", "((", "é"]
    known = [spelt(mark) for mark in marks] + ["open", "close", "opened", "a_NN", "open_", "_"]
    for _ in range(3000):
        words = [f"w{n}" for n in range(rng.randrange(1, 9))]
        text = " ".join(rng.choices(known, k=rng.randrange(30)))
        tree = restored(text, words)
        assert tree.words == words
        assert tree.brackets[0] == Bracket("TOP", 0, len(words))
        again = parse(bracketed(tree))
        assert again == tree
        assert restored(linear(tree), words) == tree


def test_depth_has_no_limit():
    tree = restored("openNP " * 3000, ["a"])
    assert len(tree.brackets) == 3001
    assert parse(bracketed(tree)) == tree


def test_no_words_are_no_tree():
    assert bracketed(restored(TARGET, [])) == ""


# Scores


def test_a_run_is_scored_by_its_targets():
    settings, score = resolve("toy_parsing"), PROBLEMS["toy_parsing"].score
    perfect = score([TARGET], [TARGET], settings)
    assert (perfect["f1"], perfect["exact_match"], perfect["tagging_accuracy"]) == (100, 100, 100)
    worse = score([spelt("(S DT NN (VP VBZ )VP ."), "X X X ."], [TARGET, TARGET], settings)
    # S and VP of S, NP and VP are matched; nothing of the other tree is.
    assert worse["recall"] == pytest.approx(100 * 2 / 6)
    assert worse["precision"] == 100
    assert (worse["lines"], worse["skipped"]) == (2, 0)
    assert score([SPELT_TARGET], [SPELT_TARGET], settings) == score([TARGET], [TARGET], settings)


def test_punctuation_taken_for_a_word_is_what_evalb_leaves_out():
    score = PROBLEMS["toy_parsing"].score
    wrong = TARGET.replace(" . ", " NN ")
    result = score([TARGET, wrong], [TARGET] * 2, resolve("toy_parsing"))
    assert (result["f1"], result["skipped"]) == (100, 1)
    assert result["f1_punished"] == pytest.approx(200 * 3 / (6 + 3))


def test_words_lost_do_not_make_a_sentence_one_that_evalb_leaves_out():
    """With a missing tag, the full stop's is beside a word; with a surplus tag, beside none."""
    score = PROBLEMS["toy_parsing"].score
    outputs = [TARGET.replace(" NN ", " "), TARGET.replace(" NN ", " JJ NN ")]
    result = score(outputs, [TARGET] * 2, resolve("toy_parsing"))
    assert result["skipped"] == 0
    assert result["f1"] < 100
    tree = restored(outputs[0], WORDS)
    assert [leaf.tag for leaf in tree.leaves] == ["DT", "VBZ", "XX", "."]


def test_with_the_sources_a_run_is_scored_by_the_trees_that_translate_prints():
    """A dash is no mark that `_tags` knows, so an output without its tag cannot be repaired."""
    target, sentence = "openS openNP NNP : NNP closeNP openVP VBZ closeVP . closeS", "A - B is ."
    output, settings = target.replace(" : ", " "), resolve("toy_parsing")
    score = PROBLEMS["toy_parsing"].score
    assert score([target], [target], settings, [sentence])["f1"] == 100
    result = score([output], [target], settings, [sentence])
    assert result["skipped"] == 1
    assert result == evalb.scores([tree_of(sentence, output)], [tree_of(sentence, target)])
    assert score([output], [target], settings)["skipped"] == 0


def test_files_of_any_system_are_scored_as_trees():
    settings, score = resolve("wsj_parsing"), PROBLEMS["wsj_parsing"].score
    other = TREE.replace("cat", "dog")
    result = score([TREE, other, "", "no tree"], [TREE] * 4, settings)
    assert (result["f1"], result["skipped"], result["lines"]) == (100, 3, 4)
    assert result["f1_punished"] == pytest.approx(200 * 3 / (12 + 3))


def test_targets_and_trees_are_told_apart():
    assert are_linear([TARGET, "UH"])
    assert not are_linear([TREE])
    assert not are_linear(["Am Sonntag will der Lehrer"])
    assert with_numbered_words("DT NN", "openNP NN") == (
        "(TOP (DT 1) (NN 2))",
        "(TOP (NP (NN 1) (XX 2)))",
    )
