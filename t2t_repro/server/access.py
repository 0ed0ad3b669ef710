"""Who may send requests, and the record of those that came."""

import hmac
import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from t2t_repro.server.metrics import Metrics
from t2t_repro.server.options import Options

_OPEN = ("/", "/healthz", "/readyz")  # to clients without the token, too
_root = logging.getLogger("t2t_repro")
_log = logging.getLogger("t2t_repro.access")


class Access:
    """Middleware: refuses requests without the token, counts all, and logs them as JSON.

    It answers with status 500 where the application fails, and adds the headers that all answers
    have in common.

    Args:
        app: The application inside.
        options: The server's settings.
        metrics: What requests are counted in.
    """

    def __init__(self, app: ASGIApp, options: Options, metrics: Metrics):
        self._app, self._token, self._metrics = app, options.token.encode(), metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.perf_counter(), 499  # the client has hung up, unless an answer starts

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(scope, message)
            await send(message)

        app = self._app if self._may(scope) else _refused
        try:
            await app(scope, receive, watched)
        except ClientDisconnect:
            pass
        except Exception as error:
            if status != 499:  # half of an answer is sent: uvicorn logs the error and hangs up
                raise
            _root.exception("%s %s", scope["method"], scope["path"])
            await _failed(error)(scope, receive, watched)
        finally:
            self._record(scope, status, time.perf_counter() - began)

    def _may(self, scope: Scope) -> bool:
        if not self._token or scope["path"] in _OPEN:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(route, status).inc()
        self._metrics.latency.labels(route).observe(seconds)
        client = scope.get("client")
        record: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": client[0] if client else None,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1000, 1),
        }
        if "sentences" in scope:
            record["sentences"] = scope["sentences"]
        _log.info(json.dumps(record))


def _add_headers(scope: Scope, start: Message) -> None:
    """Add headers to the message that starts an answer."""
    headers = MutableHeaders(scope=start)
    headers["Cache-Control"] = "no-store"  # of translations, and of a version that changes
    headers["X-Content-Type-Options"] = "nosniff"
    # A body that did not come in time, or that was never asked for, would be taken for the next
    # request.
    expects = any(name == b"expect" for name, _ in scope["headers"])
    if start["status"] == 408 or (start["status"] >= 400 and expects):
        headers["Connection"] = "close"


async def _refused(scope: Scope, receive: Receive, send: Send) -> None:
    response = JSONResponse(
        {"error": "wanted the header Authorization: Bearer TOKEN"},
        401,
        {"WWW-Authenticate": "Bearer"},
    )
    await response(scope, receive, send)


def _failed(error: Exception) -> JSONResponse:
    """Return the answer where the server is at fault."""
    return JSONResponse({"error": f"{type(error).__name__} in the server; its log says more"}, 500)


def log_to_stderr(requests: bool) -> None:
    """Write what happens in the server to stderr, and each request as a line of JSON.

    Args:
        requests: Whether requests are logged, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _root.addHandler(handler)
    _root.setLevel(logging.INFO)
    _log.setLevel(logging.INFO if requests else logging.WARNING)
    # It would write a line for each request that is not HTTP.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
