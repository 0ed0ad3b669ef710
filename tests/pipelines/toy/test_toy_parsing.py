"""The properties of the trees that the grammar of toy_parsing draws."""

import hashlib
import itertools
import os
import random
import subprocess
import sys

import pytest

from pipelines.errors import BadInput
from pipelines.parsing.linear_trees import linear, restored
from pipelines.parsing.trees import Tree, bracketed
from pipelines.toy import toy_parsing

# The Penn Treebank's.
LABELS = {"S", "NP", "VP", "PP", "ADJP", "ADVP", "PRT", "SBAR", "WHNP"}
TAGS = {
    *("DT", "NN", "NNS", "NNP", "JJ", "IN", ".", ",", "PRP", "PRP$", "VB", "VBD", "VBZ", "VBP"),
    *("MD", "RB", "RP", "CC", "CD", "TO", "WP", "WDT"),
}


@pytest.fixture(scope="module")
def corpus():
    return {split: list(toy_parsing.examples(split)) for split in ("test", "dev", "train")}


@pytest.fixture(scope="module")
def trees(corpus) -> list[Tree]:
    return [restored(p["target"], p["source"].split()) for p in corpus["train"][:5000]]


def constituents(trees, label):
    """Return (tree, bracket) for every bracket with a label."""
    return [(tree, b) for tree in trees for b in tree.brackets if b.label == label]


def text(tree, bracket):
    return " ".join(tree.words[bracket.start : bracket.end])


def test_sizes_and_disjoint_splits(corpus):
    assert {split: len(pairs) for split, pairs in corpus.items()} == {
        **{"test": 500, "dev": 500, "train": 20_000}
    }
    assert len({pair["source"] for pairs in corpus.values() for pair in pairs}) == 21_000


def test_unknown_split_is_refused_before_the_first_tree():
    with pytest.raises(BadInput, match=r"'valid'.*test, dev, train"):
        toy_parsing.examples("valid")


def test_another_process_with_another_hash_seed_writes_the_same(corpus):
    program = (
        "import hashlib, pipelines.toy.toy_parsing as toy\n"
        "print(hashlib.sha256(str([*toy.examples('test'), *toy.examples('dev')]).encode())"
        ".hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "123", "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    here = hashlib.sha256(str([*corpus["test"], *corpus["dev"]]).encode()).hexdigest()
    assert there.strip() == here


def test_lengths(corpus):
    lengths = [len(pair["source"].split()) for pair in corpus["train"]]
    assert max(lengths) <= toy_parsing.MAX_WORDS
    assert 10 <= sum(lengths) / len(lengths) <= 12


def test_labels_and_tags_are_penns_and_all_in_use(corpus):
    symbols = {symbol for pair in corpus["train"] for symbol in pair["target"].split()}
    opening = {symbol for symbol in symbols if symbol.startswith("open")}
    closing = {symbol for symbol in symbols if symbol.startswith("close")}
    assert {symbol.removeprefix("open") for symbol in opening} == LABELS
    assert {symbol.removeprefix("close") for symbol in closing} == LABELS
    assert symbols - opening - closing == TAGS


def test_targets_are_their_own_trees(corpus):
    for pair in corpus["dev"]:
        words = pair["source"].split()
        assert linear(restored(pair["target"], words)) == pair["target"]


def test_a_sentence_has_one_tree():
    rng, seen = random.Random(1), {}
    for tree in (toy_parsing.sentence(rng) for _ in range(5_000)):
        written = bracketed(tree)
        assert seen.setdefault(" ".join(tree.words), written) == written


def test_sentences_are_written_as_sentences(trees):
    for tree in trees:
        words = tree.words
        assert words[0][0].isupper()
        assert words[-1] == "."
        for word, following in itertools.pairwise(words):
            assert word.lower() not in ("a", "an") or (
                (word.lower() == "an") == (following[0] in "aeiou")
            )


def test_with_belongs_to_the_noun_or_to_the_verb_by_what_follows_it(trees):
    """In the same order of words, a thing worn belongs to the noun, a companion to the verb."""
    parents = {"NP": set(), "VP": set()}
    for tree, phrase in constituents(trees, "PP"):
        words = tree.words[phrase.start : phrase.end]
        if words[0] == "with" and len(words) < 5:
            over = [b for b in tree.brackets if b.start <= phrase.start and b.end >= phrase.end]
            parent = over[over.index(phrase) - 1]
            if parent.start < phrase.start:
                parents[parent.label].add(words[-1])
    assert len(parents["NP"]) > 10
    assert len(parents["VP"]) > 20
    assert not parents["NP"] & parents["VP"]


def test_a_particle_stands_by_its_verb(trees):
    for tree, particle in constituents(trees, "PRT"):
        assert tree.leaves[particle.start - 1].tag.startswith("VB")
        assert particle.end == particle.start + 1


def test_verbs_agree_with_their_subjects(trees):
    """A singular noun or "he" precedes VBZ; "they" and plurals precede VBP."""
    subjects = {"VBZ": set(), "VBP": set()}
    for tree in trees:
        for first, second in itertools.pairwise(tree.leaves):
            if second.tag in subjects and first.tag in ("NN", "NNS", "PRP"):
                subjects[second.tag].add(first.word.lower() if first.tag == "PRP" else first.tag)
    assert {"he", "she", "NN"} <= subjects["VBZ"]
    assert {"i", "we", "they", "NNS"} <= subjects["VBP"]
    assert not {"i", "we", "they"} & subjects["VBZ"]
    assert not {"he", "she"} & subjects["VBP"]
