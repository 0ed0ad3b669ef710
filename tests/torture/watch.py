"""What a command does to the files below a directory, as it does it: inotify, for Linux alone."""

import contextlib
import ctypes
import dataclasses
import errno
import os
import select
import struct
import time
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_HEAD = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_OPENED, _CREATED, _IS_FOLDER = 0x20, 0x100, 0x40000000
# Each mask of a write: modified, closed after writing, moved from and to, created, deleted.
_WRITES = 0x2 | 0x8 | 0x40 | 0x80 | _CREATED | 0x200


@dataclasses.dataclass(frozen=True)
class Event:
    """A file or folder was opened or written: created, renamed and deleted count as writing."""

    path: Path  # relative to the directory
    is_write: bool


@dataclasses.dataclass(frozen=True)
class Moment:
    """A moment of a command: `seconds` after its event number `event`; event 0 is its start."""

    event: int
    seconds: float = 0.0


class Watch:
    """The events below a directory since it was made, also in folders that are made later."""

    def __init__(self, directory):
        self.directory = directory
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders = {}
        self._add(directory)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        os.close(self._fd)

    def follow(self, process, moment, within):
        """Wait for a moment of a process, or for its end, and return the events so far.

        Raises:
            TimeoutError: neither came within so many seconds.
        """
        events, began = [], time.monotonic()
        due = began + moment.seconds if moment.event == 0 else None
        end = os.pidfd_open(process.pid)
        try:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            poll.register(end, select.POLLIN)
            while True:
                until = began + within if due is None else due
                ready = [fd for fd, _ in poll.poll(max(0, until - time.monotonic()) * 1000)]
                if end in ready or time.monotonic() >= until:
                    break
                events += self._read()
                if due is None and len(events) >= moment.event:
                    due = time.monotonic() + moment.seconds
        finally:
            os.close(end)
        if due is None and end not in ready:
            raise TimeoutError(errno.ETIMEDOUT, f"still running after {within} s")
        return events

    def _add(self, folder):
        number = _libc.inotify_add_watch(self._fd, os.fsencode(folder), _OPENED | _WRITES)
        with contextlib.suppress(FileNotFoundError):  # the folder may be gone again
            for child in os.scandir(folder):
                if child.is_dir(follow_symlinks=False):
                    self._add(Path(child.path))
        self._folders[number] = folder

    def _read(self):
        events = []
        try:
            content = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return events
        while content:
            number, mask, _, length = _HEAD.unpack_from(content)
            name = content[_HEAD.size : _HEAD.size + length].rstrip(b"\0")
            content = content[_HEAD.size + length :]
            if number not in self._folders or not name:
                continue
            path = self._folders[number] / os.fsdecode(name)
            if mask & _IS_FOLDER and mask & _CREATED:
                self._add(path)
            if not (mask & _IS_FOLDER and mask & _OPENED):  # looking into a folder
                events.append(Event(path.relative_to(self.directory), bool(mask & _WRITES)))
        return events
