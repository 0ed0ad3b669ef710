"""Compare this package's vocabulary with those that other trainers learn from the same text.

For all trainers a word is a white-space-separated part of the raw text; EOS is not counted. Before
learning each trainer splits text in its usual way: Sennrich's original gets Moses tokens (with
English abbreviations, whatever the language), WordPiece splits off punctuation like BERT,
byte-level BPE like GPT-2, and sentencepiece splits only where the script changes. Seconds are the
learning alone, after the files are read and tokenised.
"""

import importlib.util
import io
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.errors import BadInput
from pipelines.sources.text_files import lines
from pipelines.vocabulary import Vocabulary

Row = dict[str, float | int | str]
Segment = Callable[[str], Iterable[tuple[int, int]]]

_SPECIALS = ["<pad>", "</s>", "<unk>"]
_CONTROL = dict.fromkeys(range(0x20), " ")  # Moses deletes them, which could join two words


class Learned(NamedTuple):
    """A vocabulary that a trainer has learned."""

    pieces: int  # size of the vocabulary
    seconds: float  # time to learn it
    segment: Segment  # line -> for each word (number of pieces, how many are bytes or unknown)


def rows(
    source_files: Sequence[str | Path],
    target_files: Sequence[str | Path],
    test_files: Sequence[str | Path],
    size: int,
) -> Iterator[Row]:
    """Yield a row for each of `TRAINERS`.

    Args:
        source_files: Source side of the training text, one sentence per line.
        target_files: Target side of the training text.
        test_files: Text of both languages, on which the figures are computed.
        size: Number of pieces to learn. Other trainers may find fewer, and their rows say so.

    Yields:
        `pieces` in the vocabulary, `pieces_per_word`, the share of `one_piece_words`,
        `bytes_or_unknown_per_1000` pieces, and the `seconds` of learning.

    Raises:
        BadInput: A file cannot be used, a library is missing, or the text has too few pieces for a
            vocabulary of `size`.
    """
    _check_peers()
    text, test = _read([*source_files, *target_files]), _read(test_files)
    if not any(line.split() for line in test):
        raise BadInput("--dev_source_files, --dev_target_files: wanted text, got blank lines only")
    for name, learn in TRAINERS.items():
        learned = learn(text, size)
        words = [word for line in test for word in learned.segment(line)]
        pieces = sum(count for count, _ in words)
        yield {
            "trainer": name,
            "pieces": learned.pieces,
            "pieces_per_word": pieces / len(words),
            "one_piece_words": sum(count == 1 for count, _ in words) / len(words),
            "bytes_or_unknown_per_1000": 1000 * sum(fallbacks for _, fallbacks in words) / pieces,
            "seconds": learned.seconds,
        }


def _check_peers() -> None:
    for library in ("tokenizers", "subword_nmt"):
        if importlib.util.find_spec(library) is None:
            raise BadInput(
                f"the library {library} is not installed; wanted all trainers to compare with: "
                'pip install "t2t_repro[peers]"'
            )


def _read(files: Iterable[str | Path]) -> list[str]:
    return [line.translate(_CONTROL) for file in files for line in lines(file)]


def _each_word(pieces: Callable[[str], list], is_fallback: Callable[[Any], bool]) -> Segment:
    """Return a `Segment` for a trainer that segments a word the same way in every sentence."""

    @cache
    def segment(word: str) -> tuple[int, int]:
        found = pieces(word)
        return len(found), sum(map(is_fallback, found))

    return lambda line: map(segment, line.split())


def _learn_ours(text: list[str], size: int) -> Learned:
    began = time.perf_counter()
    vocabulary = Vocabulary.learn(text, size)
    seconds = time.perf_counter() - began
    is_byte = range(3, 3 + 256).__contains__
    segment = _each_word(lambda word: vocabulary.encode([word])[0][:-1], is_byte)
    return Learned(vocabulary.size, seconds, segment)


def _learn_unigram(text: list[str], size: int) -> Learned:
    """Learn a unigram model (Kudo 2018, arXiv:1804.10959).

    Normalisation and byte fallback are those of this package's vocabulary.
    """
    import sentencepiece

    model = io.BytesIO()
    began = time.perf_counter()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        model_type="unigram",
        vocab_size=size,
        byte_fallback=True,
        character_coverage=0.9999,
        hard_vocab_limit=False,  # a short text may give fewer pieces, as with the others
        max_sentence_length=1 << 30,
        minloglevel=2,
    )
    seconds = time.perf_counter() - began
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    segment = _each_word(processor.encode, processor.is_byte)
    return Learned(processor.get_piece_size(), seconds, segment)


def _learn_byte_level(text: list[str], size: int) -> Learned:
    """Learn BPE over bytes, as in GPT-2.

    Pieces that begin or end inside a character count as bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer, level = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.pre_tokenizer = level
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=level.alphabet(),
        special_tokens=_SPECIALS,
        show_progress=False,
    )
    decode = decoders.ByteLevel().decode
    return _hugging_face(tokenizer, trainer, text, lambda piece: "\ufffd" in decode([piece]))


def _learn_word_piece(text: list[str], size: int) -> Learned:
    """Learn WordPiece as in BERT, but cased.

    A word with an unknown character is one unknown piece.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=_SPECIALS, show_progress=False
    )
    return _hugging_face(tokenizer, trainer, text, "<unk>".__eq__)


def _hugging_face(
    tokenizer: Any, trainer: Any, text: list[str], is_fallback: Callable[[str], bool]
) -> Learned:
    began = time.perf_counter()
    tokenizer.train_from_iterator(text, trainer)
    seconds = time.perf_counter() - began
    segment = _each_word(lambda word: tokenizer.encode(word).tokens, is_fallback)
    return Learned(tokenizer.get_vocab_size(), seconds, segment)


def _learn_subword_nmt(text: list[str], size: int) -> Learned:
    """Learn BPE as in Sennrich et al. 2016 (arXiv:1508.07909), over Moses tokens.

    `size` counts characters and merges. As usual with subword-nmt, the vocabulary is the set of
    pieces that occur in the segmented training text, and all other pieces are unknown.
    """
    from sacremoses import MosesTokenizer
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    moses = MosesTokenizer("en")
    counts = Counter(token for line in text for token in moses.tokenize(line, escape=False))
    codes = io.StringIO()
    table = (f"{token} {count}\n" for token, count in counts.items())
    began = time.perf_counter()
    learn_bpe(table, codes, size, is_dict=True, total_symbols=True)  # shows a progress bar
    seconds = time.perf_counter() - began
    bpe = BPE(codes)
    known = {piece for token in counts for piece in bpe.segment_tokens([token])}

    def segment(line: str) -> Iterator[tuple[int, int]]:
        tokens = iter(moses.tokenize(line, escape=False))
        for word in line.split():  # no token crosses white space, and none is rewritten
            word_tokens: list[str] = []
            while sum(map(len, word_tokens)) < len(word):
                word_tokens.append(next(tokens))
            pieces = bpe.segment_tokens(word_tokens)
            yield len(pieces), sum(piece not in known for piece in pieces)

    return Learned(len(known), seconds, segment)


TRAINERS: dict[str, Callable[[list[str], int], Learned]] = {
    "ours": _learn_ours,
    "sentencepiece unigram": _learn_unigram,
    "tokenizers byte-level BPE": _learn_byte_level,
    "tokenizers WordPiece": _learn_word_piece,
    "subword-nmt": _learn_subword_nmt,
}
