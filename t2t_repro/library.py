"""Translation in a program of your own: load a trained run or an export.

import t2t_repro

model = t2t_repro.load("runs/toy_ende")
model.translate(["The house is old."])
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t2t_repro import experiment
from t2t_repro.decoding.translator import Translate, Translator, translate_lines
from t2t_repro.serving import saved_model
from t2t_repro.workdir import Workdir


class LoadedModel:
    """A trained model that translates text; `load` makes it.

    Args:
        function: A `Translator`, or the `serving_default` signature of an export.
    """

    def __init__(self, function: Translate):
        self._function = function

    def translate(self, sentences: Iterable[str]) -> list[str]:
        """Translate sentences, each at most `max_source_length` pieces, in their order.

        A model of a parsing problem returns a tree in brackets for each sentence.
        """
        return [line.translation for line in translate_lines(self._function, sentences)]


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """Load a trained run, with the mean of its last checkpoints, or a SavedModel export.

    Args:
        path: A work directory; or an export, `--export_dir` or one version in it.

    Raises:
        BadInput: there is neither a trained run nor a usable export at `path`.
    """
    workdir = Workdir(Path(path))
    if workdir.holds_run:
        return LoadedModel(run_translator(workdir, {}))
    return LoadedModel(saved_model.load(Path(path)))


def run_translator(workdir: Workdir, overrides: Mapping[str, Any]) -> Translator:
    """Restore a run for translation, with its problem's post-processing.

    Args:
        workdir: The run's work directory.
        overrides: Decode settings to replace.

    Raises:
        BadInput: as `experiment.restore`.
    """
    run = experiment.restore(workdir, overrides)
    parts = run.model, run.vocabulary, run.config.decode
    return Translator(*parts, postprocess=run.problem.postprocess)
