"""Stands in for `t2t_repro.server.engine` in a worker's process: some sentences kill it."""

import os
import threading
import time
from multiprocessing.connection import Connection

from pipelines.errors import BadInput
from t2t_repro.server.engine import Batch, Description, start

__all__ = ["answer", "load", "start"]


def load(path, threads):
    if (path / "gone").exists():
        raise BadInput(f"{path}: not a usable export")
    if (path / "large").exists():
        os._exit(1)
    if (path / "far").exists():
        (path / "loading").write_text(str(os.getpid()))
        time.sleep(600)
    return Description({}, threads, None, False)


def answer(signature, rows):
    if "deadly" in rows:
        os._exit(1)
    if "endless" in rows:
        time.sleep(600)
    if "a lock" in rows:
        return Batch([threading.Lock()], None)
    if "broken off" in rows:
        Connection._send = _send_half
    if "wrong" in rows:
        raise RuntimeError("wrong")
    return Batch([(os.getpid(), row) for row in rows], len(rows))


def _send_half(pipe, message):
    """Send half of a message, as a process does that is killed meanwhile."""
    os.write(pipe.fileno(), message[: len(message) // 2])
    os._exit(1)
