"""A process that runs functions for this one, one at a time; a pipe carries calls and answers."""

import asyncio
import contextlib
import errno
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any


class Ended(Exception):
    """The process ended before it answered."""


class NotRead(Ended):
    """The process ended before it read the whole call."""


class Process:
    """A process that runs functions for this one.

    It is no ProcessPoolExecutor, which keeps both ends of its pipe: if a process dies in the middle
    of an answer, the pool waits for the rest of it for ever, and so does the end of the program.

    Args:
        prepare: Called in the process at its start.

    Raises:
        OSError: the system starts no process, or no thread.
    """

    def __init__(self, prepare: Callable[[], None]):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer_calls, args=(theirs, prepare), daemon=True)
        self._thread = ThreadPoolExecutor(1)
        with theirs:
            try:
                self._thread.submit(int)  # starts the thread
                self._process.start()
            except (OSError, RuntimeError) as error:
                self._pipe.close()
                self._thread.shutdown(wait=False)
                if isinstance(error, RuntimeError):  # no thread
                    raise OSError(errno.EAGAIN, str(error)) from None
                raise

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
        # It was dead already; or, as Linux says, it died with the call unread.
        except ConnectionError:
            raise NotRead from None
        # The pipe ended, perhaps in the middle of an answer; or this answer cannot be read here.
        except Exception:
            self._process.kill()
            raise Ended from None
        return answer

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        self._process.kill()
        self.stop()

    def stop(self) -> None:
        """End the process once it has answered, at once if it is idle; call it no more."""
        self._thread.submit(self._end)
        self._thread.shutdown(wait=False)

    def _end(self) -> None:
        self._pipe.close()
        self._process.join()


def _answer_calls(calls: Connection, prepare: Callable[[], None]) -> None:
    prepare()
    with contextlib.suppress(EOFError, OSError):  # the other end is closed
        while True:
            calls.send_bytes(_answer(*calls.recv()))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Return whether a call returned, and what it returned or raised, pickled."""
    try:
        return pickle.dumps((True, function(*arguments)))
    except Exception as error:
        return pickle.dumps((False, error))
