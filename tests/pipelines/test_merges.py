"""Merges left out of words: sentencepiece's own BPE dropout, and the same in every process."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import sentencepiece

from pipelines.merges import Merges
from pipelines.vocabulary import EOS

# By score, the best first: ab, bc, _a, abc.
SYMBOLS = ["</s>", "_", "a", "b", "c", "_a", "ab", "bc", "abc"]
PARTS = [("</s>",), *(tuple(symbol) for symbol in SYMBOLS[1:])]


class Draws:
    """Stands in for a generator: hands out the number of merges before each one left out."""

    def __init__(self, firsts, seconds, later=()):
        self.gaps, self.later = [firsts, seconds], iter(later)

    def geometric(self, _, size=None):
        return next(self.later) + 1 if size is None else np.array(self.gaps) + 1


@pytest.fixture(scope="module")
def letters():
    begins = np.array([symbol in ("</s>", "_", "_a") for symbol in SYMBOLS])
    return Merges(PARTS, [0, -9, -9, -9, -9, -3, -1, -2, -4], begins)


def drawn(letters, word, *before):
    ids = np.array([SYMBOLS.index(symbol) for symbol in word.split()])
    first, second, *later = [*before, 99, 99]
    out = letters.leave_out(ids, 0.5, Draws([first], [second], later))
    return " ".join(SYMBOLS[i] for i in out)


@pytest.mark.parametrize(
    ("before", "pieces"),
    [
        ([2], "_ abc"),  # more merges than the word has: nothing is left out
        ([1], "_ ab c"),  # _ a b c -> _ ab c, and not abc
        ([0], "_a bc"),  # not ab; bc and then _a, the merges that are left
        ([0, 0], "_a b c"),  # neither ab nor bc
        ([0, 1], "_ abc"),  # bc, not _a; a, which was left out beside b, is tried beside bc
        ([0, 1, 0], "_ a bc"),
        ([0, 0, 0], "_ a b c"),
    ],
)
def test_the_next_best_merge_takes_the_place_of_one_left_out(letters, before, pieces):
    assert drawn(letters, "_ abc", *before) == pieces


def test_words_and_sentences_stay_apart(letters):
    ids = np.array([SYMBOLS.index(s) for s in ["_a", "_", "abc", "</s>", "_a", "</s>"]])
    out = letters.leave_out(ids, 0.5, Draws([0, 2, 0, 0, 0], [99] * 5))
    assert [SYMBOLS[i] for i in out] == ["_", "a", "_", "abc", "</s>", "_", "a", "</s>"]


@pytest.mark.parametrize("dropout", [0.1, 0.5, 1.0])
def test_pieces_are_drawn_as_often_as_by_sentencepiece(toy_vocabulary, dropout):
    """20,000 draws of a word; chi-square of the two counts is about 1 for each kind of pieces."""
    word, draws = "sixteenteachers", 20_000
    plain = toy_vocabulary.encode([word])[0]
    generator = np.random.default_rng(1)
    ids = toy_vocabulary.merges.leave_out(np.array(plain * draws), dropout, generator)
    ours = Counter(map(tuple, np.split(ids, np.flatnonzero(ids == EOS)[:-1] + 1)))
    sentencepiece.set_random_generator_seed(1)
    processor = sentencepiece.SentencePieceProcessor(model_proto=toy_vocabulary._model)
    # One thread: with a seed, all of them would draw the same.
    sampling = {"enable_sampling": True, "nbest_size": -1, "alpha": dropout, "num_threads": 1}
    theirs = Counter(map(tuple, processor.encode([word] * draws, add_eos=True, **sampling)))
    common = [key for key in ours | theirs if ours[key] + theirs[key] >= 20]
    squares = [(ours[key] - theirs[key]) ** 2 / (ours[key] + theirs[key]) for key in common]
    assert sum(squares) < len(common) + 5 * (2 * len(common)) ** 0.5
    assert sum(ours[key] for key in common) > 0.8 * draws


def test_text_in_any_script_stays(toy_vocabulary):
    texts = ["Ångström 🙂 日本", "", "a", "ǅ ﬁ x" * 30]
    ids, _ = toy_vocabulary.encode_flat(texts)
    all_left_out = toy_vocabulary.merges.leave_out(ids, 1.0, np.random.default_rng(1))
    rows = np.split(all_left_out, np.flatnonzero(all_left_out == EOS)[:-1] + 1)
    assert toy_vocabulary.decode(rows) == toy_vocabulary.decode(toy_vocabulary.encode(texts))
    pieces = [toy_vocabulary.pieces[i] for i in all_left_out]
    assert all(len(piece) == 1 or piece.startswith("<") for piece in pieces)


def test_every_process_draws_the_same(toy_vocabulary, tmp_path):
    """A resumed run reads on in the pieces of the run that was stopped."""
    toy_vocabulary.save(tmp_path)
    code = (
        "import sys, numpy as np\n"
        "from pipelines.vocabulary import Vocabulary\n"
        "vocabulary = Vocabulary.load(sys.argv[1])\n"
        "ids, _ = vocabulary.encode_flat(['The teacher does not want to close it.'] * 50)\n"
        "print(vocabulary.merges.leave_out(ids, 0.1, np.random.default_rng(1)).tolist())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    outputs = {subprocess.run(command, stdout=-1, check=True, text=True).stdout for _ in range(3)}
    (drawn,) = outputs
    assert len(drawn) > 1000
