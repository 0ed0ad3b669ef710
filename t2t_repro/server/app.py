"""The routes of the server, as an ASGI application.

    GET  /                                     the page
    GET  /v1/models/NAME[/versions/N]          state of the versions
    GET  /v1/models/NAME[/versions/N]/metadata the signatures
    POST /v1/models/NAME[/versions/N]:predict  translations
    POST /attention                            the attention between words, as a page
    GET  /healthz, /readyz, /metrics           for those who look after the server
    GET  /openapi.json                         these routes, for programs

N is the number of a version; only the version that is served answers.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import t2t_repro
from pipelines.errors import BadInput
from t2t_repro.server import openapi, rest
from t2t_repro.server.access import Access
from t2t_repro.server.batcher import QueueFull
from t2t_repro.server.engine import described
from t2t_repro.server.metrics import Metrics
from t2t_repro.server.options import Options
from t2t_repro.server.rest import Rejected
from t2t_repro.server.served_model import ServedModel, Version
from t2t_repro.server.worker import WorkerDied

_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self';"
    " frame-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def make_app(model: ServedModel, options: Options, metrics: Metrics) -> FastAPI:
    """Make the application that answers with a model.

    Args:
        model: The model, which is started and closed elsewhere.
        options: The server's settings.
        metrics: What the application counts in.
    """
    # Without the pages of documentation, which load their scripts from elsewhere.
    app = FastAPI(
        title="t2t_repro",
        version=t2t_repro.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # to the header Host, which the client chooses
    )
    app.state.model, app.state.options, app.state.metrics = model, options, metrics
    _add_models(app)
    _add_page(app)
    _add_health(app)
    _add_errors(app)
    app.add_middleware(Access, options=options, metrics=metrics)
    if options.allow_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[options.allow_origin],
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    return app


def _add_models(app: FastAPI) -> None:
    """Add TensorFlow Serving's routes."""

    @app.post("/v1/models/{name}:predict", **openapi.PREDICT)
    @app.post("/v1/models/{name}/versions/{number}:predict", **openapi.PREDICT_OF_VERSION)
    async def predict(request: Request) -> Response:
        return await _predict(request)

    @app.get("/v1/models/{name}", **openapi.STATUS)
    @app.get("/v1/models/{name}/versions/{number}", **openapi.STATUS_OF_VERSION)
    async def status(request: Request) -> Response:
        return _status(request)

    @app.get("/v1/models/{name}/metadata", **openapi.METADATA)
    @app.get("/v1/models/{name}/versions/{number}/metadata", **openapi.METADATA_OF_VERSION)
    async def metadata(request: Request) -> Response:
        return _metadata(request)


def _add_page(app: FastAPI) -> None:
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")

    @app.head("/", include_in_schema=False)
    @app.get("/", response_class=HTMLResponse, **openapi.PAGE)
    async def page(request: Request) -> Response:
        version = _served(request, request.app.state.options.model_name, None)
        settings = json.dumps(_page_settings(request.app.state.options, version))
        text = template.replace("PAGE_SETTINGS", settings.replace("<", "\\u003c"))
        return HTMLResponse(text, headers={"Content-Security-Policy": _PAGE_POLICY})

    @app.post("/attention", response_class=HTMLResponse, **openapi.ATTENTION)
    async def attention(request: Request) -> Response:
        options = request.app.state.options
        async with _deadline(request):
            body = await _body(request, options.max_body_kb * 1024)
            version = _served(request, options.model_name, None)
            if not version.description.draws_attention:
                raise Rejected(
                    404,
                    "this export shows no attention; wanted a SavedModel of a model with full "
                    "self-attention",
                )
            attended = rest.attention_request(body)
            rest.check(attended, version.description, 1, options.max_characters)
            (html,) = await _unless_gone(
                request, version.batcher.submit(attended.signature, attended.rows)
            )
        return HTMLResponse(html)


def _add_health(app: FastAPI) -> None:
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", response_class=PlainTextResponse, summary="Whether the process is alive")
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", response_class=PlainTextResponse, **openapi.READY)
    async def readyz(request: Request) -> Response:
        ready = request.app.state.model.current is not None
        return PlainTextResponse("ok\n" if ready else "not ready\n", 200 if ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse, **openapi.METRICS)
    async def metrics(request: Request) -> Response:
        text = request.app.state.metrics.text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_errors(app: FastAPI) -> None:
    """Answer errors as TensorFlow Serving does."""

    @app.exception_handler(Rejected)
    async def rejected(_: Request, error: Rejected) -> Response:
        return _error(error.status, str(error))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        if request.scope["path"].startswith("/v1/"):  # TensorFlow Serving knows no 404, no 405 here
            return await rejected(request, _malformed(request))
        what = f"{request.method} {request.scope['path']}"
        return _error(error.status_code, f"{error.detail}: {what}", error.headers)

    @app.exception_handler(QueueFull)
    async def full(_: Request, error: QueueFull) -> Response:
        return _error(429, str(error), {"Retry-After": str(error.retry_after)})

    @app.exception_handler(WorkerDied)
    @app.exception_handler(BadInput)  # the export is gone, and a worker could not be started again
    async def unavailable(_: Request, error: Exception) -> Response:
        return _error(503, str(error))


