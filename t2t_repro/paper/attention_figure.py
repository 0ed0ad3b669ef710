"""Figures 3 to 5: what every head looks at, as a page for a browser; `attention_picture` draws it.

Axes: n layers, h heads, q queries, k keys.
"""

import json
import typing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.errors import BadInput
from pipelines.vocabulary import EOS, Vocabulary
from t2t_repro.model.transformer import Transformer

_LAYER = 5  # "layer 5 of 6", of all three figures
_WORD_START = "\u2581"  # sentencepiece's mark

# One a head: the first eight of matplotlib and d3, which Figure 3 has; the big model has sixteen.
COLOURS = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f"),
    *("#bcbd22", "#17becf", "#3b3eac", "#0b6e4f", "#b5179e", "#b8860b", "#7f1d1d", "#00897b"),
)


class Piece(typing.NamedTuple):
    """A piece as people read it; those of one word stand close together.

    Pieces are not merged into words: they are what the model looks from and at, and a word's weight
    would be a sum over keys, but a mean over queries, that no head computes.
    """

    text: str
    begins_word: bool


class Kind(typing.NamedTuple):
    """One of the three uses of attention (3.2.3) in one pair of sentences."""

    name: str
    queries: list[Piece]
    keys: list[Piece]
    weights: np.ndarray  # float32 [n, h, q, k]


class View(typing.NamedTuple):
    """What of a figure is shown first; `AttentionFigure.view` makes it."""

    kind: str
    layer: int  # from 0
    heads: list[int]  # from 0
    word: int | None  # the query that is shown alone


@dataclass(frozen=True)
class AttentionFigure:
    """All attention weights of a pair of sentences.

    Args:
        sentence: The source.
        translation: The target, by the model itself or by another.
        kinds: By the name of `Attention`'s field: encoder, decoder, cross.
    """

    sentence: str
    translation: str
    kinds: Mapping[str, Kind]

    def view(
        self,
        kind: str = "encoder",
        layer: int | None = None,
        heads: Sequence[int] | None = None,
        word: str | None = None,
    ) -> View:
        """A choice of what is shown.

        Args:
            kind: Of `kinds`.
            layer: From 1; None is the paper's, 5, or the last if the model has fewer.
            heads: From 1; None is all.
            word: The one query that is shown alone, as in Figure 3: a piece, or a word, which
                stands for its first; None shows all.

        Raises:
            BadInput: a layer, head or word that is not there.
        """
        layers, count = self.kinds[kind].weights.shape[:2]
        layer = min(_LAYER, layers) if layer is None else _within("layer", layer, layers)
        chosen = [_within("heads", head, count) for head in heads or range(1, count + 1)]
        return View(
            kind,
            layer - 1,
            sorted({head - 1 for head in chosen}),
            None if word is None else _index(word, self.kinds[kind].queries),
        )

    def html(self, view: View, model: str) -> str:
        """One page that needs nothing else, with all kinds, layers and heads to choose from.

        Args:
            view: What it shows first.
            model: What its reader is told about the model.
        """
        content = {
            "sentence": self.sentence,
            "translation": self.translation,
            "model": model,
            "colours": COLOURS,
            "view": view._asdict(),
            "kinds": {name: _as_json(kind) for name, kind in self.kinds.items()},
        }
        # "<" never ends the script element then, whatever the sentence holds.
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
        return template.replace("ATTENTION_FIGURE", text.replace("<", "\\u003c"))


def attention_figure(
    model: Transformer,
    vocabulary: Vocabulary,
    source: Sequence[int],
    target: Sequence[int],
) -> AttentionFigure:
    """The figure of one pair, ids [s] and [t] as `Vocabulary.encode` gives them.

    A query of the decoder's self-attention is the piece before the one that is predicted, at first
    none (the zero vector); in cross-attention it is labelled with the piece that is predicted.
    """
    with warnings.catch_warnings():  # Keras's, of a softmax over one key: an empty translation's
        warnings.filterwarnings("ignore", "You are using a softmax", UserWarning)
        maps = model.attention(np.array([source], "int32"), np.array([target], "int32"))
    encoder, decoder, cross = (np.asarray(weights)[:, 0] for weights in maps)  # [n, h, q, k]
    sources, targets = _pieces(vocabulary, source), _pieces(vocabulary, target)
    before = [Piece("<start>", True), *targets[:-1]]
    sentence, translation = vocabulary.decode([source, target])
    return AttentionFigure(
        sentence,
        translation,
        {
            "encoder": Kind("Encoder self-attention", sources, sources, encoder),
            "decoder": Kind("Decoder self-attention", before, before, decoder),
            "cross": Kind("Encoder-decoder attention", targets, sources, cross),
        },
    )


def _pieces(vocabulary: Vocabulary, ids: Sequence[int]) -> list[Piece]:
    texts = vocabulary.pieces
    return [
        # Figure 3's label; a piece that is the mark alone keeps it, so as to be seen.
        Piece("<EOS>", True)
        if index == EOS
        else Piece(
            texts[index].removeprefix(_WORD_START) or _WORD_START,
            texts[index].startswith(_WORD_START),
        )
        for index in ids
    ]


def _within(name: str, number: int, count: int) -> int:
    if not 1 <= number <= count:
        raise BadInput(f"--{name}={number}: the model's go from 1 to {count}")
    return number


def _index(word: str, pieces: list[Piece]) -> int:
    """Where the first piece of a word, or of a part of it, stands."""
    for start in range(len(pieces)):
        text = ""
        for piece in pieces[start:]:
            if text and piece.begins_word:
                break
            text += piece.text
            if text == word:
                return start
    texts = " ".join(piece.text for piece in pieces)
    raise BadInput(f"--word={word}: not among the queries; wanted a word or a piece of: {texts}")


def _as_json(kind: Kind) -> dict[str, typing.Any]:
    # Thousandths take half the room of decimals.
    return kind._asdict() | {"weights": np.rint(kind.weights * 1000).astype(int).tolist()}
