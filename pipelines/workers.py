"""A map over items by worker processes, in order, with few items in memory."""

from __future__ import annotations

import collections
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
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
