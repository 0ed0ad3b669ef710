"""Where configuration, problem, vocabulary and model meet: train, and what follows training.

A run lives in its work directory:

    config.yaml         the resolved configuration; every later command reads it there
    vocabulary.model    the sentencepiece model, and vocabulary.vocab, its pieces for people to read
    prepared/           the splits as ids, see `corpus`
    checkpoints/        weights, optimizer and place in the data
    events.out.*        TensorBoard
    results.json        scores by split, and under "cost" what training cost
"""

import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipelines.errors import BadInput
from pipelines.vocabulary import Vocabulary
from t2t_repro import config as configs
from t2t_repro.config import Config
from t2t_repro.corpus import Corpus
from t2t_repro.decoding.translator import Translator, translate_lines
from t2t_repro.distributed.cluster import Cluster
from t2t_repro.distributed.strategy import device_names
from t2t_repro.model.transformer import Transformer
from t2t_repro.paper import cost
from t2t_repro.problems import PROBLEMS, Problem, Scores
from t2t_repro.training.checkpoints import average_last
from t2t_repro.training.dev_scores import Validation, each_pair_once
from t2t_repro.training.loop import Loop
from t2t_repro.training.trainer import Trainer

_VISIBLE_AFTER = 90.0  # seconds; NFS looks at least once a minute by default


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

    @cached_property
    def cluster(self) -> Cluster:
        """The workers that train it."""
        return Cluster(self.strategy)

    @property
    def checkpoint_dir(self) -> Path:
        """Where the checkpoints are."""
        return self.workdir / "checkpoints"

    def translator(self) -> Translator:
        """The run's decoder from text to text, for scores: it answers the target."""
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


def begin_together(
    problem: str | None,
    variant: str | None,
    workdir: Path,
    overrides: Mapping[str, Any],
    cluster: Cluster,
) -> Config:
    """`begin` for every worker of a cluster; of several, the chief prepares all text meanwhile.

    The others then find a run in the work directory, which they share with the chief.

    Raises:
        BadInput: as `begin`; or this worker does not see what the chief wrote, or has other flags.
    """
    if cluster.size == 1:
        return begin(problem, variant, overrides, workdir)

    def make() -> None:
        config = begin(problem, variant, overrides, workdir)
        corpus = Corpus(config, workdir)
        corpus.train()
        corpus.held_out("dev", workdir / "prepared")
        _save_config(config, workdir)

    cluster.by_chief(make)
    path = workdir / "config.yaml"
    (wanted, *_), *_ = cluster.share(_checksum(path)).numpy()
    # A network file system may take its time to show to one host what another has written.
    until = time.monotonic() + _VISIBLE_AFTER
    while _checksum(path) != wanted:
        if time.monotonic() > until:
            raise BadInput(
                f"{path}: not the file that {cluster.names[0]} has written; --workdir must be one "
                "directory that all hosts share"
            )
        time.sleep(0.5)
    saved, config = configs.load(path), begin(problem, variant, overrides, workdir)
    old, new = configs.flat(saved), configs.flat(config)
    if changed := [name for name in new if new[name] != old[name]]:
        raise BadInput(
            f"{', '.join(changed)}: another value than {cluster.names[0]} was started with; give "
            "all workers the same flags"
        )
    return config


def build(config: Config, workdir: Path, strategy: tf.distribute.Strategy) -> Experiment:
    """A model with its initial weights and its vocabulary, learnt on first use."""
    corpus = Corpus(config, workdir, made=Cluster(strategy).size > 1)
    vocabulary = corpus.vocabulary
    # Not before: where TFDS prepares text, it draws random numbers, too.
    keras.utils.set_random_seed(config.train.seed)
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


def train(experiment: Experiment, parts: int = 1) -> None:
    """Trains to `train_steps`, or goes on from the newest checkpoint; see `Loop.run`.

    Args:
        experiment: The run.
        parts: How many a replica makes of its share of a batch, unless `accumulate` is more.
    """
    config, corpus = experiment.config, experiment.corpus
    batching, dev = corpus.batching(), corpus.held_out("dev", experiment.workdir / "prepared")
    if not corpus.made:
        _save_config(config, experiment.workdir)
    if experiment.cluster.is_chief:
        print(f"model: {_described(experiment)}", file=sys.stderr)
    parts = max(parts, config.train.accumulate)
    if parts > 1 and experiment.cluster.is_chief:
        print(f"each replica takes its share of a batch in {parts} parts", file=sys.stderr)
    in_parts = replace(config.train, accumulate=parts)
    trainer = Trainer(experiment.model, in_parts, experiment.strategy)
    validation = Validation(
        config, experiment.problem, trainer, experiment.translator(), dev, experiment.workdir
    )
    directory = experiment.checkpoint_dir
    loop = Loop(trainer, config, batching, directory, validation.report, validation.validate)
    loop.run()
    if experiment.cluster.is_chief:
        steps = int(trainer.optimizer.iterations.numpy())
        _tell_cost(experiment, loop.batching.plan, steps, float(loop.seconds))


def evaluate(experiment: Experiment, split: str) -> Scores:
    """Scores of a split, also written to results.json."""
    _results(experiment.workdir)  # damage is told before the work
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
    _add_result(experiment.workdir, split, scores)
    return scores


def _tell_cost(
    experiment: Experiment,
    plan: Callable[[int], Sequence[Any]],
    steps: int,
    seconds: float,
) -> None:
    """Prints what training has cost, and adds it to results.json."""
    model, precision = experiment.model, experiment.config.train.precision
    spent = cost.run_cost(
        model.config,
        model.embedding.matrix.shape[0],
        precision,
        cost.trained_positions(plan, steps),
        seconds,
        device_names(experiment.strategy) * experiment.cluster.size,
    )
    print(cost.lines(spent), file=sys.stderr)
    _add_result(experiment.workdir, "cost", spent)


def _described(experiment: Experiment) -> str:
    """How large the model is, and where it is trained."""
    weights = sum(int(np.prod(variable.shape)) for variable in experiment.model.trainable_variables)
    devices = ", ".join(experiment.strategy.extended.worker_devices)
    workers = experiment.cluster.size
    of_each = f", and so on {workers} workers in all" if workers > 1 else ""
    return f"{weights:,} trainable parameters on {devices}{of_each}"


def _checksum(path: Path) -> int:
    """Of a file; -1 if there is none."""
    return zlib.crc32(path.read_bytes()) if path.exists() else -1


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


def _results(workdir: Path) -> dict[str, Any]:
    """results.json: the scores found before, by split, and the cost under "cost"."""
    path = workdir / "results.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError:
        raise BadInput(
            f"{path}: damaged, no JSON; move it away and run the same command again"
        ) from None


def _add_result(workdir: Path, name: str, result: Mapping[str, Any]) -> None:
    """Puts a split's scores, or the cost, into results.json and keeps the rest."""
    text = json.dumps(_results(workdir) | {name: result}, indent=2) + "\n"
    _write(workdir / "results.json", lambda file: file.write_text(text, encoding="utf-8"))


def _write(path: Path, write: Any) -> None:
    """Lets `write` fill a temporary file, which then takes the place of `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write(temporary)
    os.replace(temporary, path)
