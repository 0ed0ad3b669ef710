"""The preparation of `encode_split` on Apache Beam, for a corpus that outgrows one machine.

Beam runs on one machine, on a cluster (Spark, Flink) or as a service; which one, its options say.
The text is read by one worker, as fast as its storage, and encoded by all. Shards, fingerprints and
manifest are those of `encode_split`, so that either resumes where the other was stopped. Needs
the extra `beam`.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from pipelines import storage
from pipelines.encode import Block, Pair, Summary, blocks, make_shard, write_manifest
from pipelines.errors import BadInput
from pipelines.shards import MANIFEST
from pipelines.vocabulary import Vocabulary


def encode_split_on_beam(
    read: Callable[[], Iterable[Pair]],
    vocabulary: Vocabulary,
    max_length: int,
    directory: str,
    options: list[str],
) -> Summary:
    """As `encode_split`, on Beam.

    Args:
        read: gives the split's text; is pickled and called on a worker.
        vocabulary: what encodes it.
        max_length: most pieces of a side.
        directory: where the split is kept; with more than one machine, one that all of them reach.
        options: of the pipeline, as ["runner=DirectRunner", "direct_num_workers=2"].

    Returns:
        The manifest.

    Raises:
        BadInput: Apache Beam is not installed or refuses the options; and as `encode_split`.
    """
    pipeline = _pipeline(options)
    import apache_beam as beam

    storage.remove(directory, MANIFEST)
    make = partial(make_shard, vocabulary=vocabulary, max_length=max_length, directory=directory)

    def read_blocks(_: None) -> Iterator[Block]:
        return blocks(read())

    with pipeline:
        _ = (
            pipeline
            | beam.Create([None])
            | "read" >> beam.FlatMap(read_blocks)
            | beam.Reshuffle()  # so that the worker that reads is not the one that encodes it all
            | "encode" >> beam.Map(make)
            | beam.combiners.ToList()
            | "write manifest" >> beam.Map(write_manifest, directory=directory)
        )
    content = storage.read(directory, MANIFEST)
    if content is None:
        raise BadInput(
            f"{directory}: Beam's workers finished, but {MANIFEST} is not there; with more than "
            "one machine give a --prepared_dir that all of them reach"
        )
    return json.loads(content)


def _pipeline(options: list[str]) -> Any:
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise BadInput(
            'Apache Beam is not installed; pip install "t2t_repro[beam]", or leave out '
            "--beam_pipeline_options to prepare on this machine"
        ) from None
    told = io.StringIO()  # of argparse, which explains all of Beam's options
    try:
        with contextlib.redirect_stderr(told):
            parsed = PipelineOptions([f"--{option}" for option in options])
            parsed.get_all_options()  # else looked at when the pipeline runs
            return beam.Pipeline(options=parsed)
    except SystemExit:
        raise BadInput(f"--beam_pipeline_options: {told.getvalue().splitlines()[-1]}") from None
    except (ValueError, RuntimeError, ImportError) as error:
        # No such runner, or one that is not set up, or whose own extra is missing.
        raise BadInput(f"--beam_pipeline_options: {error}") from None
