"""Figures 3 to 5 as a PNG: one layer of an `AttentionFigure`."""

import io
import warnings

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from t2t_repro.paper.attention_figure import COLOURS, AttentionFigure, Kind, Piece, View

_INCHES = 0.2  # width of a piece, whose text is rotated by 90 degrees
_MIN_WEIGHT = 0.01  # a line of a smaller weight would be invisible
_CELL = 0.045  # height of a cell, a head's weight on a key, as a share of the lines' height
_DIM = "#8a929c"


def picture(figure: AttentionFigure, view: View, dpi: int = 150) -> bytes:
    """Return a PNG with queries above, keys below, a line per weight and a colour per head.

    If the view shows one query, the heads' weights are also drawn as cells above the keys, as in
    Figure 3. Characters that matplotlib's default font lacks, such as Chinese ones, become boxes.
    """
    kind = figure.kinds[view.kind]
    places = [_places(pieces) for pieces in (kind.queries, kind.keys)]
    span = max(place[-1] for place in places) + 1
    queries, keys = (place + (span - 1 - place[-1]) / 2 for place in places)  # centred
    drawn = Figure(figsize=(max(4.0, span * _INCHES), 4.2), layout="constrained")
    axes = drawn.add_subplot()
    axes.set(xlim=(-0.7, span - 0.3), ylim=(0, 1), yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_title(f"{kind.name}, layer {view.layer + 1} of {len(kind.weights)}", fontsize=10)
    _lines(axes, queries, keys, kind, view)
    above = axes.twiny()
    above.set_xlim(axes.get_xlim())
    above.spines[:].set_visible(False)
    _labels(above, queries, kind.queries, view.word)
    _labels(axes, keys, kind.keys, None)
    if view.word is not None:
        _cells(axes, keys, kind.weights[view.layer, :, view.word], view.heads)
    heads = [Patch(color=_colour(head), label=str(head + 1)) for head in view.heads]
    small = {"fontsize": 8, "title_fontsize": 8, "handlelength": 0.8, "frameon": False}
    drawn.legend(handles=heads, title="head", loc="outside lower center", ncols=16, **small)
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        drawn.savefig(content, format="png", dpi=dpi)
    return content.getvalue()


def _colour(head: int) -> str:
    return COLOURS[head % len(COLOURS)]


def _places(pieces: list[Piece]) -> np.ndarray:
    """Return the positions of the pieces, from 0 on, with more space between words."""
    steps = [1.4 if piece.begins_word else 1.0 for piece in pieces[1:]]
    return np.cumsum([0.0, *steps])


def _lines(axes: Axes, queries: np.ndarray, keys: np.ndarray, kind: Kind, view: View) -> None:
    """Draw a line per weight, the largest on top; the heads of a piece start side by side."""
    weights = kind.weights[view.layer][view.heads]  # [h, q, k]
    seen = weights >= _MIN_WEIGHT
    if view.word is not None:
        seen &= (np.arange(len(queries)) == view.word)[:, None]
    order = np.argsort(weights[seen])
    head, query, key = (index[order] for index in np.nonzero(seen))
    aside = (head - (len(weights) - 1) / 2) / len(weights) * 0.6
    starts = np.stack([queries[query] + aside, np.ones(len(order))], axis=1)
    ends = np.stack([keys[key] + aside, np.zeros(len(order))], axis=1)
    colours = to_rgba_array(
        [_colour(view.heads[index]) for index in head],
        alpha=np.minimum(weights[head, query, key], 1),
    )
    width = 1.2 if view.word is None else 2.0
    lines = list(np.stack([starts, ends], axis=1))
    axes.add_collection(LineCollection(lines, colors=colours, lw=width))


def _labels(axes: Axes, places: np.ndarray, pieces: list[Piece], word: int | None) -> None:
    axes.set_xticks(places, [piece.text for piece in pieces], rotation=90, fontsize=9)
    axes.tick_params(length=0)
    for index, label in enumerate(axes.get_xticklabels()):
        label.set_parse_math(False)  # "$" is plain text
        if word is not None:
            label.set(fontweight="bold" if index == word else "normal")
            label.set_color("black" if index == word else _DIM)


def _cells(axes: Axes, keys: np.ndarray, weights: np.ndarray, heads: list[int]) -> None:
    """Draw a column of cells below the lines for each key, one per head: weights [h, k]."""
    for row, head in enumerate(heads):
        colours = to_rgba_array([_colour(head)] * len(keys), alpha=np.minimum(weights[head], 1))
        bottom = -0.02 - _CELL * (row + 1)
        axes.bar(keys, _CELL, width=0.9, bottom=bottom, color=colours)
    axes.set_ylim(bottom - 0.02, 1)
