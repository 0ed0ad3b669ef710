"""What one worker process runs: an export, opened once, that answers batches.

A process of its own keeps the search out of the way of the server's event loop, and a crash in an
engine's C++ away from everything else.
"""

import json
import os
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import BadInput, first_line
from pipelines.vocabulary import EOS, Vocabulary
from pipelines.workers import follow_parent
from t2t_repro import tensorflow_import
from t2t_repro.serving import export_files, exports

# Where all cores translate, the server still reads requests at once: they become full batches.
_NICENESS = 5

Row = str | list[int]  # a sentence: text, or ids that end with EOS


class Description(typing.NamedTuple):
    """The facts of an export that the server needs."""

    settings: dict[str, Any]  # settings.json
    beam_size: int
    vocabulary_size: int | None  # None: the export is older than vocabularies in exports
    draws_attention: bool


def described(settings: dict[str, Any]) -> str:
    """Return a line about the model, from an export's settings.json."""
    model = settings["model"]
    size = f"{model['num_layers']} layers of {model['num_heads']} heads"
    return f"{settings['problem']}, {settings['variant']}: {size}"


class Batch(typing.NamedTuple):
    """The answers to a batch, one for each row, and the size of the work."""

    answers: list[Any]
    pieces: int | None  # of the best translations, EOS included, as the vocabulary splits them


class _Engine:
    def __init__(self, path: Path, threads: int):
        self.settings = _settings(path)
        if self.settings.get("format") in ("saved_model", "keras"):
            tensorflow_import.quiet()
        self.translator: Any = exports.open_export(path, threads)
        self.vocabulary = _vocabulary(path, self.settings)

    def nbest(self, texts: list[str], count: int) -> Batch:
        rows = self.translator.nbest(texts, count)
        best = [row[0].translation for row in rows]
        pieces = sum(map(len, self.vocabulary.encode(best))) if self.vocabulary else None
        return Batch([[tuple(line) for line in row] for row in rows], pieces)

    def ids(self, sources: list[list[int]]) -> Batch:
        answers = self.translator.translate_ids(sources)
        return Batch(answers, sum(len(ids) for ids, _ in answers))

    def attention(self, texts: list[str]) -> Batch:
        """Return the outputs of SavedModels' signature `attention` as JSON, at most some 60 MB."""
        found = [self.translator.attention(text) for text in texts]
        listed = [{name: _listed(value) for name, value in each.items()} for each in found]
        return Batch([json.dumps(each, ensure_ascii=False) for each in listed], None)

    def attention_page(self, texts: list[str]) -> Batch:
        """Draw the same, as `visualize` does."""
        model = described(self.settings)
        figures = [self.translator.attention_figure(text) for text in texts]
        return Batch([figure.html(figure.view(), model) for figure in figures], None)


def _vocabulary(path: Path, settings: dict[str, Any]) -> Vocabulary | None:
    if settings.get("format") == "keras":
        return Vocabulary.from_preset(path)
    folder = export_files.beside_model(path)
    return Vocabulary.load(folder) if (folder / "vocabulary.model").exists() else None


def _listed(value: Any) -> Any:
    """Return an array as lists of numbers with 7 digits, which a float32 has; all else as it is."""
    return np.round(value.astype(float), 7).tolist() if isinstance(value, np.ndarray) else value


_engine: _Engine


def start() -> None:
    """Prepare the worker's process."""
    follow_parent()
    os.nice(_NICENESS)


def load(path: Path, threads: int) -> Description:
    """Open an export and translate with it, so that no user waits for the first translation.

    Raises:
        BadInput: there is no usable export.
    """
    global _engine
    _engine = _Engine(path, threads)
    beam_size = _engine.translator.beam_size
    try:
        for signature in ("serving_default", "nbest"):
            answer(signature, ["Hello.", "this is a longer line " * 4])
        answer("translate_ids", [[EOS + 2, EOS]])
    except RuntimeError as error:
        raise BadInput(f"{path}: it does not translate ({error})") from None
    vocabulary = _engine.vocabulary
    return Description(
        _engine.settings,
        beam_size,
        vocabulary.size if vocabulary else None,
        getattr(_engine.translator, "draws_attention", False),
    )


def answer(signature: str, rows: Sequence[Any]) -> Batch:
    """Answer rows of one signature.

    Args:
        signature: "serving_default" or "nbest" for texts, "translate_ids" for ids; with SavedModels
            also "attention" and "attention_page" for texts.
        rows: The sentences.

    Returns:
        For translated texts, each answer is a list of (translation, score, cut), best first, of
        length 1 or beam size; for ids it is (ids, score); for "attention" the outputs as JSON; for
        "attention_page" the HTML.

    Raises:
        RuntimeError: the engine failed. TensorFlow's own errors would be read by the server, which
            does not import TensorFlow.
    """
    answers: dict[str, Callable[[list[Any]], Batch]] = {
        "serving_default": lambda texts: _engine.nbest(texts, 1),
        "nbest": lambda texts: _engine.nbest(texts, _engine.translator.beam_size),
        "translate_ids": _engine.ids,
        "attention": _engine.attention,
        "attention_page": _engine.attention_page,
    }
    try:
        return answers[signature](list(rows))
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {first_line(error)}") from None


def _settings(path: Path) -> dict[str, Any]:
    settings = export_files.settings(path)
    export_files.decode(path, settings)
    try:
        model = settings["model"]
        words = [settings[name] for name in ("problem", "variant", "format")]
        counts = [model["num_layers"], model["num_heads"]]
        if not all(isinstance(word, str) for word in words):
            raise ValueError("problem, variant or format is no word")
        if not all(type(count) is int for count in counts):
            raise ValueError("num_layers or num_heads is no whole number")
        if settings["output"] not in ("text", "trees"):
            raise ValueError("output is neither text nor trees")
    except (ValueError, LookupError, TypeError) as error:
        raise export_files.unusable(path, f"settings.json: {error}") from None
    return settings
