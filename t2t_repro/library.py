"""Translation in a program of your own: load a trained run or an export.

import t2t_repro

model = t2t_repro.load("runs/toy_ende")
model.translate(["The house is old."])  # ['Das Haus ist alt.']
"""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

from t2t_repro import tensorflow_import
from t2t_repro.decoding.lines import Lines
from t2t_repro.serving import exports
from t2t_repro.workdir import Workdir


class LoadedModel:
    """A trained model that translates text; `load` makes it.

    Args:
        lines: A function from lines to their translations, as `serving.exports` loads it.

    Examples:
        >>> load("runs/toy_ende").translate(["The house is old."])
        ['Das Haus ist alt.']
    """

    def __init__(self, lines: Lines):
        self._lines = lines

    def translate(self, sentences: Iterable[str]) -> list[str]:
        """Translate sentences, in their order.

        A sentence of more than `max_source_length` pieces loses its end, with a UserWarning. A
        model of a parsing problem returns a tree in brackets for each sentence.

        Raises:
            TypeError: `sentences` is one string, or one of them is not a string.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences: wanted a list of strings, got one string")
        sentences = list(sentences)
        for number, sentence in enumerate(sentences):
            if not isinstance(sentence, str):
                kind = type(sentence).__name__
                raise TypeError(f"sentences: wanted strings, got {kind} at {number}")
        lines = [best for (best,) in self._lines(sentences, _WINDOW)]
        if cut := [number for number, line in enumerate(lines) if line.cut]:
            warnings.warn(f"too long, the end was cut off: sentences {cut}", stacklevel=2)
        return [line.translation for line in lines]


_WINDOW = 4096  # sentences that are sorted by length into batches


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """Load a trained run, with the mean of its last checkpoints, or an export of any format.

    Args:
        path: A work directory; or an export, `--export_dir` or one version in it.

    Raises:
        BadInput: there is neither a trained run nor a usable export at `path`, or Keras has another
            backend than TensorFlow, which a run and a preset need.
    """
    workdir = Workdir(Path(path))
    if not workdir.holds_run:
        return LoadedModel(exports.load(workdir.path))
    tensorflow_import.check_backend()
    from t2t_repro import experiment  # imports TensorFlow, which exports of two formats do without

    return LoadedModel(experiment.restore(workdir, {}).translator(postprocess=True).lines())
