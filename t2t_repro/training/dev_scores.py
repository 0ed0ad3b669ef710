"""Dev scores during training, by real decoding, and everything that TensorBoard shows."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice

import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams
from tqdm import tqdm

from pipelines.batching import small_batches
from pipelines.errors import BadInput, first_line
from pipelines.shards import EncodedSplit
from t2t_repro import config as configs
from t2t_repro.config import Config
from t2t_repro.decoding.translator import Translator, translate_lines
from t2t_repro.distributed.cluster import Cluster
from t2t_repro.paper.attention_figure import attention_figure
from t2t_repro.problems import Problem, Scores
from t2t_repro.training.perplexity import Perplexity
from t2t_repro.training.trainer import Trainer
from t2t_repro.workdir import Workdir

_SAMPLES = 5  # translations shown as text in TensorBoard
_DRAWN_PIECES = 40  # limit on each side of the pair whose attention is drawn


class DevScores:
    """The scores of a run on its dev set after each checkpoint, and its TensorBoard event file.

    All workers compute the perplexity together; only the chief translates and writes.

    Args:
        config: The run's configuration.
        problem: The run's problem.
        trainer: Its model is scored, on its replicas and in its micro-batches.
        make_translator: Makes what translates the first `eval_sentences` dev sentences; called
            by the first report, since it takes 0.3 s.
        dev: The dev pairs as ids; perplexity is over all of them.
        workdir: The work directory, which gets the event file.
    """

    def __init__(
        self,
        config: Config,
        problem: Problem,
        trainer: Trainer,
        make_translator: Callable[[], Translator],
        dev: EncodedSplit,
        workdir: Workdir,
    ):
        self.config, self.problem = config, problem
        self.model, self.make_translator, self.dev = trainer.model, make_translator, dev
        self.perplexity = Perplexity(trainer.model, trainer.strategy, trainer.micro_batches)
        self.is_chief = Cluster(trainer.strategy).is_chief
        examples = problem.examples("dev", config) if self.is_chief else ()
        self.pairs = list(islice(examples, config.train.eval_sentences))
        self.workdir = workdir
        self._is_unwritable = False  # the event file, as on a full disk

    @cached_property
    def translator(self) -> Translator:
        """The translator, with the current weights."""
        return self.make_translator()

    @cached_property
    def writer(self) -> tf.summary.SummaryWriter:
        """The writer of the event file, which is created by the first thing to write.

        The file begins with the run's settings: as text, and for TensorBoard's HParams tab, which
        compares the runs of a directory by their settings and scores.
        """
        writer = tf.summary.create_file_writer(str(self.workdir.path))
        with writer.as_default(0):
            tf.summary.text("config", _settings_text(self.config))
            hparams.hparams(_hparams(self.config), trial_id=str(self.workdir.path))
        return writer

    @cached_property
    def drawn(self) -> list[list[int]] | None:
        """The ids of the first dev pair that is short enough to draw, the same at each step.

        None if there is no such pair, or no attention weights to draw.
        """
        if not self.model.has_attention_weights:
            return None
        for pair in self.pairs:
            both = self.translator.vocabulary.encode([pair["source"], pair["target"]])
            if max(map(len, both)) <= _DRAWN_PIECES:
                return both
        return None

    def report(self, step: int, values: Mapping[str, float | np.ndarray]) -> None:
        """Write training statistics to TensorBoard as train/<name>."""
        self._write(step, {f"train/{name}": value for name, value in values.items()})
        if self.pairs:
            _ = self.translator  # so that a TensorFlow Text that does not work is found now

    def validate(self, step: int) -> dict[str, float]:
        """Write dev perplexity, the main score, sample translations and a picture of attention.

        All of them use the current weights, without averaging over checkpoints.

        Returns:
            The perplexity and, if sentences were translated, the main score, by name; in other
            workers than the chief the perplexity alone.

        Raises:
            BadInput: the memory is too little to translate.
        """
        self._is_unwritable = False  # a checkpoint was just saved: there is room again
        batches = small_batches(self.dev, self.config.data.tokens_per_batch)
        scores = {"perplexity": self.perplexity.of(batches)}
        if not self.is_chief:
            return scores  # the next step waits for the chief
        if self.pairs:
            name, value = self._translate(step)
            scores[name] = value
        if self.drawn:
            self._draw(step, *self.drawn)
        values = {f"dev/{name}": value for name, value in scores.items()}
        self._write(step, values)
        shown = ", ".join(f"{name} {value:.2f}" for name, value in values.items())
        tqdm.write(f"step {step:,}: {shown}", file=sys.stderr)
        return scores

    def _translate(self, step: int) -> tuple[str, float]:
        """Translate the dev sentences and return the problem's main score: (name, value)."""
        try:
            scores, hypotheses = score_pairs(self.translator, self.problem, self.config, self.pairs)
        except tf.errors.ResourceExhaustedError as error:
            raise BadInput(
                f"dev scores: too little memory to translate ({first_line(error)}); the "
                "checkpoint is saved, and the same command with --eval_sentences=0 resumes without "
                "translating"
            ) from None
        sources, references = ([pair[side] for pair in self.pairs] for side in ("source", "target"))
        table = _table(sources, references, hypotheses)
        self._summarise(step, lambda: tf.summary.text("dev/samples", table))
        name, value = next(iter(scores.items()))
        return name, float(value)

    def _draw(self, step: int, source: list[int], target: list[int]) -> None:
        """Draw the cross-attention of all heads, which shows how an alignment is learnt."""
        from t2t_repro.paper.attention_picture import picture  # imports matplotlib: half a second

        figure = attention_figure(self.model, self.translator.vocabulary, source, target)
        image = tf.io.decode_png(picture(figure, figure.view("cross"), dpi=90))
        self._summarise(step, lambda: tf.summary.image("dev/attention", image[None]))

    def _write(self, step: int, values: Mapping[str, float | np.ndarray]) -> None:
        def write() -> None:
            for name, value in values.items():
                kind = tf.summary.histogram if isinstance(value, np.ndarray) else tf.summary.scalar
                kind(name, value)

        if self.is_chief:
            self._summarise(step, write)

    def _summarise(self, step: int, write: Callable[[], object]) -> None:
        """Call `write`, which writes summaries of a step; if it cannot, warn and train on.

        A full disk must not end a training of many days before a checkpoint needs it.
        """
        # TensorFlow would make a new directory; the next checkpoint finds out that it has vanished.
        if self._is_unwritable or not self.workdir.is_in_place:
            return
        try:
            with self.writer.as_default(step):
                write()
            self.writer.flush()
        except tf.errors.OpError as error:
            self._is_unwritable = True
            # The next writer begins a new file, since this one's may end inside a summary.
            vars(self).pop("writer", None)
            warning = (
                f"warning: {self.workdir.path}: TensorBoard's file cannot be written "
                f"({first_line(error)}); it goes on with the next dev scores"
            )
            tqdm.write(warning, file=sys.stderr)


