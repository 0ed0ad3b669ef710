"""Data sets through TFDS: check the network, prepare a data set once, read its pairs."""

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import tensorflow as tf
import tensorflow_datasets as tfds

from pipelines.errors import BadInput

SPLITS = {"train": "train", "dev": "validation", "test": "test"}

# The errors that `ask` and a download by TFDS raise.
DOWNLOAD_ERRORS = (requests.RequestException, tfds.download.DownloadError)

# Examples parsed at once. This reads 400,000 pairs per second on 2 cores; TFDS's own reader, which
# parses one example at a time, reads 12,000.
_BATCH = 1024


def ask(address: str) -> None:
    """Ask a server whether it has a file, without downloading it.

    TFDS retries for over three minutes before it gives up. This function asks once, with the HTTP
    client that TFDS uses, so a machine without a network fails at once.

    Raises:
        requests.RequestException: The server cannot be reached or does not have the file.
    """
    requests.head(address, timeout=20, allow_redirects=True).raise_for_status()


def reason(error: BaseException) -> str:
    """Return the message of an error as one line."""
    if isinstance(error, requests.ConnectionError):
        return type(error).__name__  # its message is very long
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    # TensorFlow adds the graph node: {{...}} before the message, [Op:...] after it.
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(error), flags=re.DOTALL)
    return " ".join(text.split()) or type(error).__name__


def open_builder(
    cls: type[tfds.core.DatasetBuilder], config: str, data_dir: str | None
) -> tfds.core.DatasetBuilder:
    """Return TFDS's builder of a data set, which reads the metadata if the set is prepared.

    Args:
        cls: The builder's class.
        config: The name of the builder's config, such as "de-en".
        data_dir: TFDS's data directory, or None for its default.

    Raises:
        BadInput: The data set is prepared in `data_dir`, but damaged.
    """
    where = Path(data_dir or tfds.core.constants.DATA_DIR, cls.name, config)
    for path in where.rglob("*"):  # TFDS would wait for ever for somebody to write to a pipe
        if not (path.is_file() or path.is_dir()):
            raise _damaged(where, f"{path.relative_to(where)} is not a file")
    try:
        return cls(config=config, data_dir=data_dir)
    except OSError:
        raise
    except Exception as error:  # from json, protobuf or TFDS, whichever meets the damage first
        raise _damaged(where, reason(error)) from error


def prepare(builder: tfds.core.DatasetBuilder, **options: Any) -> None:
    """Download and prepare a data set unless it is prepared.

    Args:
        builder: TFDS's builder of the data set.
        options: Further arguments of tfds.download.DownloadConfig.
    """
    # Google's bucket of prepared data sets is not asked; TFDS 4.9.10 itself no longer does so.
    config = tfds.download.DownloadConfig(try_download_gcs=False, **options)
    # TFDS reports its progress on stdout, which is reserved for results.
    with contextlib.redirect_stdout(sys.stderr):
        builder.download_and_prepare(download_config=config)


def is_prepared(builder: tfds.core.DatasetBuilder) -> bool:
    """Return whether TFDS has prepared the data set; dataset_info.json is written last."""
    return Path(builder.data_path, "dataset_info.json").exists()


def files(builder: tfds.core.DatasetBuilder, split: str) -> list[str]:
    """Return the paths of the TFRecord files of a prepared split, "train", "dev" or "test"."""
    return [str(path) for path in builder.info.splits[SPLITS[split]].filepaths]


def examples(
    builder: tfds.core.DatasetBuilder, split: str, *, source: str, target: str
) -> Iterator[dict[str, str]]:
    """Yield {"source", "target"} of a prepared split, in the order of TFDS's files.

    Args:
        builder: TFDS's builder of the data set.
        split: "train", "dev" or "test".
        source: The source language's name in the data set, such as "en".
        target: The target language's name.

    Raises:
        BadInput: The files are damaged (raised when the damage is reached).
    """
    count = 0
    try:
        info = builder.info.splits[SPLITS[split]]
        for batch in _batches(info.filepaths, source, target):
            count += len(batch[source])
            for one, other in zip(batch[source].tolist(), batch[target].tolist(), strict=True):
                yield {"source": one.decode("utf-8"), "target": other.decode("utf-8")}
    except (tf.errors.OpError, KeyError, ValueError) as error:
        raise _damaged(builder.data_path, reason(error)) from error
    if count != info.num_examples:  # a file was cut between two records
        raise _damaged(builder.data_path, f"{split} has {count} of {info.num_examples} pairs")


def _batches(paths: list[str], source: str, target: str) -> Iterator[dict[str, Any]]:
    """Yield {language: up to 1,024 byte strings} from TFRecord files, one file after another."""
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in (source, target)}
    records = tf.data.TFRecordDataset(paths, buffer_size=1 << 20).batch(_BATCH)
    return (
        records.map(lambda batch: tf.io.parse_example(batch, features))
        .prefetch(1)
        .as_numpy_iterator()
    )


def _damaged(path: Path, text: str) -> BadInput:
    return BadInput(
        f"{path}: damaged ({text}); wanted a data set as TFDS prepares it: delete that directory "
        "so that it is prepared anew, or give another --data_dir"
    )
