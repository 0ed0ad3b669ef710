"""Counting and caching words gives the same results as reading whole sentences."""

import io
import pickle
import random
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest
import sentencepiece
from paths import DATA, ROOT

from pipelines import vocabulary as vocabulary_module
from pipelines import word_counts
from pipelines.errors import BadInput
from pipelines.sources import text_files
from pipelines.vocabulary import EOS, Vocabulary

UNK, BYTES = 2, range(3, 259)
SIZE = 330

TEXT = [
    "The cat sees the house and the house is old.",
    "Every winter the old man walks to the warm house.",
    "Die Katze sieht das Haus, und das Haus ist alt.",
    "Jeden Winter geht der alte Mann in das warme Haus.",
]
# The code splits at spaces only; the normaliser and `fold` decide where else a word ends.
ODD = [
    *("", " ", "   ", "\t", "\n", "\0", "\ud800", "\x01", "\u2581", "\u00a0", "\ufeff"),
    *("a\tb", "a \t b", "cat\thouse 3", "cat\t3", "a\nb\r", "a\0b", "a\ud800b \udfff"),
    *("  the  cat ", "a\u3000b\u2009c\u2028d\x85e", "a\u2581b \u2581 c\u2581 d"),
    *(
        "\u00a8",
        "a\u00a8",
        "a \u00a8b",
        "a \u0344b",
        "a\u00a0\u0301b",
        " \u0308\u0301",
        "\u00b4 \u0301",
    ),
    *(
        "a \x01 b",
        "a\x01 b",
        "qz\x1fqz " * 90,
        "\x01\x02 a",
        "ﬁ ① ﷺ",
        "e\u0301 \u00e9",
        "\u1112\u1161 \u11ab",
    ),
    *("👩🏽\u200d🚀 👨\u200d👩", "</s> <pad> <0x41> <unk>", "a</s>b", "日本語。", "the " * 3_000),
]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.learn(TEXT, SIZE)


def lines(*patterns: str) -> list[str]:
    """Return all lines of real files, some of each pattern."""
    found = [sorted(DATA.glob(pattern)) for pattern in patterns]
    if not all(found):
        pytest.skip("needs shared/data beside the checkout")
    return [line for path in chain(*found) for line in text_files.lines(path)]


def random_sentences(count: int) -> list[str]:
    """Return random text of spaces of all kinds, marks, controls and words, from a fixed seed."""
    generator = random.Random(0)
    parts = [" "] * 12 + list("\t\u2581\u00a0\u0301\u0344\u200d\0\x01\x85\u3000\u00a8\u00b4\ufeff")
    parts += [*"\ud800\r\n한\u1112\u1161eﷺ", "👩🏽", "the", "Haus", "</s>"]

    def part() -> str:
        return (
            generator.choice(parts)
            if generator.random() < 0.8
            else chr(generator.randrange(0x110000))
        )

    return ["".join(part() for _ in range(generator.randrange(25))) for _ in range(count)]


# Learning from counts


def from_sentences(sentences: list[str], size: int) -> list[tuple[str, float]]:
    """Return the pieces and scores that sentencepiece learns from the folded sentences."""
    model = io.BytesIO()
    options = vocabulary_module._LEARNING | {"input_format": "text"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=map(vocabulary_module.fold, sentences),
        model_writer=model,
        vocab_size=size,
        **options,
    )
    return pieces(model.getvalue())


def pieces(model: bytes) -> list[tuple[str, float]]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(processor.get_piece_size())
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in ids]


def has(vocabulary: Vocabulary, *characters: str) -> list[bool]:
    """Return the characters that have a piece of their own."""
    return [vocabulary.encode([c])[0][-2] not in BYTES for c in characters]


@pytest.mark.parametrize(
    ("patterns", "size"),
    [
        (["multi30k/train.*"], 8_000),
        (["wmt_news/*.en", "wmt_news/*.de", "wmt_news/*.fr"], 32_000),
    ],
)
def test_real_text_gives_the_pieces_of_whole_sentences(patterns, size):
    sentences = lines(*patterns)
    learnt = Vocabulary.learn(iter(sentences), size)
    assert pieces(learnt._model) == from_sentences(sentences, size)


def test_hostile_text_gives_the_pieces_of_whole_sentences():
    sentences = TEXT * 3 + ODD + random_sentences(2_000)
    learnt = Vocabulary.learn(sentences, 6_000)  # 5,022 of them characters and bytes
    assert pieces(learnt._model) == from_sentences(sentences, 6_000)


