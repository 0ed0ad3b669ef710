"""Worker processes: a map over items, in order, with few items in memory; a single call."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import connection
from typing import Any

from pipelines.errors import BadInput


def in_order(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Yield `function(item)` for each item, in order, computed by one worker process per core.

    A single item is computed in the calling process. The workers ignore Ctrl-C, and end when the
    calling process ends, even if it is killed.

    Args:
        function: Pickled once per worker. A script that calls this needs the usual
            `if __name__ == "__main__"`, because each worker imports it.
        items: Read as the work proceeds; at most three more than there are workers are in memory.

    Raises:
        BadInput: A worker was killed.
    """
    iterator = iter(items)
    first = list(islice(iterator, 2))
    if len(first) < 2:
        yield from map(function, first)
        return
    count = cores()
    # Not "fork": TensorFlow's threads would not survive it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, _begin, (function,)) as pool:
        pending: collections.deque[Future[Any]] = collections.deque()
        try:
            for item in chain(first, iterator):
                pending.append(pool.submit(_work, item))
                if len(pending) > count + 1:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise BadInput(
                "a worker process that encodes text was killed, perhaps for lack of memory; the "
                "finished shards are kept: run the same command again"
            ) from None


def in_background(function: Callable[..., Any], *args: Any) -> connection.Connection:
    """Call a function in a new process; return the connection that receives its result.

    The connection ends without a result if the function fails, for whatever reason. The process
    ignores Ctrl-C, and ends when the calling process ends, even if that is killed.

    Args:
        function: A module's function, because it is pickled, as are its arguments and its result.
        *args: Its arguments.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    with there:  # the other process has its own copy
        context.Process(target=_send, args=(there, function, args), daemon=True).start()
    return here


def _send(there: connection.Connection, function: Callable[..., Any], args: Sequence[Any]) -> None:
    follow_parent()
    with contextlib.suppress(Exception), there:
        there.send(function(*args))


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS: the cores this process may use
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_function: Callable[[Any], Any]  # set in each worker


def _begin(function: Callable[[Any], Any]) -> None:
    """Set up this process as a worker."""
    global _function
    _function = function
    follow_parent()


def follow_parent() -> None:
    """Let this worker process ignore Ctrl-C, and end when its parent does, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    connection.wait([parent])
    os._exit(1)


def _work(item: Any) -> Any:
    return _function(item)
