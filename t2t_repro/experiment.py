"""Where configuration, problem, text and model meet: a run is built, restored, and trained."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipelines.corpus import Corpus
from pipelines.errors import BadInput
from pipelines.vocabulary import Vocabulary
from t2t_repro import low_resource, run_text
from t2t_repro.config import Config
from t2t_repro.decoding.aligner import Aligner
from t2t_repro.decoding.guided_translator import GuidedTranslator, SeededSampling
from t2t_repro.decoding.scorer import Scorer
from t2t_repro.decoding.translator import Translator
from t2t_repro.distributed.cluster import Cluster
from t2t_repro.model import flops
from t2t_repro.model.transformer import Transformer
from t2t_repro.problems import PROBLEMS, Problem
from t2t_repro.training.checkpoint_files import CheckpointFiles
from t2t_repro.training.checkpoints import average_last, restore_best, restore_step
from t2t_repro.training.dev_scores import DevScores
from t2t_repro.training.early_epoch import EarlyEpoch
from t2t_repro.training.freezing import freeze
from t2t_repro.training.init_from import OtherRun
from t2t_repro.training.loop import Loop
from t2t_repro.training.trainer import Trainer
from t2t_repro.workdir import Workdir


@dataclass(frozen=True)
class Experiment:
    """One run, put together."""

    config: Config
    workdir: Workdir
    corpus: Corpus
    vocabulary: Vocabulary
    model: Transformer
    strategy: tf.distribute.Strategy
    averaged: tuple[str, ...] = ()  # names of the checkpoints whose mean the weights are

    @property
    def problem(self) -> Problem:
        """The run's problem."""
        return PROBLEMS[self.config.problem]

    @cached_property
    def cluster(self) -> Cluster:
        """The workers that train the run."""
        return Cluster(self.strategy)

    def translator(self, postprocess: bool = False) -> Translator:
        """Return the run's decoder from text to text; scoring uses it without post-processing."""
        made = self.problem.postprocess if postprocess else None
        return Translator(self.model, self.vocabulary, self.config.decode, postprocess=made)

    def guided_translator(
        self,
        n_best: int,
        sampled: SeededSampling | None = None,
        others: Sequence["Experiment"] = (),
    ) -> GuidedTranslator:
        """Return a decoder that samples or takes prefixes, of this run or of several."""
        models = [self.model, *(other.model for other in others)]
        decode, postprocess = self.config.decode, self.problem.postprocess
        return GuidedTranslator(models, self.vocabulary, decode, postprocess, n_best, sampled)

    def aligner(self) -> Aligner:
        """Return the function from pairs of texts to the links between their words."""
        return Aligner(self.model, self.vocabulary, self.config.decode.max_source_length)

    def scorer(self) -> Scorer:
        """Return the function from pairs of texts to their probabilities."""
        return Scorer(self.model, self.vocabulary, self.config.decode)


def config_to_train(
    workdir: Workdir, problem: str | None, variant: str | None, overrides: Mapping[str, Any]
) -> Config:
    """Return the configuration to train with; a new run of `low_resource` is fitted to its text.

    Raises:
        BadInput: for the reasons of `Workdir.config_to_train`, or files are named that the problem
            does not read or that can be read only once, or the text cannot be read or is too large
            for `low_resource`, or more updates were made than are wanted, or their checkpoints are
            gone.
    """
    config = workdir.config_to_train(problem, variant, overrides)
    PROBLEMS[config.problem].check_flags(config.problem, overrides)
    run_text.check_files(config.data)
    _check_steps(config.train.train_steps, workdir)
    if config.variant != low_resource.VARIANT or workdir.holds_run:
        return config
    return low_resource.fit(config, PROBLEMS[config.problem].examples("train", config), overrides)


def _check_steps(train_steps: int, workdir: Workdir) -> None:
    """Raise BadInput if a run has more updates than wanted, or has lost its checkpoints."""
    done = CheckpointFiles(workdir.checkpoints).last_step
    if done > train_steps:
        raise BadInput(
            f"--train_steps={train_steps}: {workdir.path} has made {done:,} updates; wanted as "
            "many or more, or another --workdir"
        )
    if not done and "cost" in workdir.results():
        raise BadInput(
            f"{workdir.checkpoints}: no checkpoint, but results.json has the cost of training; "
            "bring the folder back, or use another --workdir"
        )