class _Json(JSONResponse):
    """JSON as TensorFlow Serving writes it: the scores of a model that diverged are NaN."""

    def render(self, content: Any) -> bytes:
        """Return the body; half a surrogate pair, which an error may quote, is no UTF-8."""
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return _Json({"error": message}, status, headers)


def _malformed(request: Request) -> Rejected:
    return Rejected(400, f"Malformed request: {request.method} {request.scope['path']}")


_NUMBER = re.compile(r"0*([0-9]{1,19})")  # of a version


def _asked(request: Request) -> tuple[str, int | None]:
    """Return the name and the version that a request's path asks for.

    Raises:
        Rejected: The path is malformed; status 400.
    """
    name, number = request.path_params["name"], request.path_params.get("number")
    if ":" in name:  # such as GET .../NAME:predict
        raise _malformed(request)
    if number is None:
        return name, None
    if not (digits := _NUMBER.fullmatch(number)):
        raise _malformed(request)
    return name, int(digits[1])


def _served(request: Request, name: str, number: int | None) -> Version:
    """Return the version that a request asks for, and that answers it.

    Raises:
        Rejected: Another one is served, or none.
    """
    version: Version | None = request.app.state.model.current
    if version is None:
        raise Rejected(503, "the model is not loaded")
    if name != request.app.state.options.model_name or number not in (None, version.number):
        wanted = f"Latest({name})" if number is None else f"Specific({name}, {number})"
        raise Rejected(404, f"Servable not found for request: {wanted}")
    return version


async def _predict(request: Request) -> Response:
    options = request.app.state.options
    name, number = _asked(request)
    async with _deadline(request):
        _served(request, name, number)  # before the body is read
        body = await _body(request, options.max_body_kb * 1024)
        version = _served(request, name, number)  # now; another one may be served since
        predict = rest.predict_request(body, version.description)
        rest.check(predict, version.description, options.max_lines, options.max_characters)
        request.scope["sentences"] = len(predict.rows)
        answers = await _unless_gone(
            request, version.batcher.submit(predict.signature, predict.rows)
        )
    if predict.signature == "attention":  # JSON already: it may be large
        return Response(f'{{"outputs":{answers[0]}}}', media_type="application/json")
    return _Json(rest.predict_answer(predict, answers))


def _status(request: Request) -> Response:
    name, number = _asked(request)
    model: ServedModel = request.app.state.model
    states = {number: ("END", each.reason) for number, each in model.failures.items()}
    if model.current:
        states[model.current.number] = ("AVAILABLE", "")
    known = name == request.app.state.options.model_name
    if not known or number not in (None, *states):
        what = "any versions" if number is None else f"version {number}"
        raise Rejected(404, f"Could not find {what} of model {name}")
    shown = sorted(states, reverse=True) if number is None else [number]
    return _Json(
        {"model_version_status": [rest.version_status(each, *states[each]) for each in shown]}
    )


def _metadata(request: Request) -> Response:
    name, number = _asked(request)
    version = _served(request, name, number)
    return _Json(rest.metadata(name, version.number, version.description))


@contextlib.asynccontextmanager
async def _deadline(request: Request) -> AsyncIterator[None]:
    """Give up after `timeout_s`: with 408 while the body comes, then with 504.

    Raises:
        Rejected: The time is over.
    """
    seconds = request.app.state.options.timeout_s
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        if request.scope.get("body_read"):
            raise Rejected(504, f"no answer within {seconds:g} s") from None
        raise Rejected(408, f"the request's body did not come within {seconds:g} s") from None


async def _body(request: Request, most: int) -> bytes:
    """Read the body of a request.

    Raises:
        Rejected: It is compressed, or has more than `most` bytes.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Rejected(415, "wanted a body without Content-Encoding")
    declared = request.headers.get("content-length", "0")
    body = bytearray()
    too_large = declared.isdecimal() and int(declared) > most
    if not too_large:
        async for chunk in request.stream():
            body += chunk
            if too_large := len(body) > most:
                break
    if too_large:
        raise Rejected(413, f"wanted a body of at most {most} bytes")
    request.scope["body_read"] = True
    return bytes(body)


async def _unless_gone(request: Request, work: Awaitable[Any]) -> Any:
    """Wait for `work`; cancel it if the client hangs up.

    Raises:
        ClientDisconnect: The client has hung up.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _page_settings(options: Options, version: Version) -> dict[str, Any]:
    """Return what the page has to know."""
    description = version.description
    settings = description.settings
    return {
        "model": options.model_name,
        "description": f"{described(settings)}, version {version.number}",
        "format": settings["format"],
        "output": settings["output"],
        "beam_size": description.beam_size,
        "attention": description.draws_attention,
        "needs_token": bool(options.token),
        "max_characters": options.max_characters,
    }
