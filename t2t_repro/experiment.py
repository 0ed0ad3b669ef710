"""Where configuration, problem, vocabulary and model meet: train, and what follows training.

A run lives in its work directory:

    config.yaml         the resolved configuration; every later command reads it there
    vocabulary.model    the sentencepiece model, and vocabulary.vocab, its pieces for people to read
    prepared/           the splits as ids, see `corpus`
    checkpoints/        weights, optimizer and place in the data
    events.out.*        TensorBoard
    results.json        scores by split
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipelines.errors import BadInput
from pipelines.vocabulary import Vocabulary
from t2t_repro import config as configs
from t2t_repro.checkpoints import average_last
from t2t_repro.config import Config
from t2t_repro.corpus import Corpus
from t2t_repro.loop import Loop
from t2t_repro.problems import PROBLEMS, Problem, Scores
from t2t_repro.trainer import Trainer
from t2t_repro.transformer import Transformer
from t2t_repro.translator import Translator, translate_lines
from t2t_repro.validation import Validation, each_pair_once


@dataclass(frozen=True)
class Experiment:
    """One run, put together."""

    config: Config
    workdir: Path
    corpus: Corpus
    vocabulary: Vocabulary
    model: Transformer
    strategy: tf.distribute.Strategy

    @property
    def problem(self) -> Problem:
        """The run's problem."""
        return PROBLEMS[self.config.problem]

    @property
    def checkpoint_dir(self) -> Path:
        """Where the checkpoints are."""
        return self.workdir / "checkpoints"

    def translator(self) -> Translator:
        """The run's decoder from text to text."""
        return Translator(self.model, self.vocabulary, self.config.decode)


def begin(
    problem: str | None, variant: str | None, overrides: Mapping[str, Any], workdir: Path
) -> Config:
    """The configuration to train with; a work directory that has one already keeps it.

    It is saved by `train`, once all text has been read: a start that fails leaves no run.

    Raises:
        BadInput: unknown names or values, or a work directory of another problem or configuration,
            or one that cannot be used.
    """
    _check_writable(workdir)
    path = workdir / "config.yaml"
    if not path.exists():
        if (workdir / "checkpoints").exists():
            raise BadInput(f"{path}: missing, beside checkpoints; restore it, or use --workdir=NEW")
        return configs.resolve(problem or "toy_ende", variant or "base", overrides)
    saved = configs.load(path)
    if problem not in (None, saved.problem) or variant not in (None, saved.variant):
        raise BadInput(
            f"{workdir} holds a run of {saved.problem}, variant {saved.variant}; wanted "
            f"{problem or saved.problem}, variant {variant or saved.variant}; use another --workdir"
        )
    return _override(saved, overrides, workdir)


def build(config: Config, workdir: Path, strategy: tf.distribute.Strategy) -> Experiment:
    """A model with its initial weights and its vocabulary, learnt on first use."""
    keras.utils.set_random_seed(config.train.seed)
    corpus = Corpus(config, workdir)
    vocabulary = corpus.vocabulary
    with strategy.scope():
        rows = config.model.embedding_rows or vocabulary.size
        if rows < vocabulary.size:
            raise BadInput(
                f"embedding_rows: wanted at least the vocabulary's {vocabulary.size}, got {rows}"
            )
        model = Transformer(config.model, rows, config.train.precision)
    return Experiment(config, workdir, corpus, vocabulary, model, strategy)


def restore(workdir: Path, overrides: Mapping[str, Any]) -> Experiment:
    """A trained run with the mean of its last checkpoints as weights.

    Args:
        workdir: The run.
        overrides: Decode settings and where the data is, for this command alone.

    Raises:
        BadInput: no run there, one without a usable checkpoint, or other settings than it has.
    """
    config = _override(configs.of_run(workdir), overrides, workdir)
    experiment = build(config, workdir, tf.distribute.get_strategy())  # decoding takes one device
    count = average_last(experiment.model, experiment.checkpoint_dir, config.decode.average_last)
    print(f"weights: mean of the last {count} checkpoints", file=sys.stderr)
    return experiment


def prepare(config: Config, workdir: Path, beam_options: list[str] | None) -> None:
    """What `train` does before its first step; then `train` goes on from there.

    Args:
        config: From `begin`.
        workdir: The run.
        beam_options: Prepare the training text on Apache Beam, with these options; None: here.
    """
    corpus = Corpus(config, workdir)
    corpus.prepare_train(beam_options)
    corpus.held_out("dev", workdir / "prepared")
    _save_config(config, workdir)


def train(experiment: Experiment) -> None:
    """Trains to `train_steps`, or goes on from the newest checkpoint; see `Loop.run`."""
    config, corpus = experiment.config, experiment.corpus
    data, dev = corpus.train(), corpus.held_out("dev", experiment.workdir / "prepared")
    _save_config(config, experiment.workdir)
    devices = experiment.strategy.extended.worker_devices
    weights = sum(int(np.prod(variable.shape)) for variable in experiment.model.trainable_variables)
    print(f"model: {weights:,} trainable parameters on {', '.join(devices)}", file=sys.stderr)
    trainer = Trainer(experiment.model, config.train, experiment.strategy)
    validation = Validation(
        config, experiment.problem, trainer, experiment.translator(), dev, experiment.workdir
    )
    directory = experiment.checkpoint_dir
    Loop(trainer, config, data, directory, validation.report, validation.validate).run()


def evaluate(experiment: Experiment, split: str) -> Scores:
    """Scores of a split, also written to results.json."""
    path = experiment.workdir / "results.json"
    earlier = _results(path)
    pairs = list(experiment.problem.examples(split, experiment.config))
    results = translate_lines(experiment.translator(), [pair["source"] for pair in pairs])
    hypotheses = [result.translation for result in results]
    references = [pair["target"] for pair in pairs]
    trainer = Trainer(experiment.model, experiment.config.train, experiment.strategy)
    scores = experiment.problem.score(hypotheses, references, experiment.config)
    # Not in the run's own folder: the files that are scored may change from one call to the next.
    with tempfile.TemporaryDirectory() as folder:
        prepared = experiment.corpus.held_out(split, Path(folder))
        batches = each_pair_once(prepared, experiment.config)
        scores = scores | {"perplexity": trainer.perplexity(batches), "split": split}
    text = json.dumps(earlier | {split: scores}, indent=2) + "\n"
    _write(path, lambda file: file.write_text(text, encoding="utf-8"))
    return scores


def _save_config(config: Config, workdir: Path) -> None:
    """Makes a run of the work directory: from now on its text is not read again."""
    _write(workdir / "config.yaml", lambda file: configs.save(config, file))


def _override(saved: Config, overrides: Mapping[str, Any], workdir: Path) -> Config:
    """A run's configuration with what may change replaced; raises BadInput for the rest."""
    config = configs.override(saved, overrides)
    if changed := configs.conflicts(saved, config):
        raise BadInput(
            f"{workdir} holds a run with other settings: {', '.join(changed)}; leave these flags "
            "out to go on with it, or use another --workdir"
        )
    return config


def _check_writable(workdir: Path) -> None:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=workdir).close()
    except OSError as error:
        raise BadInput(
            f"{workdir}: cannot be written to ({error.strerror}); wanted a directory for the run, "
            "new or of an earlier one: give another --workdir"
        ) from None


def _results(path: Path) -> dict[str, Scores]:
    """The scores found before, by split."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        raise BadInput(f"{path}: damaged, no JSON; move it away and evaluate again") from None


def _write(path: Path, write: Any) -> None:
    """Lets `write` fill a temporary file, which then takes the place of `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write(temporary)
    os.replace(temporary, path)
