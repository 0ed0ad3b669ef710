"""The Python and the graph version of the vocabulary agree, and so do two processes."""

import hashlib
import json
import random
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from paths import DATA, ROOT

from pipelines import vocabulary as vocabulary_module
from pipelines.errors import BadInput
from pipelines.vocabulary import EOS, PAD, Vocabulary

MULTI30K = DATA / "multi30k"
UNK, FIRST_BYTE = 2, 3
SIZE = 330

ENGLISH = [
    "The cat sees the house and the house is old.",
    "Every winter the old man walks to the warm house.",
    "Where is the butter? The butter is in the house.",
    "A finger, a hand and an arm are warm in winter.",
]
GERMAN = [
    "Die Katze sieht das Haus, und das Haus ist alt.",
    "Jeden Winter geht der alte Mann in das warme Haus.",
    "Wo ist die Butter? Die Butter ist über dem Haus.",
    "Ein Finger, eine Hand und ein Arm sind im Winter warm.",
]

# {text: the text after encoding and decoding}: NFKC, single spaces, one line, else unchanged.
ODD = {
    "": "",
    "   ": "",
    "  a  b ": "a b",
    "Über Äpfel": "Über Äpfel",
    "e\u0301 und \u00e9": "é und é",  # NFD and NFC
    # sentencepiece's NFKC is a table of sequences; it keeps marks without a composed form.
    "x\u0301\u0323\u0302": "x\u0301\u0323\u0302",
    "\u1112\u1161\u11ab\uae00": "한글",  # conjoining jamo and a syllable
    "ﬁ ① ａ Å": "fi 1 a Å",  # compatibility forms
    "👩🏽\u200d🚀 👨\u200d👩\u200d👧 🇩🇪": "👩🏽\u200d🚀 👨\u200d👩\u200d👧 🇩🇪",
    "\U0010ffff \ue000": "\U0010ffff \ue000",
    "שלום עולם مرحبا": "שלום עולם مرحبا",
    "日本語。": "日本語。",
    "a\tb\nc\rd": "a b c d",
    "a\u00a0b\u3000c\u2009d": "a b c d",
    "a\u0085b\u2028c\u2029d\x0be\x0cf\x1cg": "a b c d e f g",
    "a\0b": "a b",
    "\0": "",
    "a\x01\x08\x7fb": "ab",
    "\ufeffa": "a",
    "a\ufffdb": "a b",
    "a\u2581b \u2581": "a b",
    "<s> </s> <pad> <unk> <0x41> <0x0A>": "<s> </s> <pad> <unk> <0x41> <0x0A>",
    "a</s>b<pad>": "a</s>b<pad>",
    " ⁇ ": "??",  # how sentencepiece writes UNK, as text
    "a" * 10_000: "a" * 10_000,
    "👩" * 10_000: "👩" * 10_000,
    "the cat " * 1_250: ("the cat " * 1_250).strip(),
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.learn(ENGLISH + GERMAN, SIZE)


def encode_in_graph(vocabulary: Vocabulary, sentences: list[str]) -> list[list[int]]:
    return vocabulary.encode_graph(tf.constant([s.encode() for s in sentences])).to_list()


def decode_in_graph(vocabulary: Vocabulary, ids: list[list[int]]) -> list[str]:
    padded = np.full((len(ids), max(map(len, ids))), PAD, np.int32)
    for row, row_ids in zip(padded, ids, strict=True):
        row[: len(row_ids)] = row_ids
    return [text.decode() for text in vocabulary.decode_graph(tf.constant(padded)).numpy()]


def random_sentences(count: int) -> list[str]:
    """Return random text of hostile and other characters, from a fixed seed."""
    generator = random.Random(0)
    hostile = "aé<s>/0x4\u2581\0\n\r\t\x1f\x7f\x85\u2028\u200d\u0301👩🏽🚀א\u200f한\ufeff\ufffd "
    scalars = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

    def character() -> str:
        return (
            generator.choice(hostile)
            if generator.random() < 0.7
            else chr(generator.choice(scalars))
        )

    return ["".join(character() for _ in range(generator.randrange(20))) for _ in range(count)]


# Python and the graph agree


def test_odd_strings_come_back_normalised_in_both_versions(vocabulary):
    ids = vocabulary.encode(list(ODD))
    assert encode_in_graph(vocabulary, list(ODD)) == ids
    assert vocabulary.decode(ids) == list(ODD.values())
    assert decode_in_graph(vocabulary, ids) == list(ODD.values())


@pytest.mark.slow
def test_every_unicode_character_is_the_same_in_both_versions(vocabulary):
    """Compare 1,112,064 characters, eight per sentence, with sentencepiece's own normaliser."""
    scalars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    sentences = ["a".join(scalars[i : i + 8]) for i in range(0, len(scalars), 8)]
    ids = vocabulary.encode(sentences)
    texts = vocabulary.decode(ids)
    normaliser = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    one_line = str.maketrans(dict.fromkeys("\0\x0b\x1c\x1d\x1e\x85", " "))
    normalised = [normaliser.normalize(s.translate(one_line)) for s in sentences]

    assert encode_in_graph(vocabulary, sentences) == ids
    assert decode_in_graph(vocabulary, ids) == texts
    assert texts == [s.replace("\u2581", " ").strip(" ") for s in normalised]
    assert not {PAD, EOS, UNK} & {i for row in ids for i in row[:-1]}


def test_random_text_is_the_same_in_both_versions(vocabulary):
    sentences = random_sentences(5_000)
    ids = vocabulary.encode(sentences)
    texts = vocabulary.decode(ids)
    assert encode_in_graph(vocabulary, sentences) == ids
    assert decode_in_graph(vocabulary, ids) == texts
    assert all(len(text.splitlines()) <= 1 and "\0" not in text for text in texts)


def test_random_ids_decode_to_the_same_line_in_both_versions(vocabulary):
    """The ids are mostly bytes that are not UTF-8, as an untrained model produces them."""
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 280, (5_000, 12)).tolist()
    texts = vocabulary.decode(rows)
    assert decode_in_graph(vocabulary, rows) == texts
    assert any("\ufffd" in text for text in texts)
    assert all(len(text.splitlines()) <= 1 and "\0" not in text for text in texts)


