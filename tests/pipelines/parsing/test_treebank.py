"""Files of trees, the layouts of a treebank, and the oddities of real treebanks."""

import gzip
import itertools

import pytest
from paths import DATA

from pipelines.errors import BadInput
from pipelines.parsing import treebank, trees
from pipelines.parsing.trees import Bracket, Leaf, Tree, bracketed, indented, normalised, parse
from t2t_repro.config import resolve
from t2t_repro.problems import PROBLEMS

real_trees = pytest.mark.skipif(
    not all((DATA / name).exists() for name in ("gum_trees", "treebank_sample")),
    reason=f"needs the treebanks in {DATA}",
)
# A tree in the LDC's style: an unnamed root, function tags, indices, traces, several lines.
RAW = """
( (S
    (NP-SBJ-1 (DT The) (NN cat) )
    (VP (VBZ seems)
      (S-PRD=2
        (NP-SBJ (-NONE- *-1) )
        (VP (TO to)
          (VP (VB eat)
            (NP (CD 1\\/2) (-LRB- -LRB-) (NN fish) (-RRB- -RRB-) )
            (ADVP|PRT (RB up) )))))
    (. .) ))
"""
PLAIN = (
    "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ seems) (S (VP (TO to) (VP (VB eat) (NP (CD 1\\/2) "
    "(-LRB- -LRB-) (NN fish) (-RRB- -RRB-)) (ADVP|PRT (RB up)))))) (. .)))"
)


# One tree


def test_a_tree_is_its_leaves_and_brackets():
    assert parse("(S (NP (NP (NN tea))) (VP (VBZ cools)))") == Tree(
        (Leaf("NN", "tea"), Leaf("VBZ", "cools")),
        (Bracket("S", 0, 2), Bracket("NP", 0, 1), Bracket("NP", 0, 1), Bracket("VP", 1, 2)),
    )


def test_normalised():
    assert bracketed(normalised(parse(RAW))) == PLAIN


@pytest.mark.parametrize("root", ["", "ROOT", "TOP", "S1", "TOP-1"])
def test_whatever_the_root_is_called_it_is_top(root):
    text = f"({root} (S (NN a)) (. .))"
    assert bracketed(normalised(parse(text))) == "(TOP (S (NN a)) (. .))"


def test_a_tree_without_a_root_gets_one_and_keeps_its_brackets():
    assert bracketed(normalised(parse("(NP (NN a))"))) == "(TOP (NP (NN a)))"
    assert bracketed(normalised(parse("(NP (NN a)) (. .)"))) == "(TOP (NP (NN a)) (. .))"


def test_a_tree_of_traces_has_no_words():
    assert normalised(parse("( (NP (-NONE- *)))")) == Tree((), ())


def test_no_break_spaces_belong_to_words():
    assert parse("(NP (CD 1\u00a0000)\n (NN cat))").words == ["1\u00a0000", "cat"]


def test_joined_trees_stand_side_by_side():
    one = parse("(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps))))")
    other = parse("(TOP (NN Two))")
    both = "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps))) (NN Two))"
    assert bracketed(trees.joined(one, other)) == both
    assert trees.joined(one, other) == parse(both)
    assert bracketed(trees.joined(other, one)) == (
        "(TOP (NN Two) (S (NP (DT The) (NN cat)) (VP (VBZ sleeps))))"
    )


def test_subtrees_of_brackets_over_the_same_words_are_one():
    tree = normalised(parse("(S (NP (NP (DT a) (NN b)) (CC and) (NN c)) (VP (VP (VB d) (NN e))))"))
    assert [bracketed(part) for part in trees.subtrees(tree, 2)] == [
        "(TOP (NP (NP (DT a) (NN b)) (CC and) (NN c)))",
        "(TOP (NP (DT a) (NN b)))",
        "(TOP (VP (VP (VB d) (NN e))))",
    ]
    assert len(list(trees.subtrees(tree, 3))) == 1


@pytest.mark.parametrize("text", [RAW, PLAIN, "(A (B (C (D d))) (B (C c)) (. .))"])
def test_written_trees_read_the_same(text):
    tree = parse(text)
    assert parse(bracketed(tree)) == tree
    assert parse(indented(tree)) == tree
    assert "\n" not in bracketed(tree)


