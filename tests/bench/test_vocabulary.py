"""The rows of `bench vocabulary` on a text whose figures can be counted by hand."""

import importlib.util

import pytest

from pipelines.errors import BadInput
from t2t_repro.bench import vocabulary as bench_vocabulary
from t2t_repro.bench.vocabulary import TRAINERS, rows

# Eight words of two characters, each often enough to be a piece.
SOURCE = ["ab cd ef gh", "cd ef gh ab"] * 50
TARGET = ["ij kl mn op", "kl mn op ij"] * 50
SIZE = 3 + 256 + 17 + 16  # 16 letters and the mark of a word's start; two merges per word


@pytest.fixture
def file(tmp_path):
    """Return a function that writes lines to a new file."""

    def write(lines):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.txt"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture
def peers():
    pytest.importorskip("tokenizers")
    pytest.importorskip("subword_nmt")


@pytest.mark.usefixtures("peers")
def test_every_trainer_learns_from_both_sides(file):
    """The eight words of the training text are one piece each. "ad", "eb" and "é" are segmented:

    - by our vocabulary and byte-level BPE into the mark of a word's start and two letters or two
      bytes: 3 pieces each;
    - by WordPiece into "a ##d", "e ##b" and one unknown piece;
    - by subword-nmt into "a@@ d", "e@@ b" and "é", none of which occur in the training text.
    """
    test = [file(["ab cd  ef gh"]), file(["ij kl\x01mn op", "ad eb é"])]
    found = {row["trainer"]: row for row in rows([file(SOURCE)], [file(TARGET)], test, SIZE)}
    assert list(found) == list(TRAINERS)
    expected = {  # pieces learned, pieces in the test, words of one piece, bytes or unknown
        "ours": (SIZE, 17, 8, 2),
        "tokenizers byte-level BPE": (3 + 256 + 16, 17, 8, 2),
        "tokenizers WordPiece": (3 + 16 + 8 + 8, 13, 9, 1),
        "subword-nmt": (8, 13, 9, 5),
    }
    for name, (learned, pieces, whole, odd) in expected.items():
        row = found[name]
        assert row["pieces"] == learned
        assert row["pieces_per_word"] == pytest.approx(pieces / 11)
        assert row["one_piece_words"] == pytest.approx(whole / 11)
        assert row["bytes_or_unknown_per_1000"] == pytest.approx(1000 * odd / pieces)
    unigram = found["sentencepiece unigram"]
    assert unigram["pieces"] <= SIZE
    spelt = unigram["bytes_or_unknown_per_1000"] / 1000 * unigram["pieces_per_word"] * 11
    assert spelt == pytest.approx(2)  # the bytes of "é"
    assert all(row["seconds"] > 0 for row in found.values())


@pytest.mark.usefixtures("peers")
def test_moses_tokens_count_for_their_word():
    learned = TRAINERS["subword-nmt"](['ab, cd ("ef").'] * 9, 100)
    assert list(learned.segment('cd (ab", x-y ef')) == [(1, 0), (4, 0), (3, 3), (1, 0)]


@pytest.mark.usefixtures("peers")
def test_the_size_of_subword_nmt_counts_characters():
    """Size 5 is two word-initial and two word-final characters and one merge."""
    assert TRAINERS["subword-nmt"](["ab ab cd"] * 9, 5).pieces == 3


@pytest.mark.usefixtures("peers")
def test_a_text_too_small_for_ours_is_bad_input(file):
    with pytest.raises(BadInput, match=r"37000: the text yields at most \d+"):
        next(rows([file(SOURCE)], [file(TARGET)], [file(SOURCE)], 37_000))


def test_a_missing_library_is_bad_input(monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "subword_nmt" else object()
    )
    with pytest.raises(BadInput, match=r'subword_nmt is not.*pip install "t2t_repro\[peers\]"'):
        next(rows(["no.en"], ["no.de"], ["no.en"], SIZE))


def test_a_missing_file_is_bad_input(monkeypatch, file):
    monkeypatch.setattr(bench_vocabulary, "_check_peers", lambda: None)
    with pytest.raises(BadInput, match=r"no\.de: no such file"):
        next(rows([file(SOURCE)], ["no.de"], [file(SOURCE)], SIZE))
