"""Small files on this machine or at any address that tf.io.gfile knows, gs://bucket/... say.

TensorFlow is imported for addresses alone: the processes that prepare text on this machine do
without its 2.6 seconds and 400 MB.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import typing
import uuid
from collections.abc import Iterator
from pathlib import Path

from pipelines.errors import BadInput


def is_address(path: str) -> bool:
    """Whether a path is for tf.io.gfile, scheme://..., rather than of this machine."""
    return "://" in path


def write(directory: str, name: str, content: bytes) -> None:
    """Puts a file into a directory, made if need be; it appears whole or not at all."""
    path, unfinished = (
        posixpath.join(directory, name),
        posixpath.join(directory, f".{name}.{uuid.uuid4().hex}"),
    )
    if not is_address(directory):
        Path(directory).mkdir(parents=True, exist_ok=True)
        try:
            Path(unfinished).write_bytes(content)
            os.replace(unfinished, path)
        finally:
            Path(unfinished).unlink(missing_ok=True)
        return
    with _gfile(directory) as gfile:
        gfile.makedirs(directory)
        with gfile.GFile(unfinished, "wb") as file:
            file.write(content)
        gfile.rename(unfinished, path, overwrite=True)


def read(directory: str, name: str) -> bytes | None:
    """A file's content, None if there is no such file."""
    path = posixpath.join(directory, name)
    if not is_address(directory):
        return Path(path).read_bytes() if Path(path).exists() else None
    with _gfile(directory) as gfile:
        if not gfile.exists(path):
            return None
        with gfile.GFile(path, "rb") as file:
            return file.read()


def size(directory: str, name: str) -> int:
    """Bytes of a file, -1 if there is no such file."""
    path = posixpath.join(directory, name)
    if not is_address(directory):
        return Path(path).stat().st_size if Path(path).exists() else -1
    with _gfile(directory) as gfile:
        return gfile.stat(path).length if gfile.exists(path) else -1


def names(directory: str) -> list[str]:
    """Files in a directory, none if it does not exist."""
    if not is_address(directory):
        return sorted(os.listdir(directory)) if Path(directory).exists() else []
    with _gfile(directory) as gfile:
        return sorted(gfile.listdir(directory)) if gfile.exists(directory) else []


def remove(directory: str, name: str) -> None:
    """Deletes a file if it is there."""
    path = posixpath.join(directory, name)
    if not is_address(directory):
        Path(path).unlink(missing_ok=True)
        return
    with _gfile(directory) as gfile:
        if gfile.exists(path):
            gfile.remove(path)


@contextlib.contextmanager
def _gfile(directory: str) -> Iterator[typing.Any]:
    """tf.io.gfile; what it cannot do becomes a BadInput."""
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        raise BadInput(
            f"{directory}: {' '.join(str(error.message).split())}; wanted an address that "
            "tf.io.gfile reads and writes: check it and your rights there, or use a local directory"
        ) from error
