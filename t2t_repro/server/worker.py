"""A worker: a process that holds an export, seen from the server."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.errors import BadInput
from t2t_repro.server import engine
from t2t_repro.server.engine import Batch, Description
from t2t_repro.server.process import Ended, NotRead, Process

_LOADING = 600.0  # seconds that an export may take to load

_log = logging.getLogger(__name__)


class WorkerDied(RuntimeError):
    """The process ended while it translated, or took too long."""


class DiedIdle(WorkerDied):
    """The process ended before it began to translate."""


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
        self._process: Process | None = None

    async def start(self) -> Description:
        """Start the process and open the export in it.

        Raises:
            BadInput: the system starts no process, the export is not usable, the process died of
                it, or it loads for ten minutes; the process has ended.
        """
        self.stop()
        try:
            return await self._load()
        except TimeoutError:
            raise BadInput(f"{self._export}: not loaded after {_LOADING:g} s") from None
        except Ended:
            raise BadInput(
                f"{self._export}: its process ended while it loaded, perhaps for lack of memory"
            ) from None
        except OSError as error:  # of this process; those of the export are BadInput
            raise BadInput(
                f"{self._export}: a process for it cannot be started ({error.strerror or error})"
            ) from None

    async def _load(self) -> Description:
        self._process = process = Process(engine.start)
        try:
            async with asyncio.timeout(_LOADING):
                description: Description = await process.call(
                    engine.load, self._export, self._threads
                )
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
        if self._process is None:
            await self.start()
        try:
            return await self._answer(signature, rows)
        except DiedIdle:
            await self.start()
        return await self._answer(signature, rows)

    async def _answer(self, signature: str, rows: Sequence[Any]) -> Batch:
        assert self._process
        rows_text = "this sentence" if len(rows) == 1 else f"{len(rows)} sentences"
        try:
            async with asyncio.timeout(self._limit):
                batch: Batch = await self._process.call(engine.answer, signature, rows)
        except NotRead:
            self.stop()
            raise DiedIdle(f"the worker died before it began with {rows_text}") from None
        except Ended:
            self.stop()
            raise WorkerDied(f"the worker died of {rows_text}") from None
        except TimeoutError:
            self.kill()
            _log.error("a worker is killed: %s took %g s", rows_text, self._limit)
            raise WorkerDied(f"{rows_text} took too long") from None
        return batch

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        process, self._process = self._process, None
        if process:
            process.kill()

    def stop(self) -> None:
        """End the process once it has answered."""
        process, self._process = self._process, None
        if process:
            process.stop()
