"""The model that the server answers with: the highest usable version of an export."""

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipelines.errors import BadInput
from t2t_repro.server.batcher import Batcher
from t2t_repro.server.engine import Description
from t2t_repro.server.metrics import Metrics
from t2t_repro.server.options import Options
from t2t_repro.server.worker import Worker
from t2t_repro.serving import export_files
from t2t_repro.serving.exports import is_export

_log = logging.getLogger(__name__)

_Files = tuple[tuple[str, int, int], ...]  # name, size and time of change of each file
_PAUSE = 60.0  # seconds before a version that did not load is tried again; then twice as many


class Failure(NamedTuple):
    """Why a version with these files is not served, and when it is tried again."""

    files: _Files
    reason: str
    pause: float  # seconds
    next_try: float  # seconds, by `time.monotonic`


class Version:
    """One version of an export, with its workers and its queue; `load` makes it.

    Args:
        number: The version.
        path: Its directory.
        options: The server's settings.
        metrics: The server's counters.
    """

    def __init__(self, number: int, path: Path, options: Options, metrics: Metrics):
        self.number = number
        self.files = _files(path)  # before they are read
        self._options, self._metrics = options, metrics
        limit = options.timeout_s + 1  # all requests of a batch have been given up by then
        self._workers = [Worker(path, options.threads, limit) for _ in range(options.workers)]
        self.batcher: Batcher
        self.description: Description

    async def load(self) -> None:
        """Start the workers, the first one alone in case the export is not usable, and the queue.

        Raises:
            BadInput: the export is not usable.
        """
        try:
            first, *others = self._workers
            self.description = await first.start()
            await asyncio.gather(*(worker.start() for worker in others))
        except BaseException:
            for worker in self._workers:
                worker.kill()
            raise
        self.batcher = Batcher(
            [worker.run for worker in self._workers],
            self._options.batch_size,
            self._options.max_wait_ms / 1000,
            self._options.queue_size,
            self._metrics,
        )

    async def close(self) -> None:
        """Answer what waits, then end the workers."""
        await self.batcher.close()
        for worker in self._workers:
            worker.stop()

    def kill(self) -> None:
        """End at once, without answering."""
        self.batcher.cancel()
        for worker in self._workers:
            worker.kill()


class ServedModel:
    """The versions of an export, of which the highest usable one is served.

    Where a version does not load, the one before is served. The failed one is tried again after
    ever longer pauses, since there may have been too little memory for two versions. A version
    whose files have changed is loaded again at once.

    Args:
        options: The server's settings.
        metrics: The server's counters.
    """

    def __init__(self, options: Options, metrics: Metrics):
        self._options, self._metrics = options, metrics
        self._seen: dict[int, _Files] = {}  # at the last look
        self._old: dict[asyncio.Task[None], Version] = {}  # which answer what they had accepted
        self.failures: dict[int, Failure] = {}  # of unusable versions
        self.current: Version | None = None

    async def start(self) -> None:
        """Load the highest usable version.

        Raises:
            BadInput: no version is usable; the message is about the highest.
        """
        self._seen = {number: files for number, _, files in await asyncio.to_thread(self._look)}
        await self._refresh()
        if self.current is None:
            reasons = [failure.reason for failure in self.failures.values()]
            raise BadInput(
                reasons[0] if reasons else f"{self._options.export_dir}: no export there"
            )

    async def watch(self) -> None:
        """Look for new, changed and deleted versions, for ever."""
        while True:
            await asyncio.sleep(self._options.poll_s)
            try:
                await self._refresh()
            except Exception:
                _log.exception("looking for versions failed")

    async def close(self) -> None:
        """End at once: no request is open any more."""
        current, self.current = self.current, None
        for version in filter(None, (current, *self._old.values())):
            version.kill()

    async def _refresh(self) -> None:
        """Serve the highest usable version, unless that is what is served already."""
        found = await asyncio.to_thread(self._look)
        seen, self._seen = self._seen, {number: files for number, _, files in found}
        self.failures = {
            number: failure for number, failure in self.failures.items() if number in self._seen
        }
        for number, path, files in found:
            if self.current and (number, files) == (self.current.number, self.current.files):
                return
            if self._failed(number, files):
                continue
            if files == seen.get(number):
                if await self._load(number, path):
                    return
            elif self.current and number == self.current.number:
                return  # it goes on from memory until its files stay the same
            # Else it is still being copied; at the next look, perhaps, no more.

    def _failed(self, number: int, files: _Files) -> bool:
        failure = self.failures.get(number)
        return (
            failure is not None and failure.files == files and time.monotonic() < failure.next_try
        )

    async def _load(self, number: int, path: Path) -> bool:
        version = Version(number, path, self._options, self._metrics)
        try:
            if self._options.verify:
                await asyncio.to_thread(export_files.verify, path)
            await version.load()
        except Exception as error:
            before = self.failures.get(number)
            pause = 2 * before.pause if before and before.files == version.files else _PAUSE
            next_try = time.monotonic() + pause
            self.failures[number] = Failure(version.files, str(error), pause, next_try)
            _log.error("version %d is not served: %s", number, error)
            return False
        self.failures.pop(number, None)
        old, self.current = self.current, version
        self._metrics.version.set(number)
        _log.info("version %d is served: %s", number, path)
        if old:
            task = asyncio.create_task(old.close())
            self._old[task] = old
            task.add_done_callback(self._old.pop)
        return True

    def _look(self) -> list[tuple[int, Path, _Files]]:
        """Return number, directory and files of the versions, highest first."""
        return [(number, path, _files(path)) for number, path in self._found()]

    def _found(self) -> list[tuple[int, Path]]:
        """Return the versions in the export directory, highest first."""
        base = self._options.export_dir
        versions = {int(path.name): path for path in _children(base) if path.name.isdecimal()}
        if versions or not is_export(base):
            return sorted(versions.items(), reverse=True)
        return [(int(base.name) if base.name.isdecimal() else 1, base)]


def _children(directory: Path) -> Iterator[Path]:
    return (path for path in directory.glob("*") if path.is_dir())


def _files(path: Path) -> _Files:
    """Describe the files of a version, to find out whether they change."""
    found = []
    for file in sorted(path.rglob("*")):
        try:
            status = file.stat()
        except OSError:  # deleted meanwhile
            continue
        found.append((str(file.relative_to(path)), status.st_size, status.st_mtime_ns))
    return tuple(found)
