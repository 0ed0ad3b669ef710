"""The server's life: its port, its start, its end."""

import asyncio
import logging
import resource
import signal
import socket
import sys

import uvicorn
from starlette.applications import Starlette

from pipelines.errors import BadInput
from t2t_repro.server.access import log_to_stderr
from t2t_repro.server.app import make_app
from t2t_repro.server.connection import MOST, Connection
from t2t_repro.server.metrics import Metrics
from t2t_repro.server.options import Options
from t2t_repro.server.served_model import ServedModel

_log = logging.getLogger(__name__)
_SIGNALS = signal.SIGTERM, signal.SIGINT
_MOST_HEAD = 1 << 16  # bytes of a request's head
_FILES = 4096  # that may be open at once: connections, and the pipes of the workers


def serve(options: Options, access_log: bool) -> None:
    """Serve until SIGTERM or SIGINT comes; then answer what was accepted, and return.

    Args:
        options: The settings.
        access_log: Whether each request is logged on stderr.

    Raises:
        BadInput: The port is taken, or the export is not usable.
    """
    log_to_stderr(access_log)
    _allow_files()
    listening = _bind(options.host, options.port)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: sys.exit(0))
    asyncio.run(_serve(options, listening))


def _allow_files() -> None:
    """Let the process open as many files as `MOST` connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _bind(host: str, port: int) -> socket.socket:
    """Take the port; nobody can connect yet.

    Raises:
        BadInput: The port is taken, or the address is not one of this machine.
    """
    listening = None
    try:
        # With its protocol, TCP: else asyncio does not turn off Nagle's algorithm, and an answer
        # waits 40 ms for its second packet.
        *kind, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(*kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        return listening
    except (OSError, UnicodeError) as error:  # UnicodeError: no host can have such a name
        if listening:
            listening.close()
        raise _unusable(host, port, error) from None


def _unusable(host: str, port: int, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or error
    return BadInput(f"--host={host} --port={port}: {reason}; give another --port or --host")


def http_config(app: Starlette, options: Options) -> uvicorn.Config:
    """Return how uvicorn serves an application."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=int(options.timeout_s) + 1,
        server_header=False,
        h11_max_incomplete_event_size=_MOST_HEAD,
    )


async def _serve(options: Options, listening: socket.socket) -> None:
    metrics = Metrics()
    model = ServedModel(options, metrics)
    await model.start()
    app = make_app(model, options, metrics)
    server = uvicorn.Server(http_config(app, options))
    watching = asyncio.create_task(model.watch())
    try:
        _listen(listening, options)
        # uvicorn handles the signals while it runs; then it sends them again, when all is answered.
        for number in _SIGNALS:
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        await server.serve(sockets=[listening])
    finally:
        watching.cancel()
        await model.close()


def _listen(listening: socket.socket, options: Options) -> None:
    """Let clients connect, and say where: from here on a connection waits to be accepted.

    Raises:
        BadInput: Another server, which was started at the same time, listens at the port.
    """
    try:
        listening.listen(MOST)
    except OSError as error:
        raise _unusable(options.host, options.port, error) from None
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    _log.info("serving %s at http://%s:%d", options.export_dir, shown, port)
