"""Figures 3 to 5: the attention of every head, as an HTML page.

`attention_picture` draws the same figure as a PNG.

Axes: n layers, h heads, q queries, k keys, s source pieces, t target pieces.
"""

import json
import re
import typing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.errors import BadInput

if typing.TYPE_CHECKING:
    from pipelines.vocabulary import Vocabulary
    from t2t_repro.model.transformer import Transformer

_LAYER = 5  # all three figures show "layer 5 of 6"
_WORD_START = "\u2581"  # sentencepiece's mark of a word's start
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")  # pieces of characters that have none of their own
_EOS = "</s>"  # sentencepiece's name of EOS; the same characters in a text are other pieces

# One colour per head. The first eight, from matplotlib and d3, are those of Figure 3; the big model
# has 16 heads.
COLOURS = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f"),
    *("#bcbd22", "#17becf", "#3b3eac", "#0b6e4f", "#b5179e", "#b8860b", "#7f1d1d", "#00897b"),
)


class Piece(typing.NamedTuple):
    """The readable text of a piece; the pieces of one word are drawn close together.

    Pieces are not merged into words, because queries and keys are pieces. The weight of a word
    would be a sum over keys, but a mean over queries, and no head computes either.
    """

    text: str
    begins_word: bool


class Kind(typing.NamedTuple):
    """The weights of one of the three uses of attention (3.2.3) on a sentence pair."""

    name: str
    queries: list[Piece]
    keys: list[Piece]
    weights: np.ndarray  # float32 [n, h, q, k]


class View(typing.NamedTuple):
    """The part of a figure that is shown first; `AttentionFigure.view` makes it."""

    kind: str
    layer: int  # from 0
    heads: list[int]  # from 0
    word: int | None  # index of the only query shown; None shows all


@dataclass(frozen=True)
class AttentionFigure:
    """All attention weights of a sentence pair.

    Args:
        sentence: The source sentence.
        translation: The target sentence, which may be the model's own translation or a given one.
        kinds: {"encoder", "decoder" or "cross": the weights of this use of attention}.
    """

    sentence: str
    translation: str
    kinds: Mapping[str, Kind]

    @classmethod
    def of_pair(
        cls,
        sentence: str,
        translation: str,
        source_pieces: Sequence[str],
        target_pieces: Sequence[str],
        weights: Mapping[str, np.ndarray],
    ) -> "AttentionFigure":
        """Make the figure of a sentence pair.

        In the decoder's self-attention a query is labelled with its input: the piece before the one
        that is predicted, or "<start>" for the zero vector at the first position. In
        cross-attention a query is labelled with the piece that is predicted.

        Args:
            sentence: The source sentence.
            translation: The target sentence.
            source_pieces: Its s pieces as in `Vocabulary.pieces`, EOS included.
            target_pieces: The t pieces of the target.
            weights: float32 {"encoder": [n, h, s, s], "decoder": [n, h, t, t], "cross":
                [n, h, t, s]}, as an export's signature `attention` returns them.
        """
        sources, targets = [
            [_piece(text) for text in side] for side in (source_pieces, target_pieces)
        ]
        before = [Piece("<start>", True), *targets[:-1]]
        return cls(
            sentence,
            translation,
            {
                "encoder": Kind("Encoder self-attention", sources, sources, weights["encoder"]),
                "decoder": Kind("Decoder self-attention", before, before, weights["decoder"]),
                "cross": Kind("Encoder-decoder attention", targets, sources, weights["cross"]),
            },
        )

    def view(
        self,
        kind: str = "encoder",
        layer: int | None = None,
        heads: Sequence[int] | None = None,
        word: str | None = None,
    ) -> View:
        """Return the view of the chosen layer, heads and query.

        Args:
            kind: A key of `kinds`.
            layer: Number from 1; None means 5, as in the paper, or the last one of a smaller model.
            heads: Numbers from 1; None means all.
            word: The only query to show, as in Figure 3: a piece, or a word, which selects its
                first piece; None shows all.

        Raises:
            BadInput: The layer, a head or the word does not exist.
        """
        layers, count = self.kinds[kind].weights.shape[:2]
        layer = min(_LAYER, layers) if layer is None else _check_number("layer", layer, layers)
        chosen = [_check_number("heads", head, count) for head in heads or range(1, count + 1)]
        return View(
            kind,
            layer - 1,
            sorted({head - 1 for head in chosen}),
            None if word is None else _find_query(word, self.kinds[kind].queries),
        )

    def html(self, view: View, model: str) -> str:
        """Return a self-contained HTML page on which all kinds, layers and heads can be chosen.

        Args:
            view: The view that is shown first.
            model: A line about the model, shown at the bottom.
        """
        content = {
            "sentence": self.sentence,
            "translation": self.translation,
            "model": model,
            "colours": COLOURS,
            "view": view._asdict(),
            "kinds": {name: _as_json(kind) for name, kind in self.kinds.items()},
        }
        # "<" is escaped, so that no text in the sentences can end the script element.
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
        return template.replace("ATTENTION_FIGURE", text.replace("<", "\\u003c"))


def attention_figure(
    model: "Transformer",
    vocabulary: "Vocabulary",
    source: Sequence[int],
    target: Sequence[int],
) -> AttentionFigure:
    """Compute the figure of a sentence pair.

    Args:
        model: The trained model.
        vocabulary: The model's vocabulary.
        source: Ids [s] from `Vocabulary.encode`.
        target: Ids [t] from `Vocabulary.encode`.
    """
    with warnings.catch_warnings():  # Keras warns of a softmax over one key: empty translation
        warnings.filterwarnings("ignore", "You are using a softmax", UserWarning)
        maps = model.attention(np.array([source], "int32"), np.array([target], "int32"))
    sentence, translation = vocabulary.decode([source, target])
    pieces = vocabulary.pieces
    return AttentionFigure.of_pair(
        sentence,
        translation,
        [pieces[index] for index in source],
        [pieces[index] for index in target],
        {kind: np.asarray(weights)[:, 0] for kind, weights in maps._asdict().items()},
    )


def _piece(text: str) -> Piece:
    """Make the label of one of `Vocabulary.pieces`."""
    if text == _EOS:
        return Piece("<EOS>", True)  # Figure 3's label
    # A piece that is only the mark keeps it, to be visible.
    return Piece(text.removeprefix(_WORD_START) or _WORD_START, text.startswith(_WORD_START))


def _check_number(name: str, number: int, count: int) -> int:
    if not 1 <= number <= count:
        raise BadInput(f"--{name}={number}: wanted 1 to {count} for this model")
    return number


def _find_query(word: str, pieces: list[Piece]) -> int:
    """Return the index of the first piece of `word`, which may be a word or a part of one."""
    for start in range(len(pieces)):
        text = ""
        for piece in pieces[start:]:
            if text and piece.begins_word:
                break
            text += piece.text
            if word in (text, _spelt_out(text)):
                return start
    texts = " ".join(piece.text for piece in pieces)
    raise BadInput(f"--word={word}: not among the queries; wanted a word or a piece of: {texts}")


def _spelt_out(text: str) -> str:
    """Return joined pieces as text: bytes as characters, without a mark of the word's start."""
    return _BYTES.sub(_characters, text).removeprefix(_WORD_START)


def _characters(match: re.Match[str]) -> str:
    return bytes.fromhex(re.sub("<0x|>", "", match[0])).decode(errors="replace")


def _as_json(kind: Kind) -> dict[str, typing.Any]:
    # Integers in thousandths take half the space of decimal fractions.
    return kind._asdict() | {"weights": np.rint(kind.weights * 1000).astype(int).tolist()}