def test_a_tab_inside_a_word_is_a_space_and_no_count():
    """If it were read as a count, "ab" would occur 9 times, and "xy" would be the rarer pair."""
    learnt = Vocabulary.learn(["ab\t9", "xy xy"], 3 + 256 + 6 + 1)
    assert [len(row) - 1 for row in learnt.encode(["ab", "xy"])] == [3, 2]


def test_what_sentencepiece_reserves_costs_a_word_and_no_sentence():
    """sentencepiece uses U+2585 for unknown characters in learning, and drops words with it."""
    learnt = Vocabulary.learn(["ab\u2585 xy xy"], 3 + 256 + 3 + 1)
    assert has(learnt, "x", "a", "\u2585") == [True, False, False]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, [True, True, True, True]),
        ({"_MOST_WORDS": 3}, [True, True, True, False]),
        ({"_MOST_WORDS": 2}, [True, True, False, False]),
        ({"_MOST_WORDS": 1}, [False, True, False, False]),
        ({"_MOST_CHARACTERS": 9}, [True, True, True, True]),
        ({"_MOST_CHARACTERS": 7}, [True, True, True, False]),
        ({"_MOST_CHARACTERS": 4}, [False, True, False, False]),
    ],
)
def test_the_most_frequent_words_are_learnt_from(monkeypatch, limits, kept):
    """The text has "eff" three times, "ad" and then "cc" twice, and "zz" once."""
    for name, value in limits.items():
        monkeypatch.setattr(word_counts, name, value)
    learnt = Vocabulary.learn(
        ["ad eff cc eff", "cc ad zz eff"], 3 + 256 + 1 + [2, 4, 5, 6][sum(kept) - 1]
    )
    assert has(learnt, "a", "e", "c", "z") == kept


def test_the_table_is_cut_while_it_is_read(monkeypatch):
    """Only one of three words is kept, so "c" never overtakes "a"."""
    text = ["a a", "b c", "d e", "c c"]
    assert has(Vocabulary.learn(text, 3 + 256 + 6), "a", "c") == [True, True]
    monkeypatch.setattr(word_counts, "_COUNTED_AT_ONCE", 1)
    monkeypatch.setattr(word_counts, "_MOST_WORDS", 1)
    assert has(Vocabulary.learn(text, 3 + 256 + 2), "a", "c") == [True, False]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, BadInput])
def test_what_stops_the_reading_or_the_handing_over_passes_through(monkeypatch, error):
    """sentencepiece itself passes on only an exception raised by the first line."""
    text = [*TEXT, "stop"]

    def stopped(text):
        if text == "stop":
            raise error
        return text

    with pytest.raises(error):
        Vocabulary.learn(map(stopped, text), SIZE)
    monkeypatch.setattr(vocabulary_module, "fold", stopped)
    for words in (text, text[::-1]):  # in one order, then in the reverse
        with pytest.raises(error):
            Vocabulary.learn(words, SIZE)


def test_short_text_is_learnt_quietly(capfd):
    Vocabulary.learn(TEXT * 1_000, SIZE)
    assert capfd.readouterr() == ("", "")


def test_long_text_is_announced(monkeypatch, capfd):
    """Counting shows a bar; learning, from 34 distinct words, prints a note."""
    bar = word_counts.tqdm
    monkeypatch.setattr(word_counts, "tqdm", lambda **options: bar(**options | {"delay": 0}))
    monkeypatch.setattr(vocabulary_module, "_MANY_WORDS", 34)
    Vocabulary.learn(TEXT, SIZE)
    error = capfd.readouterr().err
    assert "vocabulary: 4.00 sentences [00:00" in error
    assert error.endswith("vocabulary: learning 330 pieces from 34 distinct words\n")


# encode_flat


def assert_flat_is_encode(vocabulary: Vocabulary, sentences: list[str]) -> None:
    ids, lengths = vocabulary.encode_flat(sentences)
    rows = vocabulary.encode(sentences)
    assert (ids.dtype, lengths.dtype) == (np.uint16, np.int64)
    assert lengths.tolist() == [len(row) for row in rows]
    assert np.array_equal(ids, [i for row in rows for i in row])


def test_flat_ids_by_hand(vocabulary):
    the, cat = (row[:-1] for row in vocabulary.encode(["the", "cat"]))
    ids, lengths = vocabulary.encode_flat(["the cat", "", " cat  the the"])
    assert ids.tolist() == [*the, *cat, EOS, EOS, *cat, *the, *the, EOS]
    assert lengths.tolist() == [len(the + cat) + 1, 1, len(cat + the + the) + 1]


