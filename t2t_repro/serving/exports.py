"""Exports of the three formats, loaded as functions from lines to translations.

TensorFlow is imported for a SavedModel only; the other formats answer in less than a second.
"""

import typing
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from pipelines.errors import BadInput
from t2t_repro.decoding.lines import Line, Lines


def load(path: Path, n_best: int = 1) -> Lines:
    """Load an export of any format, or the newest of its versions in `path`.

    Raises:
        BadInput: there is no usable export, or its beam is smaller than `n_best`.
    """
    newest = newest_version(path)
    for name, loader in _LOADERS.items():
        if (newest / name).exists():
            return loader(path, n_best)
    raise BadInput(
        f"{newest}: no run (config.yaml) and no export ({', '.join(_LOADERS)}) there; wanted a "
        "work directory or an --export_dir"
    )


def saved_model(path: Path, n_best: int = 1) -> Lines:
    """Load a SavedModel; see `load`."""
    from t2t_repro.decoding.translator import best_lines
    from t2t_repro.serving import saved_model

    if n_best == 1:
        return best_lines(saved_model.load(newest_version(path)), n_best)
    nbest: typing.Any = saved_model.load(newest_version(path), "nbest")
    _check_beam(n_best, nbest.structured_outputs["scores"].shape[1])
    return best_lines(nbest, n_best)


def litert(path: Path, n_best: int = 1) -> Lines:
    """Load a LiteRT export; see `load`."""
    try:
        from t2t_repro.serving import litert_translator
    except ImportError:
        raise BadInput(_missing(path, "ai-edge-litert", "litert")) from None
    try:
        translator = litert_translator.Translator(newest_version(path))
    except litert_translator.Unusable as error:
        raise BadInput(f"{error}; make one with python -m t2t_repro.export") from None
    return _by_windows(translator, n_best)


def ctranslate2(path: Path, n_best: int = 1) -> Lines:
    """Load an export for CTranslate2; see `load`."""
    try:
        from t2t_repro.serving import ctranslate2_translator
    except ImportError:
        raise BadInput(_missing(path, "ctranslate2", "ctranslate2")) from None
    return _by_windows(ctranslate2_translator.Translator(newest_version(path)), n_best)


_LOADERS = {"saved_model.pb": saved_model, "model.tflite": litert, "model.bin": ctranslate2}


def newest_version(path: Path) -> Path:
    """Return the folder of the greatest version in an export directory; else the path itself."""
    versions = [child for child in path.glob("*") if child.name.isdecimal()]
    return max(versions, key=lambda child: int(child.name), default=path)


class _Translator(typing.Protocol):
    beam_size: int

    def nbest(self, sentences: list[str], count: int) -> list[list[typing.Any]]:
        """Return the `count` best translations of each sentence."""


def _by_windows(translator: _Translator, n_best: int) -> Lines:
    _check_beam(n_best, translator.beam_size)

    def rows(lines: Iterable[str], window: int) -> Iterator[list[Line]]:
        iterator = iter(lines)
        while chunk := list(islice(iterator, window)):
            yield from translator.nbest(chunk, n_best)

    return rows


def _check_beam(n_best: int, beam_size: int) -> None:
    if n_best > beam_size:
        raise BadInput(
            f"--nbest={n_best}: the search keeps {beam_size} hypotheses; export with a greater "
            "--beam_size"
        )


def _missing(path: Path, package: str, extra: str) -> str:
    return (
        f"{path}: wanted the package {package}, which is not installed; "
        f'pip install "t2t_repro[{extra}]"'
    )