def test_bytes_that_are_not_utf8_count_as_replacement_characters(vocabulary):
    """Python may have read them with "replace" or with "surrogateescape"."""
    raw = [
        b"a\xffb",
        b"\xc3",
        b"\xed\xa0\x80x",
        b"a\xf0\x9f\x92b",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
    ]
    graph_ids = vocabulary.encode_graph(tf.constant(raw)).to_list()
    assert graph_ids == vocabulary.encode([b.decode("utf-8", "replace") for b in raw])
    assert graph_ids == vocabulary.encode([b.decode("utf-8", "surrogateescape") for b in raw])
    assert vocabulary.decode(graph_ids) == ["a b", "", "x", "a b", "", ""]


@pytest.mark.skipif(not MULTI30K.exists(), reason="needs shared/data/multi30k beside the checkout")
def test_real_text_is_the_same_in_both_versions():
    lines = [
        line
        for language in ("en", "de")
        for line in (MULTI30K / f"val.{language}").read_text("utf-8").split("\n")[:-1]
    ]
    vocabulary = Vocabulary.learn(lines, 4_000)
    ids = vocabulary.encode(lines)
    assert len(lines) == 2 * 1_014
    assert encode_in_graph(vocabulary, lines) == ids
    assert decode_in_graph(vocabulary, ids) == vocabulary.decode(ids)
    # All of the text is in NFKC already, except for a few spaces at the ends.
    assert vocabulary.decode(ids) == [" ".join(line.split()) for line in lines]


# The graph version where it is used


