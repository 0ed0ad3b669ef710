"""Exports of the four formats, opened as translators.

TensorFlow is imported for a SavedModel and a Keras preset only; the other formats answer in less
than a second.
"""

import os
import typing
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from pipelines.errors import BadInput, first_line
from t2t_repro import tensorflow_import
from t2t_repro.decoding.lines import Line, Lines
from t2t_repro.serving import export_files


class Translator(typing.Protocol):
    """An export that is ready to translate, in one thread at a time."""

    beam_size: int

    # Any: a Line, or the class of the same fields that LiteRT exports bring with them.
    def nbest(self, sentences: Sequence[str], count: int) -> list[list[typing.Any]]:
        """Return the `count` best translations of each sentence, best first."""

    def translate_ids(self, sources: Sequence[Sequence[int]]) -> list[tuple[list[int], float]]:
        """Return the best translation of sentences of ids, each ending with EOS, and its score."""


def open_export(path: Path, threads: int | None = None) -> Translator:
    """Open an export of any format, or the newest of its versions in `path`.

    Args:
        path: `--export_dir`, or one version in it.
        threads: Threads of the matrix products; None means one for each core. With a SavedModel
            they are set for the whole process.

    Raises:
        BadInput: there is no usable export.
    """
    newest = newest_version(path)
    for name, opener in _OPENERS.items():
        if os.path.exists(newest / name):
            return opener(newest, threads)
    if (newest / "config.yaml").exists():
        raise BadInput(
            f"{newest}: a work directory, where an export is wanted; make one with python -m "
            f"t2t_repro.export --workdir={newest}"
        )
    raise BadInput(
        f"{newest}: no run (config.yaml) and no export ({', '.join(_OPENERS)}) there; wanted a "
        "work directory or an --export_dir"
    )


def load(path: Path, n_best: int = 1) -> Lines:
    """Open an export, see `open_export`, as a function from lines to their translations.

    Raises:
        BadInput: there is no usable export, or its beam is smaller than `n_best`.
    """
    return _lines(open_export(path), path, n_best)


def saved_model(path: Path, n_best: int = 1) -> Lines:
    """Load a SavedModel; see `load`."""
    return _lines(_open_saved_model(newest_version(path)), path, n_best)


def litert(path: Path, n_best: int = 1) -> Lines:
    """Load a LiteRT export; see `load`."""
    return _lines(_open_litert(newest_version(path)), path, n_best)


def _open_saved_model(path: Path, threads: int | None = None) -> Translator:
    try:
        from t2t_repro.serving.saved_model_translator import Translator
    except ModuleNotFoundError as error:
        raise BadInput(_missing(path, str(error.name))) from None
    return Translator(path, threads)


def _open_litert(path: Path, threads: int | None = None) -> Translator:
    try:
        from t2t_repro.serving import litert_translator
    except ImportError:
        raise BadInput(_missing(path, "ai-edge-litert", "[litert]")) from None
    export_files.check_regular(path, "model.tflite")
    export_files.decode(path, export_files.settings(path))
    try:
        return litert_translator.Translator(path, threads)
    except litert_translator.Unusable as error:
        raise BadInput(f"{error}; make one with python -m t2t_repro.export") from None


def _open_ctranslate2(path: Path, threads: int | None = None) -> Translator:
    try:
        from t2t_repro.serving import ctranslate2_translator
    except ImportError:
        raise BadInput(_missing(path, "ctranslate2", "[ctranslate2]")) from None
    return ctranslate2_translator.Translator(path, threads)


def _open_preset(path: Path, threads: int | None = None) -> Translator:
    try:
        tensorflow_import.check_backend()
        from t2t_repro.serving.keras_preset import Translator
    except ModuleNotFoundError as error:
        raise BadInput(_missing(path, str(error.name))) from None
    return Translator(path, threads)


_OPENERS = {
    "saved_model.pb": _open_saved_model,
    "model.tflite": _open_litert,
    "model.bin": _open_ctranslate2,
    "model.weights.h5": _open_preset,
}


def is_export(path: Path) -> bool:
    """Return whether a directory is one version of an export, by its files' names."""
    return any(os.path.exists(path / name) for name in _OPENERS)


def newest_version(path: Path) -> Path:
    """Return the folder of the greatest version in an export directory; else the path itself.

    A folder that is no export counts only if there is no better one, as for the server.

    Raises:
        BadInput: the directory cannot be read.
    """
    try:
        versions = [child for child in path.iterdir() if child.name.isdecimal() and child.is_dir()]
        versions = [child for child in versions if is_export(child)] or versions
    except (FileNotFoundError, NotADirectoryError):
        return path
    except OSError as error:
        raise export_files.unusable(path, error) from None
    return max(versions, key=lambda child: int(child.name), default=path)


def verify(path: Path) -> None:
    """Compare all files of an export, or of the newest version in it, with their SHA-256.

    Raises:
        BadInput: a file is missing, damaged or not listed in settings.json.
    """
    export_files.verify(newest_version(path))


def _lines(translator: Translator, path: Path, n_best: int) -> Lines:
    if n_best > translator.beam_size:
        raise BadInput(
            f"--nbest={n_best}: the search keeps {translator.beam_size} hypotheses; export with a "
            "greater --beam_size"
        )

    def rows(lines: Iterable[str], window: int) -> Iterator[list[Line]]:
        iterator = iter(lines)
        while chunk := list(islice(iterator, window)):
            try:
                translations = translator.nbest(chunk, n_best)
            except MemoryError:
                raise
            # A foreign model may load and fail later; each engine has exceptions of its own.
            except Exception as error:
                if type(error).__name__ == "ResourceExhaustedError":  # TensorFlow's
                    raise MemoryError(first_line(error)) from None
                raise export_files.unusable(
                    path, f"it does not translate: {first_line(error)}"
                ) from error
            yield from translations

    return rows


def _missing(path: Path, package: str, extra: str = "") -> str:
    return (
        f"{path}: wanted the package {package}, which is not installed; "
        f'pip install "t2t_repro{extra}"'
    )
