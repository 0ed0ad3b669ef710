"""Where configuration, problem, text and model meet: a run is built, restored, and trained."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from pipelines.augmentation.auxiliary_tasks import AuxiliaryTasks
from pipelines.augmentation.bpe_dropout import BpeDropout
from pipelines.batching import Alteration, Batching
from pipelines.corpus import Corpus
from pipelines.errors import BadInput
from pipelines.shards import EncodedSplit
from pipelines.vocabulary import Vocabulary
from t2t_repro import config as configs
from t2t_repro.config import Config
from t2t_repro.decoding.translator import Translator
from t2t_repro.distributed.cluster import Cluster
from t2t_repro.model import flops
from t2t_repro.model.transformer import Transformer
from t2t_repro.problems import PROBLEMS, Problem
from t2t_repro.training.checkpoints import average_last
from t2t_repro.training.dev_scores import DevScores
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
    averaged: tuple[str, ...] = ()  # names of the checkpoints that were averaged

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


def corpus_of(config: Config, workdir: Workdir, read_only: bool = False) -> Corpus:
    """Return a run's text, which is read and encoded on first use.

    Args:
        config: The run's configuration.
        workdir: Its work directory.
        read_only: Whether the files exist already: with several workers the chief has made them.
    """
    problem, data = PROBLEMS[config.problem], config.data
    return Corpus(
        lambda split: problem.examples(split, config),
        workdir.path,
        settings=configs.text_settings(config),
        vocabulary_size=data.vocabulary_size,
        max_length=data.max_length,
        max_source_length=config.decode.max_source_length,
        shared_dir=data.prepared_dir,
        is_settled=workdir.holds_run,
        read_only=read_only,
    )


def training_batches(config: Config, corpus: Corpus) -> Batching:
    """Return the batches of the training split, altered as configured until any cool-down."""
    data, train, split = config.data, config.train, corpus.train()
    return Batching(
        split,
        tokens_per_batch=data.tokens_per_batch,
        max_shapes=data.max_shapes,
        count_padding=data.count_padding,
        seed=train.seed,
        alterations=tuple(_alterations(config, corpus.vocabulary, split)),
        altered_updates=round((1 - train.cooldown_share) * train.train_steps),
    )


def _alterations(
    config: Config, vocabulary: Vocabulary, split: EncodedSplit
) -> Iterator[Alteration]:
    train, max_length = config.train, config.data.max_length
    if train.bpe_dropout:
        yield BpeDropout(vocabulary, train.bpe_dropout, max_length, train.seed)
    if train.auxiliary_tasks:
        yield AuxiliaryTasks(vocabulary, split, max_length, train.seed)


def build(config: Config, workdir: Workdir, strategy: tf.distribute.Strategy) -> Experiment:
    """Build a run: learn or load its vocabulary, then make a model with initial weights.

    Raises:
        BadInput: the text cannot be used, the shared directory holds another corpus, or
            `embedding_rows` is less than the vocabulary.
    """
    corpus = corpus_of(config, workdir, read_only=Cluster(strategy).size > 1)
    _ = corpus.vocabulary  # before the seed: TFDS draws random numbers, too, when it prepares text
    keras.utils.set_random_seed(config.train.seed)
    return _assemble(config, workdir, corpus, strategy)


def _assemble(
    config: Config, workdir: Workdir, corpus: Corpus, strategy: tf.distribute.Strategy
) -> Experiment:
    vocabulary = corpus.vocabulary
    with strategy.scope():
        rows = config.model.embedding_rows or vocabulary.size
        if rows < vocabulary.size:
            raise BadInput(
                f"embedding_rows: wanted at least the vocabulary's {vocabulary.size}, got {rows}"
            )
        if config.decode.beam_size > vocabulary.size:
            raise BadInput(
                f"beam_size: wanted at most the vocabulary's {vocabulary.size}, got "
                f"{config.decode.beam_size}"
            )
        flops.check_size(config.model, rows)
        model = Transformer(config.model, rows, config.train.precision)
    return Experiment(config, workdir, corpus, vocabulary, model, strategy)


def restore(workdir: Workdir, overrides: Mapping[str, Any], strict: bool = False) -> Experiment:
    """Restore a trained run, with the mean of its last checkpoints as weights.

    Args:
        workdir: The run's work directory.
        overrides: Decode settings and data locations, for this command only.
        strict: Whether a damaged checkpoint is an error, and not only a warning.

    Raises:
        BadInput: there is no run, it has no good checkpoint, or a setting may not be overridden.
    """
    config = workdir.config(overrides)
    strategy = tf.distribute.get_strategy()  # decoding uses one device
    experiment = _assemble(config, workdir, corpus_of(config, workdir), strategy)
    last = config.decode.average_last
    averaged = average_last(experiment.model, workdir.checkpoints, last, strict)
    print(f"weights: mean of the last {len(averaged)} checkpoints", file=sys.stderr)
    return replace(experiment, averaged=averaged)


def prepare(config: Config, workdir: Workdir, beam_options: list[str] | None = None) -> None:
    """Read and encode all text of a run; `train` then begins with its first step.

    Args:
        config: The run's configuration.
        workdir: Its work directory.
        beam_options: Options of Apache Beam, which then encodes the training text; None encodes it
            on this machine.

    Raises:
        BadInput: for the reasons of `Corpus.prepare_train`.
    """
    corpus = corpus_of(config, workdir)
    corpus.prepare_train(beam_options)
    corpus.held_out("dev")
    workdir.save_config(config)


def make_loop(experiment: Experiment, micro_batches: int = 1) -> Loop:
    """Read and encode all text of a run, and make its training loop.

    Args:
        experiment: The run.
        micro_batches: Number of micro-batches per replica; `accumulate` is used if it is greater.

    Raises:
        BadInput: the text or a checkpoint cannot be used.
    """
    config, corpus, workdir = experiment.config, experiment.corpus, experiment.workdir
    batching, dev = training_batches(config, corpus), corpus.held_out("dev")
    if not corpus.read_only:
        workdir.save_config(config)
    accumulate = max(micro_batches, config.train.accumulate)
    settings = replace(config.train, accumulate=accumulate)
    trainer = Trainer(experiment.model, settings, experiment.strategy)
    dev_scores = DevScores(
        config, experiment.problem, trainer, experiment.translator(), dev, workdir
    )
    return Loop(
        trainer,
        config,
        batching,
        workdir.checkpoints,
        dev_scores.report,
        dev_scores.validate,
        workdir.check_in_place,
    )
