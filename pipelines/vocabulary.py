"""Text to ids and back: one shared byte-pair encoding, in Python and in the graph.

Paper, section 5.1: "sentences were encoded using byte-pair encoding, which has a shared
source-target vocabulary of about 37000 tokens" (Sennrich et al. 2016, arXiv:1508.07909).
sentencepiece learns it; tensorflow_text runs the same model file as a graph operation. No other
module sees a merge, a word marker or a special id other than PAD and EOS.

Both versions treat text alike: sentencepiece's NFKC table folds compatibility forms, runs of spaces
become one, whatever breaks a line becomes a space, invisible control characters go. A character
without a piece of its own is spelt in bytes, so an emoji comes back as it went in. "</s>" or
"<0x41>" in a text stay text; only U+2581, the mark of a word's start in pieces, becomes a space.

The Python half does not import TensorFlow (2.6 s).
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sentencepiece

from pipelines.errors import BadInput
from pipelines.word_counts import word_counts

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_text

PAD, EOS = 0, 1  # no BOS: the decoder starts from a zero vector
_UNK = 2  # sentencepiece insists on one; with byte pieces no text ever becomes it
_FIRST_BYTE = 3  # ids 3 to 258 are the pieces <0x00> to <0xFF>
# Two ids that no text has: of the bytes 0x01 and 0x02, control characters, which go.
MARKS = _FIRST_BYTE + 1, _FIRST_BYTE + 2

FILES = _MODEL, _LISTING = "vocabulary.model", "vocabulary.vocab"

# Read as a space, on the way in and on the way out: what str.splitlines takes for a line's end, and
# NUL, a string's end in C. nmt_nfkc leaves U+0085 and NUL alone, and a model can spell any of them
# in bytes; a translation is one line all the same.
_LINE_ENDS = "\x00\n\v\f\r\x1c-\x1e\x85\u2028\u2029"
# Python alone has lone surrogates: what "surrogateescape" makes of bytes that are not UTF-8.
_fold = partial(re.compile(f"[{_LINE_ENDS}\ud800-\udfff]").sub, " ")

_MANY_WORDS = 1 << 19  # sentencepiece says nothing for 3 seconds and more, so we do
_CACHED_WORDS = 1 << 18  # 35 MB; four times as many make encoding WMT's text a fifth faster

_LEARNING: dict[str, Any] = {
    "model_type": "bpe",
    "input_format": "tsv",  # word, tab, how often
    "byte_fallback": True,
    "normalization_rule_name": "nmt_nfkc",
    "pad_id": PAD,
    "eos_id": EOS,
    "unk_id": _UNK,
    "bos_id": -1,
    # The rarest 0.01 % of the text's characters are spelt in bytes: on WMT thousands of characters
    # of other scripts, which would take the pieces that words need. Multi30k needs 845,321 pieces
    # at a size of 8,000; with 1.0 it is 845,542.
    "character_coverage": 0.9999,
    # In bytes, and the most allowed: at the default, 4192, longer lines are dropped silently.
    "max_sentence_length": 1 << 30,
    # Stored in the model file, so never the machine's own number; no piece depends on it.
    "num_threads": 16,
    "minloglevel": 2,  # errors only
}

# What the trainer says of a size that does not suit the text, and what its user can do.
_REFUSALS = {
    r"set it to a value <= (\d+)": "the text fills at most {}; lower it or give more text",
    r"smaller than required_chars\. \d+ vs (\d+)": "the specials, the 256 bytes and the text's "
    "characters need at least {}; raise it",
    r"sentences_\.empty|all_chars_count": "no text to learn from, wanted sentences with visible "
    "characters; check the training files",
}


class Vocabulary:
    """The pieces learnt from a text, and both ways between text and their ids.

    Example:
        >>> Vocabulary.load(directory).encode(["", "Hund"])
        [[1], [481, 1]]

    Args:
        model: the content of a sentencepiece model file that `learn` made.

    Raises:
        RuntimeError: it is no sentencepiece model.
        ValueError: it is one with other special ids or without byte pieces.
    """

    def __init__(self, model: bytes):
        self._model = model
        self._processor = spm = sentencepiece.SentencePieceProcessor()
        spm.LoadFromSerializedProto(model)
        ids = (spm.pad_id(), spm.eos_id(), spm.unk_id(), spm.bos_id(), spm.piece_to_id("<0x00>"))
        if ids != (PAD, EOS, _UNK, -1, _FIRST_BYTE):
            raise ValueError(f"pad, eos, unk, bos and <0x00> have the ids {ids}")
        self._words = _Words(spm)

    @classmethod
    def learn(cls, sentences: Iterable[str], size: int) -> Vocabulary:
        """Learns byte-pair merges over all the sentences, whatever their language.

        Deterministic: the same sentences in the same order give the same `fingerprint`. Multi30k,
        58,000 sentences and 8,000 pieces, takes 0.3 s. Words are counted, and sentencepiece gets
        each once with its count: the pieces and scores are those that it learns from the sentences.
        9 million sentences (225 million words, 4.7 million of them distinct) are counted in 70 s
        with 0.5 GB, and 37,000 pieces learnt from them in 30 s with 3.2 GB.

        Of more than 8.4 million distinct words, or 100 million characters in them, the most
        frequent are learnt from; whenever twice as many words are counted, the rarer half is
        forgotten with its counts. That bounds memory at 6.2 GB. As news text grows (Heaps's law),
        4.5 million English-German pairs have 3.4 million distinct words, and none is left out; 36
        million English-French pairs have about 9 million, and some that are seen once are.

        Args:
            sentences: source and target text together, so that both share the merges. Read once;
                an exception raised while reading passes through.
            size: the number of pieces, with PAD, EOS, UNK and the 256 bytes.

        Raises:
            BadInput: no text, or a size that this text cannot have.
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
                vocab_size=max(size, _FIRST_BYTE),  # below, the error is a riddle
                **_LEARNING,
            )
        except RuntimeError as error:
            if failures:
                raise failures[0] from None
            raise _explained(error, size) from None
        return cls(model.getvalue())

    @classmethod
    def load(cls, directory: str | Path) -> Vocabulary:
        """Reads what `save` wrote.

        Raises:
            BadInput: the file is missing, damaged, or not of our making.
        """
        path = Path(directory) / _MODEL
        try:
            return cls(path.read_bytes())
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "damaged, or of another making"
            raise BadInput(
                f"cannot use the vocabulary {path} ({reason}): wanted the file that training "
                "writes there; check the directory, copy the file again, or train again"
            ) from error

    def save(self, directory: str | Path) -> None:
        """Writes the model and, for people to read, its pieces and their ranks.

        Each file appears whole or not at all, the model last.
        """
        (directory := Path(directory)).mkdir(parents=True, exist_ok=True)
        piece, score = self._processor.id_to_piece, self._processor.get_score
        listing = "".join(f"{piece(i)}\t{score(i):g}\n" for i in range(self.size))
        for name, content in ((_LISTING, listing.encode()), (_MODEL, self._model)):
            temporary = directory / f".{name}.{os.getpid()}"
            temporary.write_bytes(content)
            os.replace(temporary, directory / name)

    @property
    def size(self) -> int:
        """The number of pieces; ids are below it."""
        return self._processor.get_piece_size()

    @property
    def pieces(self) -> list[str]:
        """The pieces by id, for formats that hold a list of their own."""
        return [self._processor.id_to_piece(i) for i in range(self.size)]

    @cached_property
    def fingerprint(self) -> str:
        """The model file's SHA-256 in hexadecimal."""
        return hashlib.sha256(self._model).hexdigest()

    @property
    def producible(self) -> np.ndarray:
        """Which ids decoding may choose: [size] bool.

        Not PAD and UNK, nor the bytes of ASCII's control characters: no encoded text contains
        them, so no model learns where they belong, and <0x0A> would break the line.
        """
        mask = np.ones(self.size, bool)
        mask[[PAD, _UNK]] = False
        mask[_FIRST_BYTE : _FIRST_BYTE + 0x20] = False
        mask[_FIRST_BYTE + 0x7F] = False
        return mask

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Ids of each sentence, ending with EOS. 29,000 sentences take about 0.15 s."""
        return self._processor.encode(list(map(_fold, sentences)), add_eos=True)

    def encode_flat(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """`encode` as arrays and on one core: each word is encoded once and remembered.

        The ids are the same because no piece reaches across a space, and none of the normaliser's
        225,276 rules has one in what it matches. Of Multi30k 280,000 sentences take a second
        (sentencepiece's own encoding: 119,000), of news 136,000 (59,000).

        Returns:
            The ids of all sentences one after another, each ending with EOS: [sum of lengths]
            uint16, or int32 if `size` is above 65,536. And the lengths: int64 [sentences].
        """
        ids_of, dtype = self._words.__getitem__, self._words.dtype
        eos = np.array(EOS, dtype).tobytes()
        rows = [b"".join(map(ids_of, sentence.split(" "))) + eos for sentence in sentences]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows)) // dtype.itemsize
        return np.frombuffer(bytearray().join(rows), dtype), lengths

    def encode_at_random(
        self, sentences: Sequence[str], dropout: float, seed: int
    ) -> list[list[int]]:
        """`encode` with every merge left out by this chance: BPE dropout.

        Provilkov et al. 2020, arXiv:1910.13267. 75,000 sentences of Multi30k a second; with 0.05
        they have 1.18 times as many pieces. One seed gives one result, if no other thread calls
        this: the seed is the process's.
        """
        sentencepiece.set_random_generator_seed(seed % 2**31)  # it ignores 2^32 - 1
        # One thread: each begins with the seed, and which sentences it gets may differ.
        return self._processor.encode(
            list(map(_fold, sentences)),
            add_eos=True,
            enable_sampling=True,
            alpha=dropout,
            nbest_size=-1,
            num_threads=1,
        )

    def __reduce__(self) -> tuple[type[Vocabulary], tuple[bytes]]:
        """Pickled as the model alone: what was remembered, and the graph's copy, are made again."""
        return Vocabulary, (self._model,)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """One line of text per row, up to its first EOS; PAD is skipped.

        Raises:
            IndexError: an id is not below `size`.
        """
        rows = [[int(i) for i in takewhile(lambda i: i != EOS, row) if i != PAD] for row in ids]
        return list(map(_fold, self._processor.decode(rows)))

    @cached_property
    def tokenizer(self) -> tensorflow_text.SentencepieceTokenizer:
        """The graph's copy of the model.

        A tf.Module whose functions use it must keep it in an attribute (`self.tokenizer =
        vocabulary.tokenizer`), or saving it fails with "untracked resource".
        """
        import tensorflow as tf
        import tensorflow_text

        # Outside any graph that is being traced: the first use is often in Dataset.map.
        with tf.init_scope():
            return tensorflow_text.SentencepieceTokenizer(self._model, tf.int32, add_eos=True)

    def encode_graph(self, sentences: tf.Tensor) -> tf.RaggedTensor:
        """`encode` as graph operations: [batch] string to ragged [batch, (length)] int32.

        Bytes that are not UTF-8 count as U+FFFD, as in bytes.decode("utf-8", "replace").
        """
        import tensorflow as tf

        text = tf.strings.unicode_transcode(sentences, "UTF-8", "UTF-8", errors="replace")
        return self.tokenizer.tokenize(tf.strings.regex_replace(text, f"[{_LINE_ENDS}]", " "))

    def decode_graph(self, ids: tf.Tensor) -> tf.Tensor:
        """`decode` as graph operations: [batch, length] int32 to [batch] string.

        Raises:
            tf.errors.OutOfRangeError: an id before the first EOS is not below `size`.
        """
        import tensorflow as tf

        eos_seen = tf.cumsum(tf.cast(tf.equal(ids, EOS), tf.int32), axis=1)  # [batch, length]
        is_text = tf.equal(eos_seen, 0) & tf.not_equal(ids, PAD)  # [batch, length]
        text = self.tokenizer.detokenize(tf.ragged.boolean_mask(ids, is_text))  # [batch]
        return tf.strings.regex_replace(text, f"[{_LINE_ENDS}]", " ")


class _Words(dict[str, bytes]):
    """{word: its ids as bytes}, each found out when it is first asked for."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor):
        super().__init__()
        self.dtype = np.dtype(np.uint16 if processor.get_piece_size() <= 1 << 16 else np.int32)
        self._encode = processor.encode

    def __missing__(self, word: str) -> bytes:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        ids = self[word] = array(self.dtype.char, self._encode(_fold(word))).tobytes()
        return ids


def _table(counts: Counter[str], failures: list[BaseException]) -> Iterator[str]:
    """Lines of word, tab and count, each forgotten here when sentencepiece has it.

    Keeps in `failures` the exception that sentencepiece would replace by a RuntimeError: Ctrl-C.
    """
    try:
        while counts:
            word, count = counts.popitem()
            if word:
                yield _fold(word).replace("\t", " ") + f"\t{count}"
    except (Exception, KeyboardInterrupt) as error:
        failures.append(error)
        raise


def _explained(error: RuntimeError, size: int) -> Exception:
    for pattern, advice in _REFUSALS.items():
        if found := re.search(pattern, str(error)):
            return BadInput(f"--vocabulary_size={size}: {advice.format(*found.groups())}")
    return error
