"""The queue between requests and workers: sentences of many requests become batches.

Sentences wait in the order of their turns. A request that arrives now takes the current turn with
its first `_PER_TURN` sentences, the next turn with as many more, and so on: a request of a hundred
lines does not keep one of a single line waiting.

A worker takes the sentence at the front, and those of the same signature that are nearest to it in
length. The first worker never takes a long sentence, unless it is the only one: however many long
ones there are, a short one waits for no more than the batches of short ones in front of it.

If a worker dies or its engine fails, the sentences of its batch go back to their places, and each
is translated again, alone: the sentence that is to blame costs no other its answer. But a worker
may die because the system is short of memory, and so may the next one. A sentence is therefore
taken to be the cause only when three workers have died while they translated it.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.errors import BadInput
from t2t_repro.server.engine import Batch, Row
from t2t_repro.server.metrics import Metrics
from t2t_repro.server.worker import WorkerDied

_log = logging.getLogger(__name__)

_PER_TURN = 16  # sentences
_CANDIDATES = 4  # batches of sentences that are sorted by length before one is taken
_LONG = 400  # characters: a sentence that has more is long
_MOST = 16 * _LONG  # characters of a batch, with those that fill up to its longest sentence
_PIECE = 4  # characters that a piece counts for
_DEATHS = 3  # of workers that a sentence is to blame for

Run = Callable[[str, Sequence[Any]], Awaitable[Batch]]  # (signature, rows) -> answers


class QueueFull(Exception):
    """There is no room for a request's sentences."""

    def __init__(self, retry_after: int):
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after  # seconds


@dataclass(eq=False, slots=True)
class _Waiting:
    """A sentence in the queue."""

    signature: str
    row: Row
    place: tuple[int, int]  # its turn, and its number among all sentences
    arrived: float
    answer: asyncio.Future[Any]
    failed: bool = False  # in a batch; it is tried again, alone
    deaths: int = 0  # of workers that translated it

    @property
    def length(self) -> int:
        """The length in characters."""
        return len(self.row) * (1 if isinstance(self.row, str) else _PIECE)

    @property
    def is_long(self) -> bool:
        """Whether the sentence takes long."""
        return self.length > _LONG or self._is_attention

    @property
    def _is_attention(self) -> bool:
        return self.signature.startswith("attention")

    @property
    def group(self) -> tuple[object, ...]:
        """The key that all sentences of a batch share: the signature, and whether they are long.

        Attention, whose answers have many MB, and what has failed before are translated alone.
        """
        alone = self.failed or self._is_attention
        return self.signature, self.is_long, self.place if alone else None


