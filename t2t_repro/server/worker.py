"""A worker: a process that holds an export, seen from the server."""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from pipelines.errors import BadInput
from t2t_repro.server import engine
from t2t_repro.server.engine import Batch, Description

_LOADING = 600.0  # seconds that an export may take to load

_log = logging.getLogger(__name__)


class WorkerDied(RuntimeError):
    """The process ended while it translated, or took too long."""


class Worker:
    """A process that translates one batch at a time with an export.

    If it has died, the next batch starts another.

    Args:
        export: One version of an export.
        threads: Threads of its matrix products.
        limit: Seconds that a batch may take. Nobody waits any longer: the process is killed.
    """

    def __init__(self, export: Path, threads: int, limit: float):
        self._export, self._threads, self._limit = export, threads, limit
        self._pool: ProcessPoolExecutor | None = None
        self._process = 0  # its id; 0: there is none

    async def start(self) -> Description:
        """Start the process and open the export in it.

        Raises:
            BadInput: the system starts no process, the export is not usable, the process died of
                it, or it loads for ten minutes; the process has ended.
        """
        self.stop()
        context = multiprocessing.get_context("spawn")
        try:
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=engine.start)
            self._process = await self._call(os.getpid)
            async with asyncio.timeout(_LOADING):
                description: Description = await self._call(
                    engine.load, self._export, self._threads
                )
        except TimeoutError:
            self.kill()
            raise BadInput(f"{self._export}: not loaded after {_LOADING:g} s") from None
        except BrokenProcessPool:
            raise BadInput(
                f"{self._export}: its process ended while it loaded, perhaps for lack of memory"
            ) from None
        except OSError as error:  # of this process; those of the export are BadInput
            self.kill()
            raise BadInput(
                f"{self._export}: a process for it cannot be started ({error.strerror or error})"
            ) from None
        except BaseException:
            self.kill()  # it may go on loading for long
            raise
        return description

    async def run(self, signature: str, rows: Sequence[Any]) -> Batch:
        """Answer a batch; see `engine.answer`.

        Raises:
            BadInput: there was no process, and none that can use the export could be started.
            RuntimeError: the engine failed.
            WorkerDied: the process has ended, by itself or because the batch took too long.
        """
        answer = self._submit(engine.answer, signature, rows)
        if answer is None:
            await self.start()
            answer = self._submit(engine.answer, signature, rows)
        rows_text = "this sentence" if len(rows) == 1 else f"{len(rows)} sentences"
        try:
            async with asyncio.timeout(self._limit):
                batch: Batch = await self._result(answer)
        except BrokenProcessPool:
            raise WorkerDied(f"the worker died of {rows_text}") from None
        except TimeoutError:
            self.kill()
            _log.error("a worker is killed: %s took %g s", rows_text, self._limit)
            raise WorkerDied(f"{rows_text} took too long") from None
        return batch

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._result(self._submit(function, *arguments))

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
        """Give the process a call; return None if there is none, or it has died while idle."""
        if self._pool:
            with contextlib.suppress(BrokenProcessPool):
                return self._pool.submit(function, *arguments)
        return None

    async def _result(self, answer: Future[Any] | None) -> Any:
        try:
            if answer is None:
                raise BrokenProcessPool
            return await asyncio.wrap_future(answer)
        except BrokenProcessPool:
            self.stop()
            raise

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        if self._process and self._pool:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            # Milliseconds. Else Python's end can meet the pool's: an OSError with a traceback.
            self._pool.shutdown(wait=True)
        self.stop()

    def stop(self) -> None:
        """End the process once it has answered."""
        if self._pool:
            self._pool.shutdown(wait=False)
        self._pool, self._process = None, 0
