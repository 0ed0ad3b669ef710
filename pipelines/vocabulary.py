"""Text to ids and back: one shared byte-pair encoding, in Python and in the graph.

Paper, section 5.1: "sentences were encoded using byte-pair encoding, which has a shared
source-target vocabulary of about 37000 tokens" (Sennrich et al. 2016, arXiv:1508.07909).
sentencepiece learns it; tensorflow_text runs the same model file as a graph operation. Only this
module and `merges` see merges, and on the way from text to text nothing else sees a word marker or
a special id other than PAD and EOS. What shows or exports pieces, such as attention figures, does.

Both versions treat text alike. sentencepiece's NFKC table folds compatibility forms; a run of
spaces becomes one space; a line break of any kind becomes a space; invisible control characters are
removed. A character without a piece of its own is spelt in bytes, so an emoji survives encoding and
decoding. "</s>" and "<0x41>" in a text stay text. Only U+2581, which marks the start of a word in
pieces, becomes a space.

The Python version does not import TensorFlow, which takes 2.6 s.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sentencepiece

from pipelines import regular_file, storage
from pipelines.errors import BadInput
from pipelines.merges import Merges
from pipelines.word_counts import word_counts

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_text

PAD, EOS = 0, 1  # no BOS: the decoder starts from a zero vector
UNK = 2  # sentencepiece requires one; with byte pieces no text is encoded as it
_FIRST_BYTE = 3  # ids 3 to 258 are the pieces <0x00> to <0xFF>
SPECIAL_PIECES = _FIRST_BYTE + 256  # before the first piece of text
# Two ids that no encoded text contains: the bytes 0x01 and 0x02 are control characters, which are
# removed.
MARKS = _FIRST_BYTE + 1, _FIRST_BYTE + 2

_MOST_BYTES = 1 << 26  # of a model; 40,000 pieces take 0.9 MB, a million 20 MB

FILES = _MODEL, _LISTING = "vocabulary.model", "vocabulary.vocab"

# In a preset: KerasHub's tokenizer of the same model, and the model as its asset.
_TOKENIZER, _ASSETS, _ASSET = "tokenizer.json", "assets/tokenizer", "vocabulary.spm"
_KERAS_HUB = {
    "module": "keras_hub.tokenizers",
    "class_name": "SentencePieceTokenizer",
    "registered_name": "keras_hub>SentencePieceTokenizer",
    "config": {"name": "tokenizer", "dtype": "int32", "add_bos": False, "add_eos": True},
}

# Read as a space in encoding and in decoding: the characters at which str.splitlines breaks a line,
# and NUL, which ends a string in C. nmt_nfkc keeps U+0085 and NUL, and a model can spell any of
# these characters in bytes, but a translation must be one line.
_LINE_ENDS = "\x00\n\v\f\r\x1c-\x1e\x85\u2028\u2029"
# Only Python strings hold lone surrogates; "surrogateescape" makes them from bytes not in UTF-8.
fold = partial(re.compile(f"[{_LINE_ENDS}\ud800-\udfff]").sub, " ")

_WORD_BEGINS = "\u2581"  # in pieces
# Sentences that `encode_flat` cannot encode word by word with a model that keeps double spaces, or
# that marks the first word in another way than the rest.
_SPACED = ("a b", " a  b ", "b")

_MANY_WORDS = 1 << 19  # from here on sentencepiece is silent for over 3 seconds: print a note
_CACHED_WORDS = 1 << 18  # 35 MB; with four times as many, WMT's text is encoded a fifth faster
# Characters. What is longer hardly repeats, such as a line of a language without spaces, of which
# the cache would hold gigabytes.
_LONGEST_CACHED_WORD = 64

_LEARNING: dict[str, Any] = {
    "model_type": "bpe",
    "input_format": "tsv",  # word, tab, count
    "byte_fallback": True,
    "normalization_rule_name": "nmt_nfkc",
    "pad_id": PAD,
    "eos_id": EOS,
    "unk_id": UNK,
    "bos_id": -1,
    # The rarest 0.01 % of the text's characters are spelt in bytes: in WMT's text, thousands of
    # characters of other scripts, which would use up pieces that words need. At a size of 8,000,
    # Multi30k is encoded in 845,321 pieces; with 1.0 it would be 845,542.
    "character_coverage": 0.9999,
    # In bytes; this is the maximum. Longer lines are dropped silently; the default is 4192.
    "max_sentence_length": 1 << 30,
    # A constant, since the model file stores it; no piece depends on it.
    "num_threads": 16,
    "minloglevel": 2,  # errors only
}

# {the trainer's complaint about a size that does not suit the text: advice to the user}
_REFUSALS = {
    r"set it to a value <= (\d+)": "the text yields at most {} pieces; lower the size or give more "
    "text",
    r"smaller than required_chars\. \d+ vs (\d+)": "special pieces, the 256 bytes and the text's "
    "characters need at least {} pieces; raise the size",
    r"sentences_\.empty|all_chars_count": "no text to learn from; wanted sentences with visible "
    "characters: check the training files",
}


class Vocabulary:
    """The pieces learnt from a text; converts text to their ids and back.

    Examples:
        >>> Vocabulary.load(directory).encode(["", "Hund"])
        [[1], [481, 1]]

    Args:
        model: The content of a sentencepiece model file that `learn` made.

    Raises:
        RuntimeError: The content is not a sentencepiece model.
        ValueError: The model has other special ids, lacks byte pieces, or has pieces that are not
            UTF-8.
    """

    def __init__(self, model: bytes):
        self._model = model
        self._processor = spm = sentencepiece.SentencePieceProcessor()
        spm.LoadFromSerializedProto(model)
        ids = (spm.pad_id(), spm.eos_id(), spm.unk_id(), spm.bos_id(), spm.piece_to_id("<0x00>"))
        if ids != (PAD, EOS, UNK, -1, _FIRST_BYTE):
            raise ValueError(f"pad, eos, unk, bos and <0x00> have the ids {ids}")
        spm.id_to_piece(list(range(spm.get_piece_size())))  # decodes every piece
        self._words = _Words(spm)

    @classmethod
    def learn(cls, sentences: Iterable[str], size: int) -> Vocabulary:
        """Learn byte-pair merges from all the sentences, whatever their language.

        Learning is deterministic: equal sentences in equal order give an equal `fingerprint`.
        Multi30k (58,000 sentences, 8,000 pieces) takes 0.3 s. Words are counted first, and
        sentencepiece gets each word once, with its count; pieces and scores are the ones that it
        would learn from the sentences. Counting 9 million sentences (225 million words, 4.7 million
        distinct) takes 70 s and 0.5 GB; learning 37,000 pieces from them takes 30 s and 3.2 GB.

        If there are more than 8.4 million distinct words, or more than 100 million characters in
        them, only the most frequent words are used. Whenever the number of counted words reaches
        twice that limit, the rarer half is dropped with its counts. This bounds memory at 6.2 GB.
        By the growth of news text (Heaps's law), 4.5 million English-German pairs have 3.4 million
        distinct words, none of which is left out. The paper's 36 million English-French pairs
        would have about 9 million, and `wmt14_enfr`'s 41 million more, so some words that occur
        once are left out.

        Args:
            sentences: Source and target text together, so that both share the merges. Read once;
                an exception raised while reading passes through.
            size: The number of pieces, including PAD, EOS, UNK and the 256 bytes.

        Raises:
            BadInput: There is no text, or the text cannot yield a vocabulary of this size.
        """
        counts = word_counts(sentences)
        if len(counts) >= _MANY_WORDS:
            words = f"{size:,} pieces from {len(counts):,} distinct words"
            print(f"vocabulary: learning {words}", file=sys.stderr)
        model = io.BytesIO()
        failures: list[BaseException] = []
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_table(counts, failures),
                model_writer=model,
                vocab_size=max(
                    size, _FIRST_BYTE
                ),  # smaller sizes raise an error that does not name the size
                **_LEARNING,
            )
        except RuntimeError as error:
            if failures:
                raise failures[0] from None
            raise _explained(error, size) from None
        return cls(model.getvalue())

    @classmethod
    def load(cls, directory: str | Path) -> Vocabulary:
        """Read a vocabulary that `save` wrote.

        Raises:
            BadInput: The file is missing or damaged, or another program made it.
        """
        return cls._read(Path(directory) / _MODEL)

    @classmethod
    def _read(cls, path: Path) -> Vocabulary:
        try:
            return cls(regular_file.read(path, _MOST_BYTES))
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "damaged, or made by another program"
            raise BadInput(
                f"cannot use the vocabulary {path} ({reason}); wanted the file that training "
                "writes there: check the directory, copy the file again, or train again"
            ) from error

    @classmethod
    def given(cls, place: str | Path) -> Vocabulary:
        """Read the vocabulary that a new run is given in place of learning one.

        Args:
            place: A run's work directory, or a model file of sentencepiece.

        Raises:
            BadInput: There is no model, or it does not fit; the message says why.
        """
        path = Path(place) / _MODEL if Path(place).is_dir() else Path(place)
        try:
            model = regular_file.read(path, _MOST_BYTES)
        except OSError as error:
            raise BadInput(
                f"vocabulary of {place}: {path} cannot be read ({error.strerror or error}); wanted "
                "a model file of sentencepiece, or the work directory of a run"
            ) from None
        if reason := _misfit(model):
            raise BadInput(
                f"vocabulary of {place}: {reason}; wanted the vocabulary of a run, or a model from "
                "spm_train --model_type=bpe --byte_fallback=true --pad_id=0 --eos_id=1 --unk_id=2 "
                "--bos_id=-1"
            )
        return cls(model)

    def save(self, directory: str | Path) -> None:
        """Write the model file, and a listing of its pieces and scores for people to read.

        Each file appears whole or not at all; the model is written last.
        """
        piece, score = self._processor.id_to_piece, self._processor.get_score
        listing = "".join(f"{piece(i)}\t{score(i):g}\n" for i in range(self.size))
        storage.write(str(directory), _LISTING, listing.encode())
        storage.write(str(directory), _MODEL, self._model)

    def save_to_preset(self, directory: str | Path) -> None:
        """Write the tokenizer into a folder in KerasHub's layout, beside a model.

        tokenizer.json lets KerasHub's reader of presets make its own tokenizer of it.
        """
        storage.write(f"{directory}/{_ASSETS}", _ASSET, self._model)
        described = json.dumps(_KERAS_HUB, indent=4) + "\n"
        storage.write(str(directory), _TOKENIZER, described.encode())

    @classmethod
    def from_preset(cls, directory: str | Path) -> Vocabulary:
        """Read what `save_to_preset` wrote; raise BadInput as `load` does."""
        return cls._read(Path(directory) / _ASSETS / _ASSET)

    @property
    def size(self) -> int:
        """The number of pieces; ids run from 0 to `size` - 1."""
        return self._processor.get_piece_size()

    @cached_property
    def pieces(self) -> list[str]:
        """The pieces in order of their ids, for file formats that contain a list of them."""
        return [self._processor.id_to_piece(i) for i in range(self.size)]

    @cached_property
    def fingerprint(self) -> str:
        """The model file's SHA-256 in hexadecimal."""
        return hashlib.sha256(self._model).hexdigest()

    @property
    def producible(self) -> np.ndarray:
        """Mask of the ids that decoding may choose: [size] bool.

        PAD, UNK and the bytes of ASCII's control characters are excluded: no encoded text contains
        them, so no model learns where they belong, and <0x0A> would break the line.
        """
        mask = np.ones(self.size, bool)
        mask[[PAD, UNK]] = False
        mask[_FIRST_BYTE : _FIRST_BYTE + 0x20] = False
        mask[_FIRST_BYTE + 0x7F] = False
        return mask

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence, ending with EOS; 29,000 sentences take about 0.15 s."""
        return self._processor.encode(list(map(fold, sentences)), add_eos=True)

    def encode_flat(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode into flat arrays, on one core, with a cache of encoded words.

        The ids equal those of `encode`, because no piece reaches across a space, and none of the
        normaliser's 225,276 rules matches a text with a space. Throughput: 280,000 sentences of
        Multi30k per second (sentencepiece's own encoding: 119,000), 136,000 of news text (59,000).

        Returns:
            ids: The ids of all sentences one after another, each sentence ending with EOS:
                [sum of lengths] uint16, or int32 if `size` is above 65,536.
            lengths: int64 [sentences], EOS included.
        """
        ids_of, dtype = self._words.__getitem__, self._words.dtype
        eos = np.array(EOS, dtype).tobytes()
        rows = [b"".join(map(ids_of, sentence.split(" "))) + eos for sentence in sentences]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows)) // dtype.itemsize
        return np.frombuffer(bytearray().join(rows), dtype), lengths

    def word_lengths(self, sentence: str) -> list[int]:
        """Return the number of pieces of each word; words lie between spaces. EOS is left out."""
        ids_of, itemsize = self._words.__getitem__, self._words.dtype.itemsize
        lengths = [len(ids_of(word)) // itemsize for word in sentence.split(" ")]
        return [length for length in lengths if length]

    @cached_property
    def merges(self) -> Merges:
        """The merges from which the pieces are made, for BPE dropout."""
        pieces, normal = self.pieces, SPECIAL_PIECES
        # A special id or a byte is a symbol of its own.
        symbols = [tuple(piece) if i >= normal else (piece,) for i, piece in enumerate(pieces)]
        scores = [self._processor.get_score(i) for i in range(self.size)]
        begins = [i == EOS or piece.startswith(_WORD_BEGINS) for i, piece in enumerate(pieces)]
        return Merges(symbols, scores, np.array(begins))

    def __reduce__(self) -> tuple[type[Vocabulary], tuple[bytes]]:
        """Pickle the model alone; the cached words and the graph's copy are built anew."""
        return Vocabulary, (self._model,)

    def decode(self, ids: Iterable[Sequence[int] | np.ndarray]) -> list[str]:
        """Return one line of text per row, decoded up to its first EOS; PAD is skipped.

        Raises:
            IndexError: An id is `size` or greater.
        """
        return list(map(fold, self._processor.decode(list(map(_of_text, ids)))))

    @cached_property
    def tokenizer(self) -> tensorflow_text.SentencepieceTokenizer:
        """The copy of the model for `encode_graph` and `decode_graph`.

        A tf.Module whose functions use the tokenizer must keep it in an attribute (`self.tokenizer
        = vocabulary.tokenizer`); otherwise saving the module fails with "untracked resource".
        """
        import tensorflow as tf
        import tensorflow_text

        # Outside the graph that is being traced: the first use is often in Dataset.map.
        with tf.init_scope():
            return tensorflow_text.SentencepieceTokenizer(self._model, tf.int32, add_eos=True)

    def encode_graph(self, sentences: tf.Tensor) -> tf.RaggedTensor:
        """Encode by graph operations: [batch] string to ragged [batch, (length)] int32.

        Bytes that are not UTF-8 are read as U+FFFD, as in bytes.decode("utf-8", "replace").
        """
        return self.tokenizer.tokenize(_fold_graph(sentences))

    def graph_encoder(self, dropout: float = 0.0) -> Callable[[tf.Tensor], tf.RaggedTensor]:
        """Return `encode_graph` as a function that carries the model in its graph.

        tf.data then runs it in other processes, too, where `tokenizer` does not exist.

        Args:
            dropout: The probability that a merge is left out; see `merges`. The pieces then differ
                from call to call and from process to process, because TensorFlow Text has no seed
                for sentencepiece's generator.
        """
        import tensorflow as tf
        import tensorflow_text

        def encode(sentences: tf.Tensor) -> tf.RaggedTensor:
            tokenizer = tensorflow_text.SentencepieceTokenizer(
                self._model, tf.int32, nbest_size=-1 if dropout else 0, alpha=dropout, add_eos=True
            )
            return tokenizer.tokenize(_fold_graph(sentences))

        return encode

    def decode_graph(self, ids: tf.Tensor) -> tf.Tensor:
        """Decode by graph operations: [batch, length] int32 to [batch] string.

        Raises:
            tf.errors.OutOfRangeError: An id before the first EOS is `size` or greater.
        """
        import tensorflow as tf

        eos_seen = tf.cumsum(tf.cast(tf.equal(ids, EOS), tf.int32), axis=1)  # [batch, length]
        is_text = tf.equal(eos_seen, 0) & tf.not_equal(ids, PAD)  # [batch, length]
        text = self.tokenizer.detokenize(tf.ragged.boolean_mask(ids, is_text))  # [batch]
        return tf.strings.regex_replace(text, f"[{_LINE_ENDS}]", " ")


def _of_text(ids: Sequence[int] | np.ndarray) -> list[int]:
    """Return the ids before the first EOS, without PAD."""
    row = np.asarray(ids).tolist()
    if EOS in row:
        row = row[: row.index(EOS)]
    return [i for i in row if i != PAD] if PAD in row else row


def _misfit(model: bytes) -> str:
    """Return why a foreign model cannot be a `Vocabulary`, or "" if it can."""
    spm = sentencepiece.SentencePieceProcessor()
    try:
        spm.LoadFromSerializedProto(model)
        pieces = spm.id_to_piece(list(range(spm.get_piece_size())))
    except (RuntimeError, UnicodeDecodeError):
        return "not a model of sentencepiece, or damaged"
    ids = spm.pad_id(), spm.eos_id(), spm.unk_id(), spm.bos_id()
    if ids != (PAD, EOS, UNK, -1):
        return f"PAD, EOS, UNK and BOS have the ids {ids}, not {(PAD, EOS, UNK, -1)}"
    normal = SPECIAL_PIECES
    if pieces[_FIRST_BYTE:normal] != [f"<0x{byte:02X}>" for byte in range(256)]:
        return f"ids {_FIRST_BYTE} to {normal - 1} are not the pieces of the 256 bytes"
    if not all(spm.get_score(i).is_integer() for i in range(normal, len(pieces))):
        return "not byte-pair encoding, whose scores are whole numbers"
    if across := [piece for piece in pieces if _WORD_BEGINS in piece[1:]]:
        return f"its piece {across[0]!r} reaches across a space"
    vocabulary = Vocabulary(model)
    if any(vocabulary.encode_flat([s])[0].tolist() != vocabulary.encode([s])[0] for s in _SPACED):
        return "the spaces of a text decide how its words are encoded"
    return ""


def _fold_graph(sentences: tf.Tensor) -> tf.Tensor:
    """Return sentences in valid UTF-8, with a space for each character of _LINE_ENDS."""
    import tensorflow as tf

    valid = tf.strings.unicode_transcode(sentences, "UTF-8", "UTF-8", errors="replace")
    return tf.strings.regex_replace(valid, f"[{_LINE_ENDS}]", " ")


class _Words(dict[str, bytes]):
    """Cache of {word: its ids as bytes}; a missing word is encoded when it is looked up."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor):
        super().__init__()
        self.dtype = np.dtype(np.uint16 if processor.get_piece_size() <= 1 << 16 else np.int32)
        self._encode = processor.encode

    def __missing__(self, word: str) -> bytes:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        ids = array(self.dtype.char, self._encode(fold(word))).tobytes()
        if len(word) <= _LONGEST_CACHED_WORD:
            self[word] = ids
        return ids


def _table(counts: Counter[str], failures: list[BaseException]) -> Iterator[str]:
    """Yield lines of word, tab and count, and remove each word from `counts`.

    sentencepiece replaces an exception raised here, such as Ctrl-C's, by a RuntimeError; the
    original is appended to `failures`.
    """
    try:
        while counts:
            word, count = counts.popitem()
            if word:
                yield fold(word).replace("\t", " ") + f"\t{count}"
    except (Exception, KeyboardInterrupt) as error:
        failures.append(error)
        raise


def _explained(error: RuntimeError, size: int) -> Exception:
    for pattern, advice in _REFUSALS.items():
        if found := re.search(pattern, str(error)):
            return BadInput(f"--vocabulary_size={size}: {advice.format(*found.groups())}")
    return error