class Batcher:
    """A queue, and for each worker a task that takes batches from it.

    Args:
        workers: Called with (signature, rows), one batch at a time.
        batch_size: Sentences in a batch, at most.
        max_wait: Seconds that a sentence waits for others, at most, while a worker is idle.
        room: Sentences that may wait.
        metrics: Counts batches and sentences.
    """

    def __init__(
        self, workers: Sequence[Run], batch_size: int, max_wait: float, room: int, metrics: Metrics
    ):
        self._batch_size, self._max_wait, self._room = batch_size, max_wait, room
        self._metrics = metrics
        self._waiting: list[_Waiting] = []
        self._serial = itertools.count()
        self._turn, self._closing = 0, False
        self._running = [0] * len(workers)  # sentences that each is translating
        self._seconds = 0.05  # of a worker for a sentence: a running mean
        self._change = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._work(number, run)) for number, run in enumerate(workers)
        ]

    async def submit(self, signature: str, rows: Sequence[Row]) -> list[Any]:
        """Return the answers to the rows of a request; when cancelled, drop those that wait.

        Raises:
            QueueFull: there is no room for all of them.
            WorkerDied: three workers have died of a row, the last two when it was alone.
            BadInput: a worker cannot be started again.
            RuntimeError: the engine failed with a row that was alone.
        """
        now, loop = time.monotonic(), asyncio.get_running_loop()
        self._forget()
        if len(self._waiting) + len(rows) > self._room:
            seconds = self._seconds * len(self._waiting) / len(self._tasks)
            raise QueueFull(min(60, max(1, math.ceil(seconds))))
        waiting = [
            _Waiting(
                *(signature, row, (self._turn + number // _PER_TURN, next(self._serial)), now),
                loop.create_future(),
            )
            for number, row in enumerate(rows)
        ]
        self._set([*self._waiting, *waiting])
        self._wake()
        try:
            return await asyncio.gather(*(each.answer for each in waiting))
        finally:
            for each in waiting:
                each.answer.cancel()
            self._forget()

    def cancel(self) -> None:
        """End at once, without answering."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Answer all that wait, then end."""
        self._closing = True
        self._wake()
        await asyncio.gather(*self._tasks)

    def _forget(self) -> None:
        """Drop the sentences that nobody waits for any more."""
        self._set([each for each in self._waiting if not each.answer.done()])

    def _set(self, waiting: list[_Waiting]) -> None:
        """Replace the queue; another version's queue may be counted by the same gauge."""
        self._metrics.queue.inc(len(waiting) - len(self._waiting))
        self._waiting = waiting

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def _work(self, number: int, run: Run) -> None:
        while batch := await self._next_batch(number):
            began, self._running[number] = time.monotonic(), len(batch)
            try:
                answers, pieces = await run(batch[0].signature, [each.row for each in batch])
            except Exception as error:
                self._fail(batch, error)
            else:
                seconds = time.monotonic() - began
                self._seconds += 0.1 * (seconds / len(batch) - self._seconds)
                self._metrics.batch(batch[0].signature, len(batch), seconds, pieces)
                for each, answer in zip(batch, answers, strict=True):
                    if not each.answer.done():
                        each.answer.set_result(answer)
            self._running[number] = 0
            self._wake()  # another worker may have waited for as many sentences as this one had

    def _fail(self, batch: list[_Waiting], error: Exception) -> None:
        """Let the sentences of a batch wait for another try, or answer them with the error."""
        died = isinstance(error, WorkerDied)
        for each in batch:
            each.failed = True
            each.deaths += died
        awaited = [each for each in batch if not each.answer.done()]
        to_blame = len(batch) == 1 and (not died or batch[0].deaths >= _DEATHS)
        if to_blame or isinstance(error, BadInput):
            for each in awaited:
                each.answer.set_exception(error)
        elif awaited:
            _log.error("%s; trying again%s", error, ", one by one" if len(batch) > 1 else "")
            self._set([*self._waiting, *awaited])

    async def _next_batch(self, number: int) -> list[_Waiting]:
        """Wait for the next batch of a worker; it is empty once the queue is closed."""
        while True:
            ready = self._ready(number)
            if self._closing and not ready:
                return []
            patience = self._patience(ready)
            if ready and patience <= 0:
                return self._take(ready)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience if ready else None):
                    await self._change.wait()

    def _patience(self, ready: list[_Waiting]) -> float:
        """Return how long to wait for more sentences, in seconds.

        Other workers' batches show how many requests there are at a time: while one translates
        more sentences than are waiting here, more will come. A request that is alone never waits.
        """
        if not ready or self._closing or len(ready) >= max(self._running):
            return 0
        return min(each.arrived for each in ready) + self._max_wait - time.monotonic()

    def _ready(self, number: int) -> list[_Waiting]:
        """Return the sentences that a worker may take."""
        self._forget()
        short_only = number == 0 and len(self._tasks) > 1
        return [each for each in self._waiting if not (short_only and each.is_long)]

    def _take(self, ready: list[_Waiting]) -> list[_Waiting]:
        """Take the sentence at the front, and those like it, from the queue."""
        ready.sort(key=lambda each: each.place)
        front = ready[0]
        like = [each for each in ready if each.group == front.group]
        like = like[: _CANDIDATES * self._batch_size]
        like.sort(key=lambda each: each.length)
        # Idle workers share what there is.
        first_worker = 1 if front.is_long and len(self._running) > 1 else 0
        idle = self._running[first_worker:].count(0)
        size = min(self._batch_size, math.ceil(len(like) / idle))
        first = min(like.index(front) // size * size, len(like) - size)
        batch = _fitting(like[first : first + size], front)
        # Newcomers join the next turn; else a stream of them would hold it up forever.
        self._turn = max(self._turn, front.place[0] + 1)
        taken = set(map(id, batch))
        self._set([each for each in self._waiting if id(each) not in taken])
        return batch


def _fitting(batch: list[_Waiting], front: _Waiting) -> list[_Waiting]:
    """Drop all but `front`, the longest first, until a sorted batch is within the limits."""
    while len(batch) > 1 and len(batch) * batch[-1].length > _MOST:
        batch = batch[1:] if batch[-1] is front else batch[:-1]
    return batch
