"""The text of a run: its corpus and its batches. Prepared local text needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

from pipelines.augmentation.auxiliary_tasks import AuxiliaryTasks
from pipelines.augmentation.bpe_dropout import BpeDropout
from pipelines.augmentation.misspelling import Misspelling
from pipelines.batching import Alteration, Batching, FirstEpoch
from pipelines.corpus import Corpus
from pipelines.errors import BadInput
from pipelines.filters import Filters
from pipelines.shards import EncodedSplit
from pipelines.vocabulary import Vocabulary
from t2t_repro import config as configs
from t2t_repro.config import Config, Data
from t2t_repro.problems import PROBLEMS
from t2t_repro.workdir import Workdir

if typing.TYPE_CHECKING:
    import numpy as np

    from pipelines.stream import Encode, Stream, Text

# {setting: why a stream cannot have it}
_NOT_STREAMED = {
    "auxiliary_tasks": "they need all of the prepared text",
    "misspelt_share": "words are misspelt in the prepared text",
    "max_ratio": "filters count what they drop while the text is prepared",
    "drop_duplicates": "it compares all pairs while the text is prepared",
    "drop_copies": "filters count what they drop while the text is prepared",
    "xla": "the batches of a stream have thousands of shapes, each of which would be compiled",
}


def corpus_of(config: Config, workdir: Workdir, read_only: bool = False) -> Corpus:
    """Return a run's text, which is read and encoded on first use.

    Args:
        config: The run's configuration.
        workdir: Its work directory.
        read_only: Whether the files exist already: with several workers the chief has made them.

    Raises:
        BadInput: the vocabulary of two places is asked for.
    """
    problem, data = PROBLEMS[config.problem], config.data
    if data.vocabulary and config.train.init_from:
        raise BadInput(
            "--vocabulary with --init_from: a run that starts from another one takes over its "
            "vocabulary; leave one of them out"
        )
    return Corpus(
        lambda split: problem.examples(split, config),
        workdir.path,
        settings=configs.text_settings(config),
        vocabulary_size=data.vocabulary_size,
        max_length=data.max_length,
        max_source_length=config.decode.max_source_length,
        filters=Filters(data.max_ratio, data.drop_duplicates, data.drop_copies),
        vocabulary_from=data.vocabulary or config.train.init_from,
        shared_dir=data.prepared_dir,
        is_settled=workdir.holds_run,
        read_only=read_only,
    )


def with_length_ratio(config: Config, corpus: Corpus) -> Config:
    """Return a configuration with the length ratio of its training text, unless it has one."""
    if config.decode.length_ratio is not None:
        return config
    if config.data.stream:
        source, target = _sampled_lengths(config, corpus.vocabulary.graph_encoder()).sum(axis=0)
        ratio = float(target / source)
    else:
        ratio = corpus.length_ratio()
    return configs.override(config, {"length_ratio": round(min(max(ratio, 0.01), 100), 3)})


def training_batches(
    config: Config,
    corpus: Corpus,
    worker: int = 0,
    workers: int = 1,
    first_epoch: FirstEpoch | None = None,
) -> Batching | Stream:
    """Return the batches of the training text, altered for the first updates as configured.

    A plan has the batches of all workers, a stream this worker's part of each batch.

    Args:
        config: The run's configuration.
        corpus: Its text.
        worker: The number of this worker, from 0 on.
        workers: How many workers there are.
        first_epoch: Returns the altered epoch 0 if it has been made already.
    """
    if config.data.stream:
        return _training_stream(config, corpus.vocabulary, worker, workers)
    data, train, split = config.data, config.train, corpus.train()
    return Batching(
        split,
        tokens_per_batch=data.tokens_per_batch,
        max_shapes=data.max_shapes,
        count_padding=data.count_padding,
        seed=train.seed,
        alterations=tuple(_alterations(config, corpus, split)),
        altered_updates=train.altered_updates,
        first_epoch=first_epoch,
    )


def _training_stream(config: Config, vocabulary: Vocabulary, worker: int, workers: int) -> Stream:
    from pipelines import stream  # imports tensorflow, which takes seconds

    data, train, encode_text = config.data, config.train, vocabulary.graph_encoder()
    lengths = _sampled_lengths(config, encode_text)
    buckets = stream.choose(
        lengths,
        tokens_per_batch=max(1, data.tokens_per_batch // workers),
        max_shapes=data.max_shapes,
        count_padding=data.count_padding,
        max_length=data.max_length,
    )
    if worker == 0:
        print(
            f"train: read while training; {len(buckets.rows)} buckets from the lengths of "
            f"{len(lengths):,} pairs",
            file=sys.stderr,
        )
    return stream.Stream(
        _streamed_text(config),
        buckets,
        encode_text,
        altered=vocabulary.graph_encoder(train.bpe_dropout) if train.bpe_dropout else None,
        altered_updates=train.altered_updates,
        max_length=data.max_length,
        seed=train.seed,
        shard=worker,
        shards=workers,
    )


def _sampled_lengths(config: Config, encode_text: Encode) -> np.ndarray:
    """Return the source and target lengths of some pairs of a streamed text: int [pairs, 2]."""
    from pipelines import stream

    text, seed, limit = _streamed_text(config), config.train.seed, config.data.max_length
    return stream.sample(text, encode_text, seed, limit)


def _streamed_text(config: Config) -> Text:
    files = PROBLEMS[config.problem].training_files
    assert files is not None  # `check_stream` has looked
    return files(config)


def check_files(data: Data) -> None:
    """Raise BadInput if a text is in a pipe or a device: it is read more than once."""
    for field in dataclasses.fields(data):
        if field.name.endswith("_files"):
            for path in map(Path, getattr(data, field.name)):
                if path.exists() and not (path.is_file() or path.is_dir()):
                    raise BadInput(
                        f"--{field.name}: {path} is no regular file, and is read more than once; "
                        "write its text to a file, plain or .gz"
                    )


def check_stream(config: Config) -> None:
    """Raise BadInput if the run streams its text and that does not go together with the rest."""
    if not config.data.stream:
        return
    if (files := PROBLEMS[config.problem].training_files) is None:
        names = ", ".join(name for name, problem in PROBLEMS.items() if problem.training_files)
        raise BadInput(
            f"--stream: {config.problem} has no files that it could read while training; wanted "
            f"one of {names}: leave --stream out"
        )
    for name, why in _NOT_STREAMED.items():
        if configs.flat(config)[name]:
            default = configs.FIELDS[name].default
            off = "none" if default is None else str(default).lower()
            raise BadInput(f"--stream with --{name}: {why}; leave --stream out, or --{name}={off}")
    files(config)


def _alterations(config: Config, corpus: Corpus, split: EncodedSplit) -> Iterator[Alteration]:
    train, max_length, vocabulary = config.train, config.data.max_length, corpus.vocabulary
    if train.misspelt_share:
        yield Misspelling(vocabulary, train.misspelt_share, max_length, train.seed)
    if train.bpe_dropout:
        yield BpeDropout(vocabulary, train.bpe_dropout, max_length, train.seed)
    if train.auxiliary_tasks:
        yield auxiliary_tasks(config, corpus, split)


def auxiliary_tasks(config: Config, corpus: Corpus, split: EncodedSplit) -> AuxiliaryTasks:
    """Return the alteration that adds second pairs to the training split."""
    limit, seed = config.data.max_length, config.train.seed
    return AuxiliaryTasks(corpus.vocabulary, split, limit, seed, corpus.links_file)
