"""Compare the pieces learnt here with what other trainers learn from the same text.

A word is what stands between white space in the text as it is, for every trainer alike; EOS is not
counted. Each trainer cuts text up in its own usual way before it learns: Sennrich's original gets
Moses tokens (with English abbreviations, whatever the language), WordPiece splits off punctuation
as BERT does, byte-level BPE as GPT-2 does, sentencepiece only where the script changes. Seconds are
those of learning alone, after the files are read and tokenised.
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
Cut = Callable[[str], Iterable[tuple[int, int]]]

_SPECIALS = ["<pad>", "</s>", "<unk>"]
_CONTROL = dict.fromkeys(range(0x20), " ")  # Moses drops them, and words could not be told apart


class Learnt(NamedTuple):
    """What a trainer found."""

    pieces: int
    seconds: float
    cut: Cut  # for each word of a line: its pieces, and how many of them are bytes or unknown


def rows(
    source_files: Sequence[str | Path],
    target_files: Sequence[str | Path],
    test_files: Sequence[str | Path],
    size: int,
) -> Iterator[Row]:
    """One row for each of `TRAINERS`.

    Args:
        source_files: text to learn from, one sentence a line.
        target_files: more of it, in the other language.
        test_files: the text that is counted, in both languages.
        size: the number of pieces to learn. A peer that finds fewer has fewer in its row.

    Raises:
        BadInput: a file cannot be used, the text cannot fill `size` for ours, a library is missing.
    """
    _check_peers()
    text, test = _read([*source_files, *target_files]), _read(test_files)
    for name, learn in TRAINERS.items():
        learnt = learn(text, size)
        words = [word for line in test for word in learnt.cut(line)]
        pieces = sum(count for count, _ in words)
        yield {
            "trainer": name,
            "pieces": learnt.pieces,
            "pieces_per_word": pieces / len(words),
            "one_piece_words": sum(count == 1 for count, _ in words) / len(words),
            "bytes_or_unknown_per_1000": 1000 * sum(odd for _, odd in words) / pieces,
            "seconds": learnt.seconds,
        }


def _check_peers() -> None:
    for library in ("tokenizers", "subword_nmt"):
        if importlib.util.find_spec(library) is None:
            raise BadInput(
                f"the library {library} is not installed; wanted the trainers to compare with: "
                'pip install "t2t_repro[peers]"'
            )


def _read(files: Iterable[str | Path]) -> list[str]:
    return [line.translate(_CONTROL) for file in files for line in lines(file)]


def _each_word(pieces: Callable[[str], list], is_odd: Callable[[Any], bool]) -> Cut:
    """For trainers to which a word is the same in every sentence."""

    @cache
    def cut(word: str) -> tuple[int, int]:
        found = pieces(word)
        return len(found), sum(map(is_odd, found))

    return lambda line: map(cut, line.split())


def _learn_ours(text: list[str], size: int) -> Learnt:
    began = time.perf_counter()
    vocabulary = Vocabulary.learn(text, size)
    seconds = time.perf_counter() - began
    cut = _each_word(lambda word: vocabulary.encode([word])[0][:-1], range(3, 3 + 256).__contains__)
    return Learnt(vocabulary.size, seconds, cut)


def _learn_unigram(text: list[str], size: int) -> Learnt:
    """Kudo 2018 (arXiv:1804.10959), with the normalisation and the bytes that ours has."""
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
        hard_vocab_limit=False,  # as many as there are, like the others
        max_sentence_length=1 << 30,
        minloglevel=2,
    )
    seconds = time.perf_counter() - began
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    cut = _each_word(processor.encode, processor.is_byte)
    return Learnt(processor.get_piece_size(), seconds, cut)


def _learn_byte_level(text: list[str], size: int) -> Learnt:
    """BPE over bytes as in GPT-2; odd are pieces that begin or end inside a character."""
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


def _learn_word_piece(text: list[str], size: int) -> Learnt:
    """As in BERT, with its case kept; a word with one unknown character is unknown altogether."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=_SPECIALS, show_progress=False
    )
    return _hugging_face(tokenizer, trainer, text, "<unk>".__eq__)


def _hugging_face(
    tokenizer: Any, trainer: Any, text: list[str], is_odd: Callable[[str], bool]
) -> Learnt:
    began = time.perf_counter()
    tokenizer.train_from_iterator(text, trainer)
    seconds = time.perf_counter() - began
    cut = _each_word(lambda word: tokenizer.encode(word).tokens, is_odd)
    return Learnt(tokenizer.get_vocab_size(), seconds, cut)


def _learn_subword_nmt(text: list[str], size: int) -> Learnt:
    """Sennrich et al. 2016 (arXiv:1508.07909), over Moses tokens.

    `size` are characters and merges; the pieces are what they cut the training text into, as its
    users count them, and any other is unknown.
    """
    from sacremoses import MosesTokenizer
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    moses = MosesTokenizer("en")
    counts = Counter(token for line in text for token in moses.tokenize(line, escape=False))
    codes = io.StringIO()
    table = (f"{token} {count}\n" for token, count in counts.items())
    began = time.perf_counter()
    learn_bpe(table, codes, size, is_dict=True, total_symbols=True)  # draws its own progress
    seconds = time.perf_counter() - began
    bpe = BPE(codes)
    known = {piece for token in counts for piece in bpe.segment_tokens([token])}

    def cut(line: str) -> Iterator[tuple[int, int]]:
        tokens = iter(moses.tokenize(line, escape=False))
        for word in line.split():  # no token reaches across white space, and none is rewritten
            own: list[str] = []
            while sum(map(len, own)) < len(word):
                own.append(next(tokens))
            pieces = bpe.segment_tokens(own)
            yield len(pieces), sum(piece not in known for piece in pieces)

    return Learnt(len(known), seconds, cut)


TRAINERS: dict[str, Callable[[list[str], int], Learnt]] = {
    "ours": _learn_ours,
    "sentencepiece unigram": _learn_unigram,
    "tokenizers byte-level BPE": _learn_byte_level,
    "tokenizers WordPiece": _learn_word_piece,
    "subword-nmt": _learn_subword_nmt,
}