def check(config: Config, workdir: Workdir) -> OtherRun | None:
    """Look, before anything is written, for what would keep a run from its first step.

    Returns:
        The run that this one starts from; None if there is none, or it is needed no more.

    Raises:
        BadInput: `--stream` does not go together with the rest of the run, no checkpoint but the
            last would have the dev scores that others are compared by, no part has a name of
            `freeze`, or the run of `init_from` has a model of another shape.
    """
    run_text.check_stream(config)
    for name in ("early_stopping", "keep_best"):
        if not config.train.eval_share and getattr(config.train, name):
            raise BadInput(
                f"--{name} with --eval_share=0: only the last checkpoint has dev scores then; give "
                f"a greater share, or --{name}=0"
            )
    if config.train.freeze:  # a narrow model has the same parts
        narrow = replace(config.model, d_model=2, d_ff=1, num_heads=1, d_k=1, d_v=1)
        freeze(Transformer(narrow, rows=1), config.train.freeze)
    if not config.train.init_from or CheckpointFiles(workdir.checkpoints).last_step:
        return None
    other = OtherRun(Path(config.train.init_from))
    other.check_shape(config.model)
    return other


def build(
    config: Config, workdir: Workdir, strategy: tf.distribute.Strategy, strict: bool = False
) -> Experiment:
    """Build a run: learn, take or load its vocabulary, then make a model with initial weights.

    The configuration of the result has the length ratio of the training text, which is encoded for
    that.

    Args:
        config: The run's configuration.
        workdir: Its work directory. If it holds checkpoints, the run of `init_from` is not read.
        strategy: Where to train.
        strict: Whether a damaged checkpoint of the run of `init_from` is an error.

    Raises:
        BadInput: the text cannot be used, the shared directory holds another corpus,
            `embedding_rows` is less than the vocabulary, the run of `init_from` does not suit, or
            no part has a name of `freeze`.
    """
    other = check(config, workdir)
    corpus = run_text.corpus_of(config, workdir, read_only=Cluster(strategy).size > 1)
    _ = corpus.vocabulary  # before the seed: TFDS draws random numbers, too, when it prepares text
    keras.utils.set_random_seed(config.train.seed)
    experiment = _assemble(config, workdir, corpus, strategy)
    if other:
        other.copy_weights(experiment.model, experiment.vocabulary, strict)
        print(f"weights: of the run {other.path}", file=sys.stderr)
    freeze(experiment.model, config.train.freeze)
    return replace(experiment, config=run_text.with_length_ratio(config, corpus))


def _assemble(
    config: Config, workdir: Workdir, corpus: Corpus, strategy: tf.distribute.Strategy
) -> Experiment:
    vocabulary = corpus.vocabulary
    with strategy.scope():
        rows = _embedding_rows(config, vocabulary)
        model = Transformer(config.model, rows, config.train.precision)
    return Experiment(config, workdir, corpus, vocabulary, model, strategy)


def _embedding_rows(config: Config, vocabulary: Vocabulary) -> int:
    """Return the rows of the embedding matrix; raise BadInput if a size does not suit."""
    rows = config.model.embedding_rows or vocabulary.size
    if rows < vocabulary.size:
        raise BadInput(
            f"embedding_rows: wanted at least the vocabulary's {vocabulary.size}, got {rows}"
        )
    if config.decode.beam_size >= vocabulary.size:  # padding is never a continuation
        raise BadInput(
            f"beam_size: wanted less than the vocabulary's {vocabulary.size}, got "
            f"{config.decode.beam_size}"
        )
    flops.check_size(config.model, rows)
    return rows


def restore(
    workdir: Workdir,
    overrides: Mapping[str, Any],
    strict: bool = False,
    checkpoint: str = "average",
) -> Experiment:
    """Restore a trained run, with the mean of its last checkpoints as weights, or one of them.

    Args:
        workdir: The run's work directory.
        overrides: Decode settings and data locations, for this command only.
        strict: Whether a damaged checkpoint is an error, and not only a warning.
        checkpoint: The value of the flag `--checkpoint`: a step, "best", "last" or "average".

    Raises:
        BadInput: there is no run, it has no good checkpoint, or a setting may not be overridden.
    """
    config = workdir.config(overrides)
    strategy = tf.distribute.get_strategy()  # decoding uses one device
    experiment = _assemble(config, workdir, run_text.corpus_of(config, workdir), strategy)
    averaged = _set_weights(experiment, checkpoint, strict)
    shown = f"mean of the last {len(averaged)} checkpoints"
    if checkpoint != "average":
        shown = averaged[0]
    print(f"weights: {shown}", file=sys.stderr)
    return replace(experiment, averaged=averaged)


