"""A command's three standard streams: always open, and named in the errors that they raise."""

import io
import os
import sys
import typing
from collections.abc import Callable
from typing import Any


def take_over() -> None:
    """Open the standard streams that the shell has closed, and replace Python's three objects.

    A file opened later would otherwise get the number of a closed stream, and be written to by
    whatever prints; and Python prints on stdout what is meant for a closed stderr. A closed stdin
    or stdout stays unusable, because what a command reads or prints would be lost; what goes to a
    closed stderr is dropped.

    Streams that a test has put in the place of Python's are left alone.
    """
    _open_closed()
    if sys.stdin is sys.__stdin__:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Named(0, "r", "stdin")))
    if sys.stdout is sys.__stdout__:  # UTF-8 and "\n" whatever the locale says
        raw = _Named(1, "w", "stdout")
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", newline="\n", line_buffering=raw.isatty()
        )
    if sys.stderr is sys.__stderr__:
        sys.stderr = messages(2)


def messages(descriptor: int) -> typing.TextIO:
    """Return a stream for a command's messages that goes to this file descriptor."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Messages(descriptor, "w", "stderr")),
        errors="backslashreplace",
        line_buffering=True,
    )


def discard(stream: typing.TextIO) -> None:
    """Send what a stream still holds, and all that follows, to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _open_closed() -> None:
    # Each is opened for the wrong direction, so that reading and writing fail, except stderr.
    for descriptor, direction in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, direction)  # gets the lowest free number, which is this one
            os.set_inheritable(descriptor, True)


class _Named(io.FileIO):
    """A file descriptor whose OSErrors have a name in the place of a path."""

    def __init__(self, descriptor: int, mode: str, shown: str):
        super().__init__(descriptor, mode, closefd=False)
        self._shown = shown

    def readinto(self, buffer: Any) -> Any:
        return self._do(super().readinto, buffer)

    def readall(self) -> Any:
        return self._do(super().readall)

    def write(self, data: Any) -> Any:
        return self._do(super().write, data)

    def _do(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except OSError as error:
            error.filename = self._shown
            raise


class _Messages(_Named):
    """A descriptor for messages, which a full disk must not let end a training of many days."""

    def write(self, data: Any) -> Any:
        try:
            return super().write(data)
        except BrokenPipeError:  # whoever reads the messages has left, as with 2>&1 | head
            raise
        except OSError:
            return memoryview(data).nbytes