def test_flat_ids_of_nothing(vocabulary):
    ids, lengths = vocabulary.encode_flat([])
    assert (ids.tolist(), ids.dtype) == ([], np.uint16)
    assert (lengths.tolist(), lengths.dtype) == ([], np.int64)


def test_flat_ids_of_hostile_text(vocabulary):
    assert_flat_is_encode(vocabulary, ODD)
    assert_flat_is_encode(vocabulary, random_sentences(20_000))


def test_flat_ids_of_every_character_beside_spaces(vocabulary):
    """Sentences of 50 characters cover all characters, and every 64th in unassigned planes."""
    points = [*range(0x32400), *range(0x32400, 0xE0000, 64), *range(0xE0000, 0xE0200)]
    contexts = "a {0} c", "a{0} b", "a {0}b", " {0} ", "  {0}a ", "{0}"
    parts = [contexts[i % 6].format(chr(c)) for i, c in enumerate(points)]
    turned = [contexts[i % 6].format(chr(c)) for i, c in enumerate(points, start=3)]
    for some in (parts, turned):
        assert_flat_is_encode(
            vocabulary, ["".join(some[i : i + 50]) for i in range(0, len(some), 50)]
        )


def test_flat_ids_where_the_mark_of_a_words_start_has_no_piece():
    """One space in 9,000 characters is rarer than the coverage of the pieces."""
    learnt = Vocabulary.learn(["日本語" * 9_000] * 2, 270)
    assert learnt._processor.piece_to_id("\u2581") == UNK
    assert_flat_is_encode(learnt, ["日 本", "日本語\u2581 x", *random_sentences(1_000)])


def test_flat_ids_of_real_text():
    sentences = lines("multi30k/*.??*", "wmt_news/newstest2009.*", "libreoffice_help/dev.*")
    assert len(sentences) > 60_000
    assert_flat_is_encode(Vocabulary.learn(lines("multi30k/train.*"), 8_000), sentences)


def test_remembered_words_are_few(monkeypatch, vocabulary):
    monkeypatch.setattr(vocabulary_module, "_CACHED_WORDS", 5)
    fresh = Vocabulary(vocabulary._model)
    for sentence in [*TEXT, *random_sentences(500)]:
        assert_flat_is_encode(fresh, [sentence])
        assert len(fresh._words) <= 5


def test_lines_without_spaces_are_not_remembered(vocabulary):
    """A corpus of a language without spaces would fill the memory of every worker."""
    fresh = Vocabulary(vocabulary._model)
    assert_flat_is_encode(fresh, ["日本語" * 500, "the " + "x" * 100])
    assert list(fresh._words) == ["the"]


def test_remembered_words_are_not_encoded_again(vocabulary):
    fresh = Vocabulary(vocabulary._model)
    first = fresh.encode_flat(TEXT)
    fresh._words._encode = None
    assert all(map(np.array_equal, fresh.encode_flat(TEXT), first))


@pytest.mark.parametrize(("size", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_ids_have_the_smallest_type_that_fits(size, dtype):
    """60,000 characters also make pieces with the mark of a word's start."""
    text = " ".join(map(chr, range(0x20000, 0x20000 + 60_000)))
    learnt = Vocabulary.learn([text], size)
    ids, _ = learnt.encode_flat([text])
    assert ids.dtype == dtype
    assert ids.tolist() == learnt.encode([text])[0]
    assert ids.max() == size - 1


# Other processes


def test_pickled_as_the_model_alone(vocabulary):
    vocabulary.encode_flat(random_sentences(5_000))
    pickled = pickle.dumps(vocabulary)
    assert len(pickled) < len(vocabulary._model) + 200
    copy = pickle.loads(pickled)
    assert copy.fingerprint == vocabulary.fingerprint
    assert copy.encode(TEXT) == vocabulary.encode(TEXT)
    assert_flat_is_encode(copy, TEXT)


def test_unpickled_and_used_without_tensorflow(vocabulary):
    code = (
        "import pickle, sys; vocabulary = pickle.load(sys.stdin.buffer); "
        "print(vocabulary.encode_flat(['the cat'])[0].tolist(), 'tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(vocabulary), cwd=ROOT, capture_output=True
    )
    ids = vocabulary.encode(["the cat"])[0]
    assert (done.stdout.decode(), done.stderr) == (f"{ids} False\n", b"")
