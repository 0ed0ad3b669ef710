"""Export as a preset: one folder in KerasHub's layout, for Python programs that go on with Keras.

`model.preset` and `pipelines.vocabulary` say which files it has; settings.json is there as in every
export, with the decode settings.
"""

import typing
from collections.abc import Sequence
from pathlib import Path

from pipelines.parsing import tree_graph
from pipelines.vocabulary import Vocabulary
from t2t_repro.decoding import translator
from t2t_repro.decoding.lines import Line
from t2t_repro.model.transformer import Transformer
from t2t_repro.serving import export_files
from t2t_repro.serving.export_directory import atomic_directory, settings
from t2t_repro.serving.saved_model_translator import best_ids, limit_threads

if typing.TYPE_CHECKING:
    from t2t_repro.experiment import Experiment


def save(run: "Experiment", directory: Path, weights: str = "float32") -> None:
    """Write a preset; the directory appears whole or not at all.

    Args:
        run: The restored run.
        directory: The directory to make, <export_dir>/<version>.
        weights: "float32", the type that the weights are stored in.

    Raises:
        BadInput: the directory cannot be written.
    """
    with atomic_directory(directory) as unfinished:
        run.model.save_to_preset(unfinished)
        run.vocabulary.save_to_preset(unfinished)
        export_files.write_settings(unfinished, settings(run, "keras", weights))


class Translator:
    """A preset that `save` wrote, ready to translate.

    Args:
        directory: The export, `<export_dir>/<version>`.
        threads: Threads of each operation, see `limit_threads`.

    Raises:
        BadInput: The directory is not a preset of this project, or is damaged.
    """

    draws_attention = False

    def __init__(self, directory: Path, threads: int | None = None):
        limit_threads(threads)
        export_files.check(directory, "model.weights.h5")
        described = export_files.settings(directory)
        decode = export_files.decode(directory, described)
        trees = described.get("output") == "trees"
        self._translator = translator.Translator(
            Transformer.from_preset(directory),
            Vocabulary.from_preset(directory),
            decode,
            postprocess=tree_graph.bracketed if trees else None,
        )
        self.beam_size = decode.beam_size

    def nbest(self, sentences: Sequence[str], count: int) -> list[list[Line]]:
        """Translate as a SavedModel does, see `saved_model_translator`."""
        return list(self._translator.lines(count)(sentences, max(1, len(sentences))))

    def translate_ids(self, sources: Sequence[Sequence[int]]) -> list[tuple[list[int], float]]:
        """Translate sentences of ids, each ending with EOS: the best hypothesis and its score."""
        return best_ids(self._translator.translate_ids, sources)