def _set_weights(experiment: Experiment, checkpoint: str, strict: bool) -> tuple[str, ...]:
    """Set the model's weights as `restore` says; return the names of their checkpoints."""
    model, directory = experiment.model, experiment.workdir.checkpoints
    config = experiment.config
    if checkpoint == "best":
        return restore_best(model, directory, strict)
    if checkpoint not in ("average", "last"):
        return restore_step(model, directory, int(checkpoint), strict)
    last = config.decode.average_last if checkpoint == "average" else 1
    since = config.train.cooldown_begins
    return average_last(model, directory, last, strict, config.train.keep_checkpoints, since)


def restore_several(
    workdirs: Sequence[Workdir],
    overrides: Mapping[str, Any],
    strict: bool = False,
    checkpoint: str = "average",
) -> list[Experiment]:
    """Restore runs that translate together, each as `restore` does.

    Raises:
        BadInput: for the reasons of `restore`, or the runs have different vocabularies.
    """
    first, *others = [(workdir, Vocabulary.load(workdir.path)) for workdir in workdirs]
    for workdir, vocabulary in others:
        if vocabulary.fingerprint != first[1].fingerprint:
            raise BadInput(
                f"{workdir.path}: another vocabulary than {first[0].path}; wanted runs with one "
                "vocabulary: train the second with --vocabulary=<the first>/vocabulary.model"
            )
    return [restore(workdir, overrides, strict, checkpoint) for workdir in workdirs]


def prepare(
    config: Config,
    workdir: Workdir,
    beam_options: list[str] | None = None,
    is_read_here: bool = False,
) -> Corpus:
    """Read and encode all text of a run, and return it; `train` then begins with its first step.

    Args:
        config: The run's configuration.
        workdir: Its work directory.
        beam_options: Options of Apache Beam, which then encodes the training text; None encodes it
            on this machine.
        is_read_here: Whether the training split is to be fetched too if it is made at an address.

    Raises:
        BadInput: for the reasons of `check` and of `Corpus.prepare_train`, the model does not suit
            the vocabulary, or Apache Beam is to encode a text that is streamed.
    """
    check(config, workdir)
    if config.data.stream and beam_options is not None:
        raise BadInput(
            "--beam_pipeline_options with --stream: the training text is encoded while training; "
            "leave one of them out"
        )
    corpus = run_text.corpus_of(config, workdir)
    _embedding_rows(config, corpus.vocabulary)
    if not config.data.stream:
        is_read_here = is_read_here or config.train.auxiliary_tasks
        if beam_options is not None or not is_read_here:
            corpus.prepare_train(beam_options)
        if is_read_here:
            split = corpus.train()
        if config.train.auxiliary_tasks:
            _ = run_text.auxiliary_tasks(config, corpus, split).links
    corpus.held_out("dev")
    workdir.save_config(run_text.with_length_ratio(config, corpus))
    return corpus


def make_loop(
    experiment: Experiment, micro_batches: int = 1, early: EarlyEpoch | None = None
) -> Loop:
    """Read and encode all text of a run, and make its training loop.

    Args:
        experiment: The run.
        micro_batches: Number of micro-batches per replica; `accumulate` is used if it is greater.
        early: The first epoch, if it is being made already.

    Raises:
        BadInput: the text or a checkpoint cannot be used.
    """
    config, corpus, workdir = experiment.config, experiment.corpus, experiment.workdir
    cluster = experiment.cluster
    first_epoch = partial(early.take, config) if early else None
    batching = run_text.training_batches(config, corpus, cluster.index, cluster.size, first_epoch)
    dev = corpus.held_out("dev")
    if not corpus.read_only:
        workdir.save_config(config)
    accumulate = max(micro_batches, config.train.accumulate)
    settings = replace(config.train, accumulate=accumulate)
    sharing = cluster.local if config.data.stream else None
    trainer = Trainer(experiment.model, settings, experiment.strategy, sharing)
    dev_scores = DevScores(config, experiment.problem, trainer, experiment.translator, dev, workdir)
    return Loop(
        trainer,
        config,
        batching,
        workdir.checkpoints,
        dev_scores.report,
        dev_scores.validate,
        workdir.check_in_place,
    )
