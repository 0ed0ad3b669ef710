"""Translate with a SavedModel, in a process that imports TensorFlow."""

import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipelines.vocabulary import EOS, PAD
from t2t_repro.decoding.lines import Line
from t2t_repro.decoding.translator import Translate, best_lines
from t2t_repro.paper.attention_figure import AttentionFigure
from t2t_repro.serving import export_files, saved_model

_PIECES = "source_pieces", "target_pieces"


class Translator:
    """A SavedModel with text signatures, ready to translate.

    Args:
        directory: The export, `<export_dir>/<version>`.
        threads: Threads of each operation, for the whole process; None means one for each core.
            Must be given before TensorFlow computes anything.

    Raises:
        BadInput: The directory is not an export, is damaged, or was made with `--ids_only`.
    """

    def __init__(self, directory: Path, threads: int | None = None):
        limit_threads(threads)
        self._signatures = saved_model.load(directory)
        self.draws_attention = "attention" in self._signatures
        scores = typing.cast(Any, self._signatures["nbest"]).structured_outputs["scores"]
        self.beam_size: int = scores.shape[1] or 0
        if not self.beam_size:
            raise export_files.unusable(directory, "its 'nbest' has no number of hypotheses")

    def nbest(self, sentences: Sequence[str], count: int) -> list[list[Line]]:
        """Translate sentences, and return the `count` best translations of each, best first.

        A sentence of more than `max_source_length` pieces loses its end; its lines are marked as
        cut. Where the search finds fewer than `count` hypotheses, the last are empty with a score
        of -1e9. White space alone translates to the empty string, with score 0.
        """
        signature = self._signatures["serving_default" if count == 1 else "nbest"]
        return list(best_lines(signature, count)(sentences, max(1, len(sentences))))

    def translate_ids(self, sources: Sequence[Sequence[int]]) -> list[tuple[list[int], float]]:
        """Translate sentences of ids, each ending with EOS: the best hypothesis and its score."""
        return best_ids(self._signatures["translate_ids"], sources)

    def attention(self, sentence: str) -> dict[str, Any]:
        """Return the outputs of the signature `attention` for a sentence, if `draws_attention`.

        Strings are decoded; weights are float32 arrays [n, h, q, k], of n layers and h heads. A
        sentence of more than 199 pieces loses its end.
        """
        outputs = self._signatures["attention"](text=tf.constant(sentence))
        values = {name: value.numpy() for name, value in outputs.items()}
        texts = {side: [text.decode() for text in values[side]] for side in _PIECES}
        return values | texts | {"translation": values["translation"].decode()}

    def attention_figure(self, sentence: str) -> AttentionFigure:
        """Return these outputs as a figure."""
        found = self.attention(sentence)
        source, target = (found[side] for side in _PIECES)
        return AttentionFigure.of_pair(sentence, found["translation"], source, target, found)


def limit_threads(threads: int | None) -> None:
    """Set the threads of each operation, if given, before TensorFlow computes anything."""
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)


def best_ids(
    translate_ids: Translate, sources: Sequence[Sequence[int]]
) -> list[tuple[list[int], float]]:
    """Call the signature `translate_ids`; see the method of the same name."""
    outputs = translate_ids(ids=tf.ragged.constant(sources).to_tensor(PAD))
    rows = outputs["ids"].numpy().tolist()
    ids = [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]
    return list(zip(ids, outputs["score"].numpy().tolist(), strict=True))
