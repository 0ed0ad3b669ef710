"""What /openapi.json says of the routes, whose paths and bodies are read by hand."""

from typing import Any

_Schema = dict[str, Any]


def _object(required: dict[str, _Schema], optional: dict[str, _Schema] | None = None) -> _Schema:
    properties = required | (optional or {})
    return {"type": "object", "properties": properties, "required": [*required]}


def _list(items: _Schema, **limits: int) -> _Schema:
    return {"type": "array", "items": items, **limits}


def _number(**limits: int) -> _Schema:
    return {"type": "integer", **limits}


_STRING = {"type": "string"}
_TRUTH = {"type": "boolean"}
_SCORE = {"type": "number"}
_BASE64 = _object({"b64": _STRING}) | {"additionalProperties": False}
_TEXT = {"anyOf": [_STRING, _BASE64]}
_IDS = _list(_number(minimum=0), minItems=1)

_SIGNATURE = {
    "signature_name": {"enum": ["serving_default", "nbest", "translate_ids", "attention"]}
}
_INPUTS = {"text": _TEXT, "ids": _IDS}
_NAMED = [_object({name: each}) | {"additionalProperties": False} for name, each in _INPUTS.items()]
_ROWS = {"anyOf": [_list(each, minItems=1) for each in (_TEXT, _IDS, *_NAMED)]}
_COLUMNS = {
    "anyOf": [
        *(_list(each) for each in _INPUTS.values()),
        *(_object({name: _list(each)}) for name, each in _INPUTS.items()),
    ]
}
_REQUEST = {
    "oneOf": [
        _object({"instances": _ROWS}, _SIGNATURE),
        _object({"inputs": _COLUMNS}, _SIGNATURE),
    ]
}


def _answers(shape: Any) -> _Schema:
    """Describe what all signatures give, where `shape` makes a row's value a column's or keeps it.

    Each signature has columns of its own; `score` and `scores` are float32.
    """
    return {
        "anyOf": [
            _object({"translation": shape(_STRING), "score": shape(_SCORE), "cut": shape(_TRUTH)}),
            _object(
                {
                    "translations": shape(_list(_STRING)),
                    "scores": shape(_list(_SCORE)),
                    "cut": shape(_TRUTH),
                }
            ),
            _object({"ids": shape(_list(_number(minimum=0))), "score": shape(_SCORE)}),
        ]
    }


_WEIGHTS = _list(_list(_list(_list(_SCORE))))  # by layer, head, query and key
_ATTENTION = _object(
    {
        "translation": _STRING,
        **dict.fromkeys(("source_pieces", "target_pieces"), _list(_STRING)),
        **dict.fromkeys(("encoder", "decoder", "cross"), _WEIGHTS),
    }
)
_ANSWER = {
    "oneOf": [
        _object({"predictions": _list(_answers(lambda value: value))}),
        _object({"outputs": {"anyOf": [_answers(_list), _ATTENTION]}}),
    ]
}
_STATE = _object(
    {
        "version": _STRING,
        "state": {"enum": ["AVAILABLE", "END"]},
        "status": _object({"error_code": {"enum": ["OK", "UNKNOWN"]}, "error_message": _STRING}),
    }
)
_STATUS = _object({"model_version_status": _list(_STATE)})
_METADATA = _object(
    {
        "model_spec": _object({"name": _STRING, "signature_name": _STRING, "version": _STRING}),
        "metadata": _object({"signature_def": {"type": "object"}}),
    }
)

_MEANING = {
    400: "The request is malformed, or beyond a limit.",
    401: "The token is missing or wrong.",
    404: "There is no such model, version or picture.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is compressed.",
    429: "The queue is full.",
    503: "The model is not loaded, or cannot answer this request.",
    504: "There was no answer in time.",
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": _number(minimum=1)}}
_PATH = {"name": _STRING, "number": _number(minimum=0)}


def _json(schema: _Schema) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _route(
    summary: str,
    statuses: tuple[int, ...],
    path: tuple[str, ...] = (),
    body: _Schema | None = None,
    answer: _Schema | None = None,
) -> dict[str, Any]:
    """Return FastAPI's arguments for a route.

    Args:
        summary: What it does.
        statuses: Those of its errors.
        path: The names in its path.
        body: Schema of the request's body, if it has one.
        answer: Schema of the answer, if it is JSON.
    """
    error = _json(_object({"error": _STRING}))
    responses: dict[int, Any] = {
        status: {"description": _MEANING[status]} | error for status in statuses
    }
    if 429 in responses:
        responses[429]["headers"] = _RETRY_AFTER
    if answer:
        responses[200] = {"description": "OK"} | _json(answer)
    operation: dict[str, Any] = {
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _PATH[name]} for name in path
        ]
    }
    if body:
        operation["requestBody"] = {"required": True} | _json(body)
    return {"summary": summary, "responses": responses, "openapi_extra": operation}


_MODEL, _VERSION = ("name",), ("name", "number")
_OF_VERSION = ", for one version"
_WORK = (400, 401, 404, 408, 413, 415, 429, 503, 504)

PREDICT = _route("Translate", _WORK, _MODEL, _REQUEST, _ANSWER)
PREDICT_OF_VERSION = _route("Translate" + _OF_VERSION, _WORK, _VERSION, _REQUEST, _ANSWER)
STATUS = _route("State of the versions", (400, 401, 404), _MODEL, answer=_STATUS)
STATUS_OF_VERSION = _route("State of one version", (400, 401, 404), _VERSION, answer=_STATUS)
METADATA = _route("Signatures", (400, 401, 404, 503), _MODEL, answer=_METADATA)
METADATA_OF_VERSION = _route(
    "Signatures" + _OF_VERSION, (400, 401, 404, 503), _VERSION, answer=_METADATA
)
ATTENTION = _route(
    "Draw the attention between the words of a sentence and its translation",
    _WORK,
    body=_object({"text": _TEXT}),
)
PAGE = _route("The page", (503,))
METRICS = _route("Counters, for Prometheus", (401,))
READY: dict[str, Any] = {
    "summary": "Whether it can translate",
    "responses": {503: {"description": "Not yet", "content": {"text/plain": {}}}},
}
