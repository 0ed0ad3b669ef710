"""The lock on a work directory: one command at a time trains or prepares the run in it.

It is a POSIX record lock on <work directory>/.lock. The system drops it when its owner ends, in
whatever way, and NFS keeps it for all hosts. Child processes do not inherit it. The owner itself
would drop it by closing any other descriptor of the file, so nothing else may open that file. The
file stays behind: to delete it would let two commands lock two files of one name.
"""

import contextlib
import errno
import fcntl
import os
import socket
import sys
from pathlib import Path
from types import TracebackType

from pipelines.errors import BadInput


class Lock:
    """The sole use of a directory by this process, until `close` or the process's end.

    Args:
        directory: A directory that exists.

    Raises:
        BadInput: another process holds the lock.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        with contextlib.ExitStack() as opened:
            self._file = opened.enter_context((directory / ".lock").open("a+b", buffering=0))
            # An open directory keeps its inode number, which a new directory could get otherwise.
            self._folder = os.open(directory, os.O_RDONLY)
            opened.callback(os.close, self._folder)
            self._acquire()
            self._opened = opened.pop_all()

    def _acquire(self) -> None:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BadInput(
                    f"{self.directory}: another command trains or prepares a run there "
                    f"({self._owner()}); wait for its end, or give another --workdir"
                ) from None
            print(
                f"warning: {self.directory}: cannot be locked ({error.strerror}); take care that "
                "no second command trains there",
                file=sys.stderr,
            )
        with contextlib.suppress(OSError):  # a full disk; the note is for people only
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())

    def _owner(self) -> str:
        """Return the note that the lock's owner has left."""
        self._file.seek(0)
        return self._file.read(200).decode(errors="replace") or "which one is not known"

    @property
    def is_in_place(self) -> bool:
        """Whether the directory's path still leads to the directory that was locked."""
        try:
            return os.path.samestat(os.stat(self.directory), os.fstat(self._folder))
        except OSError:  # no such path, or a file system that is gone
            return False

    def close(self) -> None:
        """Release the lock on the directory."""
        self._opened.close()

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
