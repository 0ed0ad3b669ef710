"""A function over items in other processes, in order, with few items in memory."""

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
    """`function` of each item, by one process a core; a single item is done in this one.

    Ctrl-C is for this process alone, and its workers end with it, however it ends.

    Args:
        function: Is pickled once for each process. A script that calls this needs the usual
            `if __name__ == "__main__"`, since each process imports it.
        items: Drawn as there is work to do: so many as there are processes, and three more.

    Raises:
        BadInput: A worker was killed.
    """
    iterator = iter(items)
    first = list(islice(iterator, 2))
    if len(first) < 2:
        yield from map(function, first)
        return
    count = _cores()
    # Not forked: TensorFlow's threads would not survive that.
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
                "a process that prepared text was killed, maybe for want of memory; what it had "
                "finished is kept: run the same command again"
            ) from None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # what this process may use, where that can be asked
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_function: Callable[[Any], Any]  # of a worker


def _begin(function: Callable[[Any], Any]) -> None:
    """Makes this process a worker."""
    global _function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _function = function
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    connection.wait([parent])
    os._exit(1)


def _work(item: Any) -> Any:
    return _function(item)
