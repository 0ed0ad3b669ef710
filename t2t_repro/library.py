"""Translation in a program of your own: load a trained run or an export.

import t2t_repro

model = t2t_repro.load("runs/toy_ende")
model.translate(["The house is old."])  # ['Das Haus ist alt.']
"""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

from pipelines.errors import BadInput
from t2t_repro import experiment
from t2t_repro.decoding.translator import Translate, translate_lines
from t2t_repro.serving import saved_model
from t2t_repro.workdir import Workdir


class LoadedModel:
    """A trained model that translates text; `load` makes it.

    Args:
        function: A `Translator`, or the `serving_default` signature of an export.

    Example:
        load("runs/toy_ende").translate(["The house is old."])  # ['Das Haus ist alt.']
    """

    def __init__(self, function: Translate):
        self._function = function

    def translate(self, sentences: Iterable[str]) -> list[str]:
        """Translate sentences, in their order.

        A sentence of more than `max_source_length` pieces loses its end, with a UserWarning. A
        model of a parsing problem returns a tree in brackets for each sentence.

        Raises:
            TypeError: `sentences` is one string.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences: wanted a list of strings, got one string")
        lines = list(translate_lines(self._function, sentences))
        if cut := [number for number, line in enumerate(lines) if line.cut]:
            warnings.warn(f"too long, the end was cut off: sentences {cut}", stacklevel=2)
        return [line.translation for line in lines]


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """Load a trained run, with the mean of its last checkpoints, or a SavedModel export.

    Args:
        path: A work directory; or an export, `--export_dir` or one version in it.

    Raises:
        BadInput: there is neither a trained run nor a usable export at `path`.
    """
    workdir = Workdir(Path(path))
    if workdir.holds_run:
        return LoadedModel(experiment.restore(workdir, {}).translator(postprocess=True))
    if not any(workdir.path.glob("saved_model.pb")) and not any(workdir.path.glob("[0-9]*")):
        raise BadInput(
            f"{path}: no run (config.yaml) and no export (saved_model.pb) there; wanted a work "
            "directory or an --export_dir"
        )
    return LoadedModel(saved_model.load(workdir.path))
