"""Connections to clients: uvicorn's, with limits that it lacks.

h11 reads the requests: it is strict, bounds their headers, and ignores the offer to go on in
HTTP/2 that Java's client sends with its first request.
"""

import asyncio
import json

import h11
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 2048  # connections that may be open at once; requests on further ones get status 503


class Connection(H11Protocol):
    """A connection that ends if its client neither completes a request nor reads an answer.

    uvicorn itself closes only those that are silent after an answer.
    """

    patience = 20.0  # seconds between two looks at its progress

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Watch over the connection while it lasts."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            self.app = _busy
        self._seen: object = (None, 0)
        self._next_look = self.loop.call_later(self.patience, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the watch."""
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Hang up if nothing has moved since the last look, and that is the client's affair."""
        unsent = self.transport.get_write_buffer_size()
        answering = self.cycle is not None and not self.cycle.response_complete and not unsent
        seen = None if answering else (self.cycle, unsent)  # each request has a cycle of its own
        if seen is not None and seen == self._seen:
            self.transport.abort()
            return
        self._seen = seen
        self._next_look = self.loop.call_later(self.patience, self._look)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, as all errors are answered, unless an answer was sent already.

        It may be the rest of a body that was too large, and that nobody reads.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": msg})
            self.transport.write(
                f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
            )
        self.transport.close()

    def _should_upgrade(self) -> bool:
        return False


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request, unless it asks whether the server is alive: it is."""
    if scope["path"] in ("/healthz", "/readyz"):
        response: Response = PlainTextResponse("ok\n", headers={"Connection": "close"})
    else:
        headers = {"Connection": "close", "Retry-After": "1"}
        response = JSONResponse({"error": "too many connections"}, 503, headers)
    await response(scope, receive, send)