def test_first_use_inside_dataset_map_leaves_a_usable_tokenizer():
    vocabulary = Vocabulary.learn(ENGLISH + GERMAN, SIZE)
    sentences = tf.data.Dataset.from_tensor_slices(ENGLISH + GERMAN).batch(3)
    ids = sentences.map(vocabulary.encode_graph)
    texts = ids.map(lambda batch: vocabulary.decode_graph(batch.to_tensor(PAD)))
    assert [i for batch in ids for i in batch.to_list()] == vocabulary.encode(ENGLISH + GERMAN)
    assert [t.decode() for batch in texts for t in batch.numpy()] == ENGLISH + GERMAN
    assert encode_in_graph(vocabulary, ENGLISH) == vocabulary.encode(ENGLISH)


def test_empty_batches(vocabulary):
    ids = vocabulary.encode_graph(tf.constant([], tf.string))
    assert (ids.to_list(), ids.dtype) == ([], tf.int32)
    assert vocabulary.decode_graph(tf.zeros([0, 5], tf.int32)).shape == [0]
    assert vocabulary.decode_graph(tf.zeros([2, 0], tf.int32)).numpy().tolist() == [b"", b""]
    assert (vocabulary.encode([]), vocabulary.decode([])) == ([], [])


class RoundTrip(tf.Module):
    def __init__(self, vocabulary: Vocabulary):
        super().__init__()
        self.vocabulary = vocabulary
        self.tokenizer = vocabulary.tokenizer

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def encode(self, text):
        return self.vocabulary.encode_graph(text).to_tensor(PAD)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def decode(self, ids):
        return self.vocabulary.decode_graph(ids)


LOADER = """
import json, sys
import tensorflow as tf, tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
ids = loaded.encode(tf.constant([text.encode() for text in json.load(sys.stdin)]))
texts = [text.decode() for text in loaded.decode(ids).numpy()]
ours = [name for name in sys.modules if name.split(".")[0] in ("pipelines", "t2t_repro")]
json.dump({"ids": ids.numpy().tolist(), "texts": texts, "ours": ours}, sys.stdout)
"""


@pytest.mark.slow
def test_saved_model_agrees_in_a_process_without_this_project(vocabulary, tmp_path):
    tf.saved_model.save(RoundTrip(vocabulary), str(tmp_path / "export"))
    process = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path / "export")],
        input=json.dumps(list(ODD)),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    result = json.loads(process.stdout)
    ids = vocabulary.encode(list(ODD))
    assert [row[: len(i)] for row, i in zip(result["ids"], ids, strict=True)] == ids
    assert {i for row in result["ids"] for i in row[row.index(EOS) + 1 :]} == {PAD}
    assert result["texts"] == list(ODD.values())
    assert result["ours"] == []


