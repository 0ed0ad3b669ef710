"""Encode a split on Apache Beam, for a corpus that outgrows one machine.

Beam runs on one machine, on a cluster (Spark, Flink) or as a service, depending on its options. One
worker reads the text, as fast as its storage allows, and finds repeated pairs if they are to be
dropped; all workers encode it. The shards,
fingerprints and manifest equal those of `encode.encode_split`, so either one resumes where the
other was stopped. This module needs the extra `beam`.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from pipelines import storage
from pipelines.encode import (
    MarkedBlock,
    Pair,
    Summary,
    blocks,
    make_shard,
    marked,
    write_manifest,
)
from pipelines.errors import BadInput
from pipelines.filters import NO_FILTERS, Filters
from pipelines.shard_files import MANIFEST, parse_manifest
from pipelines.vocabulary import Vocabulary


def encode_split_on_beam(
    read: Callable[[], Iterable[Pair]],
    vocabulary: Vocabulary,
    max_length: int,
    directory: str,
    options: list[str],
    filters: Filters = NO_FILTERS,
) -> Summary:
    """Encode a split into shards on Beam workers, and write its manifest.

    Args:
        read: Returns the split's pairs; pickled, and called on a worker.
        vocabulary: The vocabulary that encodes them.
        max_length: The most pieces on a side, EOS included.
        directory: Where the split is stored; every machine of the pipeline must reach it.
        options: The pipeline's options, such as ["runner=DirectRunner"].
        filters: Which pairs are dropped, beside those that are empty or too long.

    Returns:
        The manifest.

    Raises:
        BadInput: Apache Beam is not installed or rejects the options, or for the reasons of
            `encode_split`.
    """
    pipeline = _pipeline(options)
    import apache_beam as beam

    storage.remove(directory, MANIFEST)
    make = partial(
        make_shard,
        vocabulary=vocabulary,
        max_length=max_length,
        directory=directory,
        filters=filters,
    )

    def read_blocks(_: None) -> Iterator[MarkedBlock]:
        return marked(blocks(read()), filters)

    with _told_once(), pipeline:
        _ = (
            pipeline
            | beam.Create([None])
            | "read" >> beam.FlatMap(read_blocks)
            | beam.Reshuffle()  # else the worker that reads the text would also encode it all
            | "encode" >> beam.Map(make)
            | beam.combiners.ToList()
            | "write manifest" >> beam.Map(write_manifest, directory=directory)
        )
    content = storage.read(directory, MANIFEST)
    if content is None:
        raise BadInput(
            f"{directory}: Beam's workers finished, but {MANIFEST} is missing; with more than "
            "one machine, give a --prepared_dir that all of them reach"
        )
    return parse_manifest(content)


@contextlib.contextmanager
def _told_once() -> Iterator[None]:
    """Raise a worker's BadInput as it was, and have Beam not log it with its traceback too."""
    log = logging.getLogger("apache_beam.runners.common")
    log.disabled = True
    try:
        yield
    except BadInput as error:
        raise BadInput(str(error).partition(" [while running")[0]) from None
    finally:
        log.disabled = False


def _pipeline(options: list[str]) -> Any:
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise BadInput(
            'Apache Beam is not installed; pip install "t2t_repro[beam]", or leave out '
            "--beam_pipeline_options to prepare on this machine"
        ) from None
    usage = io.StringIO()  # argparse prints the usage of all Beam options, then the error
    try:
        with contextlib.redirect_stderr(usage):
            parsed = PipelineOptions([f"--{option}" for option in options])
            parsed.get_all_options()  # parse them now, not when the pipeline runs
            return beam.Pipeline(options=parsed)
    except SystemExit:
        raise BadInput(f"--beam_pipeline_options: {usage.getvalue().splitlines()[-1]}") from None
    except (ValueError, RuntimeError, ImportError) as error:
        # The runner does not exist, is not configured, or lacks its own extra.
        raise BadInput(f"--beam_pipeline_options: {error}") from None
