"""The common part of all exports: a directory made whole or not at all, and its settings."""

import contextlib
import os
import shutil
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

import t2t_repro
from pipelines import storage
from pipelines.errors import BadInput, first_line
from t2t_repro import config
from t2t_repro.serving.export_files import FORMAT_VERSION, write_settings

if typing.TYPE_CHECKING:
    from t2t_repro.experiment import Experiment


def save_for_engine(
    run: "Experiment", directory: Path, format: str, weights: str, write: Callable[[Path], None]
) -> None:
    """Write an export for another engine than TensorFlow; it appears whole or not at all.

    Args:
        run: The restored run.
        directory: The directory to make, <export_dir>/<version>.
        format: "litert" or "ctranslate2".
        weights: "float32" or "int8", the type that the matrices are stored in.
        write: Writes all files but settings.json into a directory.

    Raises:
        BadInput: the encoder has no full self-attention, or the directory cannot be written.
    """
    if not run.model.has_attention_weights:
        raise BadInput(
            f"--format={format}: wanted full self-attention in the encoder; export with "
            "--format=saved_model"
        )
    with atomic_directory(directory) as unfinished:
        write(unfinished)
        write_settings(unfinished, settings(run, format, weights))


@contextlib.contextmanager
def atomic_directory(directory: Path) -> Iterator[Path]:
    """Yield a directory to fill; it becomes `directory` at the end, or is deleted on an exception.

    What killed processes have left unfinished beside it is deleted first.

    Raises:
        BadInput: the directory cannot be written.
    """
    unfinished = directory.with_name(storage.unfinished_name(directory.name))
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        storage.clear_unfinished(directory.parent)
        # In a container, processes that follow each other often have the same number.
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            yield unfinished
            os.rename(unfinished, directory)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise BadInput(
            f"{directory}: could not be written: {reason}. Nothing is left of it; make "
            "room, or give another --export_dir"
        ) from None


def settings(run: "Experiment", format: str, weights: str) -> dict[str, Any]:
    """Describe an export, for people and for programs without TensorFlow.

    Args:
        run: The restored run that is exported.
        format: "saved_model", "litert", "ctranslate2" or "keras".
        weights: The type that the weights are stored in.
    """
    saved = config.flat(run.config)
    return {
        "t2t_repro": t2t_repro.__version__,
        "format": format,
        "format_version": FORMAT_VERSION,
        "weights": weights,
        "output": "trees" if run.problem.postprocess else "text",
        "problem": run.config.problem,
        "variant": run.config.variant,
        "training_step": int(run.averaged[-1].removeprefix("step-")),
        "averaged_checkpoints": list(run.averaged),
        "vocabulary_sha256": run.vocabulary.fingerprint,
        **{
            group: {field.name: saved[field.name] for of, field in config.fields() if of == group}
            for group in ("model", "decode")
        },
    }