def score_pairs(
    translator: Translator, problem: Problem, config: Config, pairs: Sequence[Mapping[str, str]]
) -> tuple[Scores, list[str]]:
    """Translate the sources of pairs and score the result -> (scores, hypotheses)."""
    sources, references = ([pair[side] for pair in pairs] for side in ("source", "target"))
    hypotheses = [line.translation for line in translate_lines(translator, sources)]
    return problem.score(hypotheses, references, config, sources), hypotheses


def _settings_text(config: Config) -> str:
    """Return the configuration as Markdown: lines that are indented as code."""
    return "\n".join(f"    {name}: {value}" for name, value in configs.flat(config).items())


def _hparams(config: Config) -> dict[str, bool | int | float | str]:
    """Return the settings that HParams can show; files and settings without a value it cannot."""
    settings = {"problem": config.problem, "variant": config.variant} | configs.flat(config)
    return {k: v for k, v in settings.items() if isinstance(v, bool | int | float | str)}


def _table(*columns: list[str]) -> str:
    """Format the first samples as a Markdown table: source, reference, translation."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in zip(*columns, strict=True)]
    head = [["source", "reference", "translation"], ["---"] * 3]
    return "\n".join("| " + " | ".join(row) + " |" for row in head + rows[:_SAMPLES])
