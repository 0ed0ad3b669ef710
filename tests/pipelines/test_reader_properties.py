"""Files that a disk or a stranger has changed: every reader answers, or raises one BadInput.

Hypothesis draws arbitrary bytes, and flips, cuts and splices of a good file. A reader may return
something or raise a BadInput of one line that names the file; it may raise nothing else, and it
has a bounded time for each example. Examples are the same in every run.
"""

import contextlib
import gzip
import json
import os
import tracemalloc

import numpy as np
import pytest
from examples import EXAMPLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines import corpus as corpora
from pipelines import encode
from pipelines.encode import encode_split, find_manifest
from pipelines.errors import BadInput
from pipelines.parsing import trees
from pipelines.shard_files import MANIFEST, Damaged
from pipelines.shards import EncodedSplit
from pipelines.sources import text_files
from pipelines.vocabulary import Vocabulary
from t2t_repro import config
from t2t_repro.paper import table2
from t2t_repro.scoring import evalb
from t2t_repro.workdir import Workdir

TREES = "(TOP (S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (PRP it))) (. .)))\n" * 2
COST = {"flops": 1e9, "formula_flops": None, "paper_flops": {"base": 1e18}, "device": "CPU"}
TEST = {"paper_bleu": 1.0, "sacrebleu": 1.0, "sacrebleu_signature": "tok:13a", "lines": 3}