def test_indented():
    text = "(S (NP (DT a) (NN b)) (VP (VB c) (NP (NN d))) (. .))"
    assert indented(parse(text)).splitlines() == [
        "(S",
        "  (NP (DT a) (NN b))",
        "  (VP (VB c)",
        "    (NP (NN d))) (. .))",
    ]


def test_depth_has_no_limit():
    deep = "(A " * 5000 + "(B b)" + ")" * 5000
    assert parse(bracketed(parse(deep))) == parse(deep)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(S (NN a)", "1 brackets never close"),
        ("(S (NN a)))", r"'\)' after 10"),
        ("(S a (NN b))", "'a' after 3"),
        ("(NN a b)", "'a' after 4"),
        ("the cat", "'the' after 0"),
    ],
)
def test_what_is_not_a_tree(text, reason):
    with pytest.raises(BadInput, match=reason):
        parse(text)


# Files of trees


@pytest.mark.parametrize("ending", ["", "\n", "\r\n\r\n"])
def test_trees_over_lines_and_several_in_one(tmp_path, ending):
    path = tmp_path / "wsj_0201.mrg"
    path.write_bytes(f"{RAW}\n{PLAIN}{PLAIN} {PLAIN}{ending}".replace("\n", "\r\n").encode())
    found = list(trees.read(path))
    assert [bracketed(normalised(tree)) for tree in found] == [PLAIN] * 4


def test_a_broken_tree_is_told_with_its_file_and_line(tmp_path):
    path = tmp_path / "train.mrg"
    path.write_text(f"{PLAIN}\n{PLAIN[:-1]}\n\n{PLAIN}\n")
    reading = trees.read(path)
    next(reading)
    with pytest.raises(BadInput, match=r"train\.mrg, line 2: not a tree \(1 brackets never close"):
        next(reading)


# Layouts


def sentence(number):
    return f"( (S (NP (NNP File{number}) ) ))\n"


def wsj(home, sections=range(25)):
    """Write files in the LDC's layout, two in each section."""
    for section, number in itertools.product(sections, (1, 2)):
        folder = home / f"{section:02}"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"wsj_{section:02}{number:02}"
        (folder / f"{name}.mrg").write_text(sentence(name))
        (folder / f"{name}.prd").write_text("no tree")


def words(split, data_dir, **more):
    return [p["source"] for p in treebank.examples(split, data_dir=str(data_dir), **more)]


@pytest.mark.parametrize("home", ["combined/wsj", "parsed/mrg/wsj", "wsj", ""])
def test_sections_of_the_wall_street_journal(tmp_path, home):
    wsj(tmp_path / home)
    expected = [f"Filewsj_{section:02}{n:02}" for section in range(25) for n in (1, 2)]
    assert words("train", tmp_path) == expected[4:44]
    assert words("dev", tmp_path) == expected[44:46]
    assert words("test", tmp_path) == expected[46:48]


def test_files_of_ones_own(tmp_path):
    (tmp_path / "train.ptb.gz").write_bytes(gzip.compress(PLAIN.encode()))
    (tmp_path / "dev.mrg").write_text(RAW)
    assert words("train", tmp_path) == words("dev", tmp_path)
    (pair,) = treebank.examples("dev", data_dir=str(tmp_path))
    assert pair["source"] == "The cat seems to eat 1\\/2 -LRB- fish -RRB- up ."
    assert pair["target"].startswith(
        "openS openNP DT NN closeNP openVP VBZ openS openVP TO openVP VB openNP CD -LRB- NN -RRB- "
    )


def test_extra_trees_are_mixed_in_at_the_stated_rate(tmp_path):
    (tmp_path / "train.mrg").write_text(sentence(1) + sentence(2))
    (tmp_path / "dev.mrg").write_text(sentence(3))
    extra = tmp_path / "parsed.gz"
    extra.write_bytes(gzip.compress("".join(map(sentence, range(4, 8))).encode()))
    more = {"extra_tree_files": [str(extra)], "gold_repeats": 3}
    train = words("train", tmp_path, **more)
    assert train == ["File1", "File2"] * 3 + ["File4", "File5", "File6", "File7"]
    assert words("dev", tmp_path, **more) == ["File3"]


