"""Regular files, opened without waiting and read up to a size.

A directory that was copied from elsewhere may hold anything in a file's place. A pipe would let
`open` wait for ever for a writer, /dev/zero never ends, and a file may be larger than memory.
"""

import errno
import io
import os
import stat
from pathlib import Path


def opened(path: str | Path) -> io.BufferedReader:
    """Open a regular file to read its bytes, or a pipe that the shell made (/dev/stdin, <(...)).

    Raises:
        OSError: The file is missing, cannot be read, or is a directory, a named pipe or a device.
    """
    # Without O_NONBLOCK, opening a named pipe waits for a writer; regular files ignore the flag.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    of_shell = stat.S_ISFIFO(mode) and str(path).startswith(("/dev/", "/proc/"))
    if not stat.S_ISREG(mode) and not of_shell:
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "a pipe or a device, not a file", str(path))
    os.set_blocking(descriptor, True)
    return open(descriptor, "rb")


def read(path: str | Path, most: int) -> bytes:
    """Return a file's content.

    Args:
        path: The file.
        most: The most bytes that it may have.

    Raises:
        OSError: For the reasons of `opened`, or the file has more bytes.
    """
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most:,} bytes", str(path))
    return content
