"""A process that makes calls, one at a time; a pipe carries them and their answers."""

import asyncio
import contextlib
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any


class Ended(Exception):
    """The process has ended before it has answered."""


class NotRead(Ended):
    """The process has ended before it has read the call."""


class Process:
    """A process that makes calls.

    It is no ProcessPoolExecutor, which keeps both ends of its pipe: if a process dies in the middle
    of an answer, the pool waits for the rest of it for ever, and so does the end of the program.

    Args:
        prepare: Called in the process at its start.

    Raises:
        OSError: the system starts no process.
    """

    def __init__(self, prepare: Callable[[], None]):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer_calls, args=(theirs, prepare), daemon=True)
        with theirs:
            try:
                self._process.start()
            except OSError:
                self._pipe.close()
                raise
        self._thread = ThreadPoolExecutor(1)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns in the process.

        Raises:
            Ended: the process has ended; NotRead if it is known not to have read the call.
            Exception: whatever the function has raised.
        """
        loop = asyncio.get_running_loop()
        is_value, answer = await loop.run_in_executor(
            self._thread, self._exchange, (function, arguments)
        )
        if is_value:
            return answer
        raise answer

    def _exchange(self, call: tuple[Callable[..., Any], tuple[Any, ...]]) -> tuple[bool, Any]:
        try:
            self._pipe.send(call)
            answer: tuple[bool, Any] = self._pipe.recv()
        except EOFError:
            raise Ended from None
        except (
            OSError
        ):  # broken pipe; or connection reset: Linux says so if the call is still there
            raise NotRead from None
        return answer

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        self._process.kill()
        self.stop()

    def stop(self) -> None:
        """End the process once it has answered; it cannot be called any more."""
        self._thread.submit(self._end)
        self._thread.shutdown(wait=False)

    def _end(self) -> None:
        self._pipe.close()
        self._process.join()


def _answer_calls(calls: Connection, prepare: Callable[[], None]) -> None:
    prepare()
    with contextlib.suppress(EOFError, OSError):  # the other end is closed
        while True:
            calls.send(_answer(*calls.recv()))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Return whether a call returned, and what it returned or raised."""
    try:
        return True, function(*arguments)
    except Exception as error:
        return False, error
