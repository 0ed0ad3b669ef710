"""Scores on the dev set during training, by real decoding, and all of TensorBoard."""

import sys
from functools import cached_property
from itertools import islice
from pathlib import Path

import tensorflow as tf
from tqdm import tqdm

from pipelines.batching import Batching
from pipelines.shards import EncodedSplit
from t2t_repro.config import Config
from t2t_repro.decoding.translator import Translator, translate_lines
from t2t_repro.distributed.cluster import Cluster
from t2t_repro.paper.attention_figure import attention_figure
from t2t_repro.problems import Problem
from t2t_repro.training.trainer import Trainer

_SAMPLES = 5  # translations shown as text in TensorBoard
_DRAWN_PIECES = 40  # at most, on each side of the pair whose attention is drawn


class Validation:
    """What a run writes to TensorBoard, and its dev scores after each checkpoint.

    Of several workers only the chief writes and translates; the perplexity they find together.

    Args:
        config: The run's configuration.
        problem: Its problem.
        trainer: For the perplexity.
        translator: For the translations.
        dev: The dev pairs as ids; perplexity is over all of them.
        workdir: Where the event files go.
    """

    def __init__(
        self,
        config: Config,
        problem: Problem,
        trainer: Trainer,
        translator: Translator,
        dev: EncodedSplit,
        workdir: Path,
    ):
        self.config, self.problem = config, problem
        self.trainer, self.translator, self.dev = trainer, translator, dev
        self.is_chief = Cluster(trainer.strategy).is_chief
        examples = problem.examples("dev", config) if self.is_chief else ()
        self.pairs = list(islice(examples, config.train.eval_sentences))
        self.workdir = workdir

    @cached_property
    def writer(self) -> tf.summary.SummaryWriter:
        """The event file; none is made until there is something to write."""
        return tf.summary.create_file_writer(str(self.workdir))

    @cached_property
    def drawn(self) -> list[list[int]] | None:
        """The ids of the first dev pair that is short enough to be drawn, the same at each step."""
        for pair in self.pairs:
            both = self.translator.vocabulary.encode([pair["source"], pair["target"]])
            if max(map(len, both)) <= _DRAWN_PIECES:
                return both
        return None

    def report(self, step: int, values: dict[str, float]) -> None:
        """Training values: train/<name>."""
        self._write(step, {f"train/{name}": value for name, value in values.items()})

    def validate(self, step: int) -> None:
        """Dev perplexity, BLEU of the current weights, samples as text, attention as a picture."""
        batches = each_pair_once(self.dev, self.config)
        values = {"dev/perplexity": self.trainer.perplexity(batches)}
        if not self.is_chief:
            return  # it waits in its next step for the chief
        if self.pairs:
            name, value = self._translate(step)
            values[f"dev/{name}"] = value
        if self.drawn:
            self._draw(step, *self.drawn)
        self._write(step, values)
        shown = ", ".join(f"{name} {value:.2f}" for name, value in values.items())
        tqdm.write(f"step {step:,}: {shown}", file=sys.stderr)

    def _translate(self, step: int) -> tuple[str, float]:
        """The problem's main score: (name, value)."""
        lines = [pair["source"] for pair in self.pairs]
        hypotheses = [result.translation for result in translate_lines(self.translator, lines)]
        references = [pair["target"] for pair in self.pairs]
        with self.writer.as_default(step):
            tf.summary.text("dev/samples", _table(lines, references, hypotheses))
        name, value = next(iter(self.problem.score(hypotheses, references, self.config).items()))
        return name, float(value)

    def _draw(self, step: int, source: list[int], target: list[int]) -> None:
        """Where each target piece's heads look in the source: how an alignment is learnt."""
        from t2t_repro.paper.attention_picture import picture  # takes half a second, by matplotlib

        figure = attention_figure(self.trainer.model, self.translator.vocabulary, source, target)
        image = tf.io.decode_png(picture(figure, figure.view("cross"), dpi=90))
        with self.writer.as_default(step):
            tf.summary.image("dev/attention", image[None])

    def _write(self, step: int, values: dict[str, float]) -> None:
        if not self.is_chief:
            return
        with self.writer.as_default(step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self.writer.flush()


def each_pair_once(split: EncodedSplit, config: Config) -> tf.data.Dataset:
    """Every pair of a split once, in batches of the training size."""
    data = config.data
    batching = Batching(
        split,
        tokens_per_batch=data.tokens_per_batch,
        max_shapes=data.max_shapes,
        count_padding=data.count_padding,
        seed=0,
    )
    return batching.batches(epoch=0)


def _table(*columns: list[str]) -> str:
    """The first samples as a Markdown table: source, reference, translation."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in zip(*columns, strict=True)]
    head = [["source", "reference", "translation"], ["---"] * 3]
    return "\n".join("| " + " | ".join(row) + " |" for row in head + rows[:_SAMPLES])