def test_altered_trees_follow_the_treebank_s_own(tmp_path):
    (tmp_path / "train.mrg").write_text(RAW + sentence(1))
    (tmp_path / "dev.mrg").write_text(RAW)
    extra = tmp_path / "extra.ptb"
    extra.write_text(sentence(4))
    settings = {"altered_copies": 2, "extra_tree_files": [str(extra)]}
    train = words("train", tmp_path, **settings)
    # The treebank; copies of RAW, alone and joined with File1, and its parts; likewise for File1,
    # which has no parts.
    lengths = [11, 1, *[11, 12, 11, 12, 8, 7, 6, 4], *[1, 12, 1, 12], 1]
    assert [len(sentence.split()) for sentence in train] == lengths
    assert train[1] == train[-3] == train[-5] == "File1"
    assert train[3].endswith(" File1")
    assert train[-2].startswith("File1 ")
    assert train[-1] == "File4"
    assert words("train", tmp_path, **settings) == train
    assert words("dev", tmp_path, **settings) == train[:1]


def test_settings_reach_the_reader(tmp_path):
    (tmp_path / "train.mrg").write_text(sentence(1))
    extra = tmp_path / "extra.ptb"
    extra.write_text(sentence(2))
    files = {"data_dir": str(tmp_path), "extra_tree_files": [str(extra)]}
    given = {"gold_repeats": 2, "altered_copies": 3, "spell_words": True}
    settings = resolve("wsj_parsing", "semi_supervised", files | given)
    pairs = list(PROBLEMS["wsj_parsing"].examples("train", settings))
    copies = ["File1", "File1 File1"] * 3
    assert [pair["source"] for pair in pairs] == ["File1"] * 2 + copies + ["File2"]
    for pair in pairs:
        assert all(f"{word}_" in pair["target"] for word in pair["source"].split())


def test_trees_without_words_are_left_out(tmp_path):
    trace = "( (NP (-NONE- *) ))\n"
    (tmp_path / "test.mrg").write_text(trace + sentence(1))
    assert words("test", tmp_path) == ["File1"]
    (tmp_path / "train.mrg").write_text(trace)
    assert words("train", tmp_path, altered_copies=1) == []


@pytest.mark.parametrize("name", ["(S (NP_SBJ (NN a)))", "(S (N_N a))", "(S (openNP a))"])
def test_a_label_that_a_target_cannot_hold_is_refused(tmp_path, name):
    (tmp_path / "test.mrg").write_text(sentence(1) + f"(TOP {name})\n")
    with pytest.raises(BadInput, match=r"test\.mrg, tree 2: .*; wanted labels and tags without _"):
        words("test", tmp_path)


def refusal(split, data_dir):
    with pytest.raises(BadInput) as raised:
        treebank.examples(split, data_dir=data_dir and str(data_dir))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_missing_section_is_named(tmp_path):
    wsj(tmp_path / "combined/wsj", [*range(2, 9), *range(10, 21)])
    message = refusal("train", tmp_path)
    assert f"{tmp_path}/combined/wsj: no .mrg files in section 09, 21" in message
    assert "section 22" in refusal("dev", tmp_path)


def test_nothing_found_says_how_to_lay_it_out(tmp_path):
    for given in (None, tmp_path, tmp_path / "nowhere"):
        message = refusal("train", given)
        assert "D/combined/wsj/NN/*.mrg" in message
        assert "D/train.mrg" in message


def test_one_file_a_split(tmp_path):
    (tmp_path / "train.mrg").write_text(sentence(1))
    assert "no file for test; wanted one, test.mrg" in refusal("test", tmp_path)
    (tmp_path / "train.ptb").write_text(sentence(1))
    assert "train.mrg and train.ptb for train" in refusal("train", tmp_path)


# Real treebanks


@real_trees
@pytest.mark.parametrize(
    ("name", "split", "count", "longest"),
    [
        ("gum_trees", "train", 3707, 101),
        ("gum_trees", "dev", 438, 88),
        ("treebank_sample", "train", 2936, 249),
        ("treebank_sample", "dev", 555, 75),
    ],
)
def test_all_trees_of_a_treebank_are_read(name, split, count, longest):
    pairs = list(treebank.examples(split, data_dir=str(DATA / name)))
    assert len(pairs) == count
    assert max(len(pair["source"].split(" ")) for pair in pairs) == longest
    for pair in pairs:
        assert "NONE" not in pair["target"]
        symbols = pair["target"].split()
        marked = [symbol for symbol in symbols if symbol.startswith(("open", "close"))]
        assert len(pair["source"].split(" ")) == len(symbols) - len(marked)
        assert not any(set("-=") & set(symbol) for symbol in marked)
