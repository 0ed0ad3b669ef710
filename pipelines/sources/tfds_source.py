"""What the problems that come through TFDS share: ask the network, prepare once, read by name."""

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

# What asking for a file, and TFDS's download of it, raise.
DOWNLOAD_ERRORS = (requests.RequestException, tfds.download.DownloadError)

# So 400,000 pairs/s on 2 cores; TFDS's own reader, which parses example by example, gives 12,000.
_BATCH = 1024


def ask(address: str) -> None:
    """Asks a server for a file without fetching it; raises requests.RequestException.

    TFDS retries for over three minutes before it gives up. This asks once, with the HTTP client
    that TFDS uses, so that a machine without network hears at once.
    """
    requests.head(address, timeout=20, allow_redirects=True).raise_for_status()


def reason(error: BaseException) -> str:
    """What an error says, on one line."""
    if isinstance(error, requests.ConnectionError):
        return type(error).__name__  # its text tells a lost connection at great length
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    # TensorFlow names the node of its graph: {{...}} before the text, [Op:...] behind.
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(error), flags=re.DOTALL)
    return " ".join(text.split()) or type(error).__name__


def open_builder(
    cls: type[tfds.core.DatasetBuilder], config: str, data_dir: str | None
) -> tfds.core.DatasetBuilder:
    """Makes TFDS's builder, which reads what is known of the data if they are prepared.

    Raises:
        BadInput: What is prepared in `data_dir` (None: where TFDS keeps its data) is damaged.
    """
    try:
        return cls(config=config, data_dir=data_dir)
    except OSError:
        raise
    except Exception as error:  # of json, protobuf or TFDS, whichever meets the damage first
        where = Path(data_dir or tfds.core.constants.DATA_DIR, cls.name, config)
        raise _damaged(where, reason(error)) from error


def prepare(builder: tfds.core.DatasetBuilder, **options: Any) -> None:
    """Downloads and prepares a data set, unless that is done.

    Args:
        builder: TFDS's builder of the data set.
        options: Further ones of tfds.download.DownloadConfig.
    """
    # Not from Google's bucket of prepared data sets: TFDS 4.9.10 itself no longer asks there.
    config = tfds.download.DownloadConfig(try_download_gcs=False, **options)
    # TFDS reports its progress on stdout, which belongs to the results.
    with contextlib.redirect_stdout(sys.stderr):
        builder.download_and_prepare(download_config=config)


def is_prepared(builder: tfds.core.DatasetBuilder) -> bool:
    """Whether TFDS has prepared the data set: dataset_info.json is what it writes last."""
    return Path(builder.data_path, "dataset_info.json").exists()


def examples(
    builder: tfds.core.DatasetBuilder, split: str, *, source: str, target: str
) -> Iterator[dict[str, str]]:
    """Yields {"source", "target"} of a prepared split, in the order of TFDS's files.

    Args:
        builder: TFDS's builder of the data set.
        split: "train", "dev" or "test".
        source: The source language by its name in the data set, such as "en".
        target: The target language.

    Raises:
        BadInput: The files are damaged; raised when the damage is reached.
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
    if count != info.num_examples:  # a file cut between two records
        raise _damaged(builder.data_path, f"{split} has {count} of {info.num_examples} pairs")


def _batches(paths: list[str], source: str, target: str) -> Iterator[dict[str, Any]]:
    """Yields {language: up to 1,024 byte strings} from TFRecord files, one file after another."""
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
        "to have it prepared anew, or give another --data_dir"
    )
