"""Whole files in a local directory or at an address for tf.io.gfile, such as gs://bucket/folder.

TensorFlow is imported for addresses only: the processes that encode text into a local directory
save its 2.6 seconds and 400 MB.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import shutil
import socket
import time
import typing
import uuid
from collections.abc import Iterator
from pathlib import Path

from pipelines import regular_file
from pipelines.errors import BadInput

_UNFINISHED = re.compile(r"\..+\.unfinished-(?P<host>.*)-(?P<pid>\d{1,9})")
# Bytes of a file that is read whole. A shard of WMT14 has 16 million; one of 2^28 characters that
# are spelt in bytes has up to 4 pieces of 4 bytes for each.
_LARGEST = 1 << 33
_ABANDONED = 24 * 3600  # seconds after which a file of another host's process counts as left over


def is_address(path: str) -> bool:
    """Return whether a path is an address for tf.io.gfile (scheme://...) and not a local path."""
    return "://" in path


def write(directory: str, name: str, content: bytes) -> None:
    """Write a file, creating its directory if needed; the file appears whole or not at all.

    Raises:
        BadInput: The file cannot be written. What it held before is still there.
    """
    path = posixpath.join(directory, name)
    if not is_address(directory):
        _write_here(Path(path), content)
        return
    unfinished = posixpath.join(directory, f".{name}.{uuid.uuid4().hex}")
    with _gfile(directory) as gfile:
        gfile.makedirs(directory)
        with gfile.GFile(unfinished, "wb") as file:
            file.write(content)
        gfile.rename(unfinished, path, overwrite=True)


def _write_here(path: Path, content: bytes) -> None:
    try:
        path = path.resolve()  # through a link, which stays
        unfinished = path.with_name(unfinished_name(path.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_unfinished(path.parent)
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # else a power cut could leave the new name without content
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        reason = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{path}: cannot be written ({reason}); what was there is unchanged: "
            "make room, or make the directory writable, and run the same command again"
        ) from None


def unfinished_name(name: str) -> str:
    """Return the name under which this process fills a file or directory, before it is renamed."""
    return f".{name}.unfinished-{_host()}-{os.getpid()}"


def _host() -> str:
    """Return the scope in which this process's number is unique: host and PID namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # such as pid:[4026531836]
    except OSError:  # not on Linux
        return socket.gethostname()
    return f"{socket.gethostname()}-{re.sub(r'[^0-9]', '', namespace)}"


def clear_unfinished(directory: Path) -> None:
    """Delete the unfinished files and directories that killed processes have left in a directory.

    A process of another host or container cannot be asked whether it lives; what it left is deleted
    after a day.
    """
    for name in os.listdir(directory):
        if (found := _UNFINISHED.fullmatch(name)) and _is_abandoned(
            directory / name, **found.groupdict()
        ):
            shutil.rmtree(directory / name, ignore_errors=True)  # does nothing to a file
            with contextlib.suppress(OSError):
                (directory / name).unlink(missing_ok=True)


def _is_abandoned(path: Path, host: str, pid: str) -> bool:
    """Return whether the process that was filling `path` is dead."""
    with contextlib.suppress(OSError):  # another process may clear it at the same moment
        if host != _host():
            return time.time() - path.stat().st_mtime > _ABANDONED
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
    return False


def read(directory: str, name: str) -> bytes | None:
    """Return a file's content, or None if there is no such file.

    Raises:
        BadInput: The file cannot be read, or a pipe, a device or a directory is in its place, or a
            file in that of its directory.
    """
    path = posixpath.join(directory, name)
    if not is_address(directory):
        try:
            return regular_file.read(path, _LARGEST)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise BadInput(
                f"{directory} is or lies in a file; wanted a directory: move the file away, or "
                "give another directory"
            ) from None
        except OSError as error:
            raise BadInput(
                f"{path}: cannot be read ({error.strerror or error}); check the disk and the "
                "permissions, or copy the file again"
            ) from None
    with _gfile(directory) as gfile:
        if not gfile.exists(path):
            return None
        with gfile.GFile(path, "rb") as file:
            return file.read()


def size(directory: str, name: str) -> int:
    """Return a file's size in bytes, or -1 if there is no such file."""
    path = posixpath.join(directory, name)
    if not is_address(directory):
        return Path(path).stat().st_size if Path(path).exists() else -1
    with _gfile(directory) as gfile:
        return gfile.stat(path).length if gfile.exists(path) else -1


def names(directory: str) -> list[str]:
    """Return the sorted names in a directory, or [] if it does not exist."""
    if not is_address(directory):
        return sorted(os.listdir(directory)) if Path(directory).exists() else []
    with _gfile(directory) as gfile:
        return sorted(gfile.listdir(directory)) if gfile.exists(directory) else []


def remove(directory: str, name: str) -> None:
    """Delete a file if it exists."""
    path = posixpath.join(directory, name)
    if not is_address(directory):
        Path(path).unlink(missing_ok=True)
        return
    with _gfile(directory) as gfile:
        if gfile.exists(path):
            gfile.remove(path)


@contextlib.contextmanager
def _gfile(directory: str) -> Iterator[typing.Any]:
    """Yield tf.io.gfile, and turn its errors into a BadInput."""
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        raise BadInput(
            f"{directory}: {' '.join(str(error.message).split())}; wanted an address that "
            "tf.io.gfile reads and writes: check it and its permissions, or use a local directory"
        ) from error