def test_python_half_imports_no_tensorflow():
    code = (
        "import sys; from pipelines.vocabulary import Vocabulary; "
        "Vocabulary.learn(['a b'] * 3, 262).encode(['a']); print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


# Learning


def test_size_is_exact_and_special_ids_are_fixed(vocabulary):
    assert vocabulary.size == SIZE
    assert (PAD, EOS) == (0, 1)
    assert vocabulary.encode([""]) == [[EOS]]


@pytest.mark.parametrize(
    ("english", "german", "merged"),
    [
        (["ab"] * 3 + ["xy"] * 4, ["ab"] * 3 + ["zw"] * 4, "ab"),  # ab 3 + 3 > xy 4
        (["ab"] * 3 + ["xy"] * 4, [], "xy"),  # ab 3 < xy 4
    ],
)
def test_merges_count_both_languages(english, german, merged):
    """There is room for one merge, of the most frequent pair in all the text."""
    characters = len({*"".join(english + german)}) + 1  # and the mark of a word's start
    vocabulary = Vocabulary.learn(english + german, 3 + 256 + characters + 1)
    pieces = {word: len(vocabulary.encode([word])[0]) - 1 for word in ("ab", "xy")}
    assert pieces == {"ab": 3, "xy": 3} | {merged: 2}


def test_words_of_both_languages_become_one_piece():
    vocabulary = Vocabulary.learn(ENGLISH + GERMAN, 350)
    assert [len(row) for row in vocabulary.encode(["the", "Haus", "warm"])] == [2, 2, 2]


def test_learning_is_deterministic_and_takes_an_iterator(vocabulary):
    again = Vocabulary.learn(iter(ENGLISH + GERMAN), SIZE)
    assert again.fingerprint == vocabulary.fingerprint
    assert Vocabulary.learn(ENGLISH, 300).fingerprint != vocabulary.fingerprint


def test_pieces_do_not_depend_on_the_threads(monkeypatch, tmp_path):
    """The model file stores the number of threads, so the listings are compared."""
    text = [f"{a} {b}" for a in ENGLISH + GERMAN for b in random_sentences(300)]
    listings = []
    for threads in (1, 5):
        monkeypatch.setitem(vocabulary_module._LEARNING, "num_threads", threads)
        Vocabulary.learn(text, 2_500).save(tmp_path)
        listings.append((tmp_path / "vocabulary.vocab").read_text("utf-8"))
    assert listings[0] == listings[1]


def test_long_lines_are_learnt_from_too():
    """sentencepiece drops lines over 4,192 bytes by default."""
    vocabulary = Vocabulary.learn(["xyz " * 5_000], 264)
    assert len(vocabulary.encode(["xyz"])[0]) < 4 + 1


def test_exception_while_reading_passes_through():
    def broken():
        yield "a"
        raise BadInput("line 2 of train.en is not UTF-8")

    with pytest.raises(BadInput, match="line 2 of train"):
        Vocabulary.learn(broken(), SIZE)


# Decoding


def test_decoding_stops_at_eos_and_skips_pad(vocabulary):
    cat, butter = (row[:-1] for row in vocabulary.encode(["cat", "butter"]))
    rows = [[PAD, *cat, PAD, EOS, *butter], [*butter, *cat], [EOS, *cat], []]
    assert vocabulary.decode(rows) == ["cat", "butter cat", "", ""]
    assert decode_in_graph(vocabulary, rows) == ["cat", "butter cat", "", ""]
    assert vocabulary.decode(np.array([cat], np.int32)) == ["cat"]


def test_decoded_bytes_never_break_the_line(vocabulary):
    """0x0A is a line feed; 0xC2 0x85 is U+0085; 0xE2 0x80 0xA8 is U+2028."""
    breaks = [[0x0A], [0x0D], [0x00], [0xC2, 0x85], [0xE2, 0x80, 0xA8]]
    rows = [[FIRST_BYTE + byte for byte in b"a" + bytes(row) + b"b"] for row in breaks]
    assert vocabulary.decode(rows) == ["a b"] * 5
    assert decode_in_graph(vocabulary, rows) == ["a b"] * 5


def test_decoding_an_id_outside_the_vocabulary_is_an_error(vocabulary):
    with pytest.raises(IndexError):
        vocabulary.decode([[SIZE]])
    with pytest.raises(tf.errors.OutOfRangeError):
        vocabulary.decode_graph(tf.constant([[SIZE]]))
    assert decode_in_graph(vocabulary, [[EOS, SIZE]]) == [""]


def test_producible_leaves_out_what_no_text_becomes(vocabulary):
    control = [FIRST_BYTE + byte for byte in (*range(0x20), 0x7F)]
    assert np.flatnonzero(~vocabulary.producible).tolist() == [PAD, UNK, *control]
    assert vocabulary.producible.shape == (SIZE,)
    encoded = {i for row in vocabulary.encode([*ODD, *random_sentences(5_000)]) for i in row}
    assert vocabulary.producible[sorted(encoded)].all()


# Files


def test_saved_vocabulary_loads_equal(vocabulary, tmp_path):
    vocabulary.save(tmp_path / "new" / "directory")
    loaded = Vocabulary.load(str(tmp_path / "new" / "directory"))
    assert loaded.fingerprint == vocabulary.fingerprint
    assert loaded.encode(list(ODD)) == vocabulary.encode(list(ODD))


def test_saved_files_are_the_usual_two(vocabulary, tmp_path):
    vocabulary.save(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"vocabulary.model", "vocabulary.vocab"}
    model = (tmp_path / "vocabulary.model").read_bytes()
    assert hashlib.sha256(model).hexdigest() == vocabulary.fingerprint
    listing = (tmp_path / "vocabulary.vocab").read_text("utf-8").split("\n")
    assert listing[:4] == ["<pad>\t0", "</s>\t0", "<unk>\t0", "<0x00>\t0"]
    assert len(listing) == SIZE + 1


def test_missing_file_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match=r"vocabulary\.model \(No such file.*train"):
        Vocabulary.load(tmp_path)


