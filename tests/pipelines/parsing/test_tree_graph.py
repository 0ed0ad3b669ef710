"""TensorFlow's operations make the same trees as `linear_trees` from the same outputs."""

import random

import pytest
import tensorflow as tf
from paths import DATA

from pipelines.parsing import trees
from pipelines.parsing.linear_trees import linear, tree_of
from pipelines.parsing.tree_graph import bracketed
from pipelines.toy import toy_parsing

TREE = "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))"
TARGET = "openS openNP DT NN closeNP openVP VBZ closeVP . closeS"
TEXT = tf.TensorSpec([None], tf.string)

graph = tf.function(bracketed, input_signature=[TEXT, TEXT], autograph=False)


def in_the_graph(sentences, outputs):
    """Return the trees of any number of outputs, computed 100 at a time."""
    pairs = [
        graph(*(tf.constant(lines[at : at + 100], tf.string) for lines in (sentences, outputs)))
        for at in range(0, max(len(sentences), 1), 100)
    ]
    return [text.decode() for part in pairs for text in part.numpy()]


def check(sentences, outputs):
    expected = [tree_of(*pair) for pair in zip(sentences, outputs, strict=True)]
    assert in_the_graph(sentences, outputs) == expected


def test_a_tree():
    assert in_the_graph(["The cat sleeps ."], [TARGET]) == [TREE]


@pytest.mark.parametrize(
    ("split", "number"), [("test", 500), pytest.param("train", 20_000, marks=pytest.mark.slow)]
)
def test_every_tree_of_toy_parsing(split, number):
    pairs = list(toy_parsing.examples(split))
    assert len(pairs) == number
    check([pair["source"] for pair in pairs], [pair["target"] for pair in pairs])


@pytest.mark.parametrize(
    "file",
    [
        "gum_trees/dev.ptb",
        pytest.param("gum_trees/train.ptb.gz", marks=pytest.mark.slow),
        pytest.param("treebank_sample/train.mrg.gz", marks=pytest.mark.slow),
    ],
)
def test_real_trees(file):
    if not (DATA / file).exists():
        pytest.skip(f"needs the treebanks in {DATA}")
    gold = list(map(trees.normalised, trees.read(DATA / file)))
    sentences = [" ".join(tree.words) for tree in gold]
    for spell_words in (False, True):
        targets = [linear(tree, spell_words) for tree in gold]
        assert in_the_graph(sentences, targets) == list(map(trees.bracketed, gold))


def damaged(symbols, rng):
    """Damage a target: drop, repeat, swap, replace or insert symbols, or cut some off."""
    strange = ["open", "close", "opens", "openopenS", "openclose", "closeNP", "closeX", "XX", ","]
    strange += ["cat_NN", "open_VB", "a_b_openS", "_,", "b_", "_", "__", "a__", "ß_é"]
    strange += [".", "``", "-LRB-", "(", ")", "()", "x)y", "((", "é", "\u2047", "openÜ", "closeÜ"]
    symbols = list(symbols)
    for _ in range(rng.randrange(8)):
        at = rng.randrange(len(symbols) + 1)
        cut = rng.choice([[], symbols[at : at + 1] * 2, symbols[at : at + 2][::-1]])
        put = rng.choice([cut, [], [rng.choice(strange)], rng.choices(symbols + strange, k=3)])
        symbols[at : at + rng.randrange(3)] = put
    return symbols[: rng.randrange(len(symbols) + 1)] if rng.random() < 0.1 else symbols


def test_damaged_outputs():
    rng = random.Random(1)
    pairs = list(toy_parsing.examples("dev"))
    space = [" "] * 9 + ["  ", "\t", "\n", "\r\n", "\v", "\f", "\u00a0", "\u2028", "\x85", "\x1c"]
    kinds = [",", ".", "?", "--", "...", "``", "(", ")", "a(b)", "-", "()", "\u00a0", "<", "ß"]
    sentences, outputs = [], []
    for pair in rng.choices(pairs, k=8000):
        symbols = damaged(pair["target"].split(), rng)
        words = pair["source"].split()
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(words))
            words[at : at + 1] = rng.choices(kinds, k=rng.randrange(1, 3))
        sentences.append("".join(word + rng.choice(space) for word in words))
        outputs.append(rng.choice(["", " "]) + "".join(s + rng.choice(space) for s in symbols))
    check(sentences, outputs)


def test_words_spelt_in_disorder():
    """With few distinct words there are many ways to match; some outputs spell only a part."""
    rng = random.Random(3)
    symbols = ["openS", "openNP", "closeS", "closeNP", "a_A", "b_B", "c_C", ",_,", "._.", "x_X"]
    symbols += ["NN", "open_O"]
    outputs = [" ".join(rng.choices(symbols, k=rng.randrange(25))) for _ in range(8000)]
    sentences = [" ".join(rng.choices("abc.,", k=rng.randrange(9))) for _ in outputs]
    check(sentences, outputs)


def test_symbols_drawn_at_random():
    """The symbols are mostly brackets with few labels, so they close each other in every way."""
    rng = random.Random(2)
    symbols = ["openS", "openNP", "closeS", "closeNP", "open", "close", "closeVP", "NN", ".", "("]
    outputs = [" ".join(rng.choices(symbols, k=rng.randrange(25))) for _ in range(8000)]
    sentences = [" ".join(rng.choices("abc.,", k=rng.randrange(9))) for _ in outputs]
    check(sentences, outputs)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("", "")],
        [("", TARGET), (" \t\n", "")],
        [("a b", ""), ("a .", " \n")],
        [("a b", ""), ("", TARGET), ("The cat sleeps .", TARGET)],
        [("a", "openNP " * 600)],
        [("a", "closeNP " * 9), ("a", "NN " * 9)],
        [("b\0c ) ((d) \u2028 \U0001f600", "A\0B openC\0 D")],
    ],
)
def test_odd_pairs(pairs):
    check([sentence for sentence, _ in pairs], [output for _, output in pairs])


def test_bytes_that_are_not_utf8():
    (tree,) = graph(tf.constant([b"caf\xe9 \xff"]), tf.constant(["NN"])).numpy()
    assert tree.decode() == "(TOP (NN caf\ufffd) (XX \ufffd))"