# The number of examples of a tier; the few of the fast one are the first of the others.
tiers = pytest.mark.parametrize(
    "examples", [40, pytest.param(EXAMPLES, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
# Values that JSON can spell where another type belongs.
odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([1e9, -1, 1 << 63, 10**400, float("nan"), float("inf"), "\ud800", "x" * 5000])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@st.composite
def changed(draw, good):
    """Draw bytes: any, or the good ones with some flipped, cut out, inserted or repeated."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(content)))
        size = draw(st.sampled_from([1, 2, 8, 60, len(good)]))
        kind = draw(st.integers(0, 3))
        if kind == 0 and place < len(content):
            content[place] ^= draw(st.integers(1, 255))
        elif kind == 1:
            del content[place : place + size]
        elif kind == 2:
            content[place:place] = draw(st.binary(max_size=8))
        else:
            other = draw(st.integers(0, len(content)))
            content[place:place] = content[other : other + size]
    return bytes(content)


@st.composite
def changed_object(draw, good):
    """Draw JSON: changed bytes of a good object, or the object with values of other types."""
    if draw(st.booleans()):
        return draw(changed(json.dumps(good).encode()))
    values = json.loads(json.dumps(good))
    for name in draw(st.lists(st.sampled_from(sorted(good)), min_size=1, max_size=2)):
        inner = values[name]
        if isinstance(inner, (dict, list)) and inner and draw(st.booleans()):
            keys = sorted(inner) if isinstance(inner, dict) else range(len(inner))
            inner[draw(st.sampled_from(keys))] = draw(odd)
        else:
            values[name] = draw(odd)
    return json.dumps(values).encode()


def check(examples, contents, path, read):
    """Call `read` for each drawn content of `path`; return how often it was content with it."""
    accepted = 0

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=20_000,  # milliseconds for an example
        suppress_health_check=list(HealthCheck),
    )
    @given(contents)
    def every(content):
        nonlocal accepted
        path.write_bytes(content)
        try:
            read()
            accepted += 1
        except BadInput as error:
            message = str(error)
            assert "\n" not in message
            assert len(message) < 1000
            assert path.name in message or str(path.parent) in message

    every()
    return accepted


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Let files reach the disk when they will: these tests write some 100,000 of them."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


PAIRS = [{"source": f"the cat {n}", "target": f"die Katze {n}"} for n in range(4)]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.learn([text for pair in PAIRS for text in pair.values()], 275)


@pytest.fixture
def split(tmp_path, vocabulary, monkeypatch):
    """Return the directory of a split of two shards."""
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 2)
    monkeypatch.setattr(encode, "in_order", map)
    encode_split(lambda: PAIRS, vocabulary, 20, tmp_path)
    return tmp_path


@tiers
def test_manifest(split, vocabulary, examples):
    path = split / MANIFEST
    good = json.loads(path.read_bytes())

    def read():
        find_manifest(vocabulary, 20, split)
        assert len(EncodedSplit.load(split, vocabulary.size)) == 4

    assert check(examples, changed_object(good), path, read) < examples


@tiers
def test_summary_of_a_shard(split, vocabulary, examples):
    """Whatever it says, preparation ends with a split that is whole."""
    path = split / "shard-00001.json"
    good, expected = json.loads(path.read_bytes()), EncodedSplit.load(split)

    def read():
        summary = encode.make_shard(
            (1, PAIRS[2:], []), vocabulary=vocabulary, max_length=20, directory=str(split)
        )
        assert summary["bytes"] == good["bytes"]
        assert summary["checksums"] == good["checksums"]
        assert summary["pairs"] == 2

    assert check(examples, changed_object(good), path, read) == pytest.approx(examples, rel=0.1)
    np.testing.assert_array_equal(EncodedSplit.load(split).lengths, expected.lengths)


def arrays(path):
    """Draw changed files of an array, and whole files of other arrays."""
    kinds = st.sampled_from(["<i4", "<u2", ">i4", "<i8", "<f4", "|O", "<U3", "|b1", "<m8[s]"])
    shapes = st.sampled_from([(), (0,), (4,), (2, 2), (4, 1), (0, 2), (2, 2, 2), (38,)])

    def content(dtype, shape, number, order):
        values = np.full(shape, number).astype(dtype, order=order)
        encoded = path.with_name("other.npy")
        np.save(encoded, values, allow_pickle=True)
        return encoded.read_bytes()

    numbers = st.sampled_from([0, 1, 5, -1, 20, 21, 275, 2**31 - 1])
    other = st.builds(content, kinds, shapes, numbers, st.sampled_from("CF"))
    return changed(path.read_bytes()) | other


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", ["shard-00001.ids.npy", "shard-00001.lengths.npy"])
@pytest.mark.parametrize("known", [True, False], ids=["checksums", "no checksums"])
@tiers
def test_arrays_of_a_shard(split, vocabulary, name, known, examples):
    """A split of an earlier version has no checksums; its arrays still fit each other."""
    path, manifest = split / name, json.loads((split / MANIFEST).read_bytes())
    good = path.read_bytes()
    if not known:
        del manifest["checksums"]

    def read():
        if not known:
            manifest["bytes"][1]["lengths" in name] = path.stat().st_size
            (split / MANIFEST).write_text(json.dumps(manifest))
        found = EncodedSplit.load(split, vocabulary.size)
        source, target = found.padded(np.arange(4), *found.lengths.max(axis=0))
        assert min(source.min(), target.min()) >= 0
        assert max(source.max(), target.max()) < vocabulary.size
        assert path.read_bytes() == good or not known

    # Half as many examples: each of the four cases writes and reads several files.
    check(examples // 2, arrays(path), path, read)


def test_an_array_of_objects_is_never_unpickled(split, monkeypatch):
    path = split / "shard-00001.ids.npy"
    np.save(path, np.array([{"a": 1}] * 8, object), allow_pickle=True)
    os.truncate(path, json.loads((split / MANIFEST).read_bytes())["bytes"][1][0])
    monkeypatch.setattr("pickle.load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(Damaged, match=r"ids\.npy: damaged \(not an array"):
        EncodedSplit.load(split)


@tiers
def test_description_of_a_corpus(tmp_path, examples):
    settings_ = {"problem": "toy_ende", "vocabulary_size": 300, "dev_source_files": False}
    fingerprints = {"text": "0" * 32, "text_begins": "1" * 32, "vocabulary": "2" * 64}
    of = corpora.Corpus(
        lambda _: iter(PAIRS),
        tmp_path / "run",
        settings=settings_,
        vocabulary_size=300,
        max_length=20,
        max_source_length=20,
        shared_dir=str(tmp_path),
    )

    def read():
        try:
            of._find_description()
        except BadInput as error:  # of other settings, which names the directory
            if f"--prepared_dir={tmp_path} holds another corpus" not in str(error):
                raise

    check(examples, changed_object(settings_ | fingerprints), tmp_path / "corpus.json", read)


@tiers
def test_vocabulary(tmp_path, vocabulary, examples):
    vocabulary.save(tmp_path)
    path = tmp_path / "vocabulary.model"

    def read():
        found = Vocabulary.load(tmp_path)
        ids = found.encode(["the ﬁrst cat", "日本 \ud800"])
        found.encode_flat(["the cat"])
        found.decode([*ids, list(range(3, found.size))])

    # A model has 240 KB and takes a millisecond to load: an eighth of the examples.
    good = path.read_bytes()
    tail = st.binary(max_size=100).map(lambda content: good + content)
    check(max(40, examples // 8), changed(good) | tail, path, read)


@tiers
def test_results(tmp_path, examples):
    of, settings_ = Workdir(tmp_path), config.resolve("toy_ende")

    def read():
        spent = of.results().get("cost")
        table2.check(settings_.problem, True, spent)
        list(table2.listing(settings_, TEST, spent))
        of.add_result("dev", {"sacrebleu": 1.0})
        assert of.results()["dev"] == {"sacrebleu": 1.0}

    check(examples, changed_object({"cost": COST, "test": TEST}), of.results_file, read)


def lines_of(path):
    return list(text_files.lines(path))


@pytest.mark.parametrize(
    ("name", "good", "read"),
    [
        ("text.en", b"the cat\nsees\r\n\xc3\xa9\n", lines_of),
        ("text.en.gz", gzip.compress(b"the cat\nsees it\n" * 9, mtime=0), lines_of),
        (
            "text.tsv",
            b"the cat\tdie Katze\n" * 3,
            lambda path: list(text_files.tab_separated(path)),
        ),
        ("dev.mrg", TREES.encode(), lambda path: [*map(trees.normalised, trees.read(path))]),
    ],
    ids=["text", "gz", "tsv", "trees"],
)
@tiers
def test_text(tmp_path, name, good, read, examples):
    path = tmp_path / name
    check(examples, changed(good), path, lambda: read(path))


@tiers
def test_aligned_files(tmp_path, examples):
    source, target = tmp_path / "text.en", tmp_path / "text.de"
    source.write_bytes(b"the cat\nsees it\n")
    good = b"die Katze\nsieht sie\n"
    check(examples, changed(good), target, lambda: list(text_files.aligned(source, target)))


@tiers
def test_parses_and_references(tmp_path, examples):
    """EVALB's reader gets lines; its error names the line, and `lines` names the file."""
    path = tmp_path / "parses"

    def read():
        found = [*text_files.lines(path), "", ""][:2]
        evalb.scores(found, TREES.splitlines())
        with contextlib.suppress(BadInput):  # of a reference, which names its line
            evalb.scores(TREES.splitlines(), found)

    check(examples, changed(TREES.encode()), path, read)


# What Hypothesis would not find: sizes, and other things than files


def test_trees_that_never_end(tmp_path):
    path = tmp_path / "train.mrg.gz"
    path.write_bytes(gzip.compress(b"(A\n" * 10_000_000, 1))
    tracemalloc.start()
    with pytest.raises(BadInput, match=r"gz, line 1: a tree of more than 65,536 characters"):
        list(trees.read(path))
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_a_line_without_end(tmp_path, name):
    path = tmp_path / name
    with gzip.open(path, "wb", 1) if name.endswith(".gz") else path.open("wb") as file:
        for _ in range(40):
            file.write(b"x" * 1_000_000)
    tracemalloc.start()
    with pytest.raises(BadInput, match=rf"{name}, line 1: longer than 16,777,216 bytes"):
        lines_of(path)
    assert tracemalloc.get_traced_memory()[1] < 60e6
    tracemalloc.stop()


def test_a_bomb_of_short_lines_is_streamed(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"a b\n" * 200_000, 9))
    assert path.stat().st_size < 2_000
    tracemalloc.start()
    assert sum(1 for _ in text_files.lines(path)) == 200_000
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def test_blocks_of_long_lines_hold_fewer_pairs(monkeypatch):
    monkeypatch.setattr(encode, "_CHARACTERS_PER_SHARD", 1000)
    pairs = [{"source": "x" * 300, "target": "y" * 300}] * 7
    sizes = [len(block) for _, block in encode.blocks(pairs)]
    assert sizes == [2, 2, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("side", [0, 1])
def test_deep_trees_are_scored_in_time(side):
    """With n brackets on each side, n^2 comparisons would take an hour."""
    deep = "(A (B b) " * 30_000 + "(B b)" + ")" * 30_000
    flat = "(A " + "(B b) " * 30_001 + ")"
    found = evalb.scores(*(([deep], [flat]) if side else ([deep], [deep])))
    assert found["lines"] == 1
    assert found["recall"] == 100


def test_crossing_brackets_are_those_of_all_pairs():
    rng = np.random.default_rng(0)

    def cross(one, other):
        first, second = sorted([one[1:], other[1:]])
        return first[0] < second[0] < first[1] < second[1]

    for _ in range(300):
        spans = np.sort(rng.integers(0, 12, (2, rng.integers(0, 9), 2)), axis=2)
        one, other = (
            [trees.Bracket("A", int(s), int(e)) for s, e in side if s < e] for side in spans
        )
        expected = sum(any(cross(a, b) for b in one) for a in other)
        assert evalb._count_crossing(one, other) == expected


def no_file(path, kind):
    """Put something else in a file's place."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
@pytest.mark.parametrize(
    "name", [MANIFEST, "shard-00001.ids.npy", "shard-00001.lengths.npy", "vocabulary.model"]
)
def test_something_else_than_a_file(split, vocabulary, kind, name):
    vocabulary.save(split)
    no_file(split / name, kind)
    with pytest.raises(BadInput, match=rf"{name}.*(a pipe or a device|Is a directory)"):
        Vocabulary.load(split) if name == "vocabulary.model" else EncodedSplit.load(split)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
@pytest.mark.parametrize(
    "read",
    [
        lambda path: Workdir(path.parent).results(),
        lambda path: list(text_files.lines(path)),
        lambda path: list(trees.read(path)),
    ],
    ids=["results", "text", "trees"],
)
def test_something_else_than_a_text(tmp_path, kind, read):
    path = tmp_path / "results.json"
    no_file(path, kind)
    with pytest.raises(BadInput, match=r"results\.json.*(a pipe or a device|Is a directory)"):
        read(path)