def test_damaged_file_is_bad_input(vocabulary, tmp_path):
    vocabulary.save(tmp_path)
    path = tmp_path / "vocabulary.model"
    whole = path.read_bytes()
    for content in (b"", b"not a model", whole[: len(whole) // 2], whole[:-1], whole + b"x"):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=r"vocabulary\.model \(damaged"):
            Vocabulary.load(tmp_path)


def test_model_with_other_special_ids_is_bad_input(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH),
        model_prefix=str(tmp_path / "vocabulary"),
        vocab_size=45,
        minloglevel=2,
    )
    with pytest.raises(BadInput, match="made by another program"):
        Vocabulary.load(tmp_path)


def test_too_large_a_size_names_one_that_works():
    with pytest.raises(BadInput, match=r"--vocabulary_size=37000: .*at most \d+ pieces;") as info:
        Vocabulary.learn(ENGLISH, 37_000)
    most = int(str(info.value).split("at most ")[1].split()[0])
    assert Vocabulary.learn(ENGLISH, most).size == most


@pytest.mark.parametrize("size", [-1, 0, 100, 261])
def test_too_small_a_size_names_one_that_works(size):
    """3 special pieces, 256 bytes, "h", "i" and the mark of a word's start: 262."""
    with pytest.raises(BadInput, match=rf"--vocabulary_size={size}: .*at least 262 pieces;"):
        Vocabulary.learn(["hi"], size)
    assert Vocabulary.learn(["hi"], 262).size == 262


@pytest.mark.parametrize("sentences", [[], [""], ["  ", "\n\x01"]])
def test_learning_from_no_text_is_bad_input(sentences):
    with pytest.raises(BadInput, match="no text to learn from"):
        Vocabulary.learn(sentences, SIZE)


FITTING = {
    **{"model_type": "bpe", "byte_fallback": True, "vocab_size": 330},
    **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"normalization_rule_name": "nmt_nfkc_cf"}, None),
        ({"pad_id": -1, "eos_id": 2, "unk_id": 0, "bos_id": 1}, r"have the ids \(-1, 2, 0, 1\)"),
        ({"byte_fallback": False, "vocab_size": 80}, "ids 3 to 258 are not the pieces of the 256"),
        ({"user_defined_symbols": ["<mask>"]}, "ids 3 to 258 are not the pieces of the 256"),
        ({"model_type": "unigram"}, "not byte-pair encoding, whose scores"),
        ({"split_by_whitespace": False, "vocab_size": 400}, "reaches across a space"),
        ({"add_dummy_prefix": False}, "the spaces of a text decide"),
        ({"remove_extra_whitespaces": False}, "the spaces of a text decide"),
    ],
)
def test_a_foreign_model_fits_or_is_refused_with_the_reason(tmp_path, changes, reason):
    path = tmp_path / "foreign.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter((ENGLISH + GERMAN) * 3),
            model_writer=file,
            minloglevel=2,
            **FITTING | changes,
        )
    if reason is None:
        vocabulary = Vocabulary.given(path)
        for text in [*ODD, *GERMAN]:
            assert vocabulary.encode_flat([text])[0].tolist() == vocabulary.encode([text])[0]
    else:
        with pytest.raises(BadInput, match=rf"vocabulary of .*{reason}.*; wanted .*--bos_id=-1"):
            Vocabulary.given(path)


def test_a_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "text").write_text("Guten Tag")
    with pytest.raises(BadInput, match="not a model of sentencepiece, or damaged; wanted"):
        Vocabulary.given(tmp_path / "text")
