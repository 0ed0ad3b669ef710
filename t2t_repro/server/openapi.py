"""What /openapi.json says of the routes whose bodies are read by hand."""

from typing import Any

_STRINGS = {
    "oneOf": [
        {"type": "string"},
        {"type": "object", "properties": {"b64": {"type": "string"}}, "required": ["b64"]},
    ]
}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_VALUE = {"oneOf": [{"type": "string"}, _IDS]}


def _body(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _responses(*statuses: int) -> dict[int | str, Any]:
    schema = {
        "type": "object",
        "properties": {"error": {"type": "string"}},
        "required": ["error"],
    }
    content = {"application/json": {"schema": schema}}
    return {status: {"description": _MEANING[status], "content": content} for status in statuses}


_MEANING = {
    400: "The request is malformed, or beyond a limit.",
    401: "The token is missing.",
    404: "There is no such model, version or picture.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is compressed.",
    422: "Not used.",
    429: "The queue is full; the header Retry-After says for how many seconds.",
    503: "The model is not loaded.",
    504: "There was no answer in time.",
}
_WORK = _responses(400, 401, 404, 408, 413, 415, 429, 503, 504)

PREDICT: dict[str, Any] = {
    "summary": "Translate",
    "description": "TensorFlow Serving's predict: `instances` by rows, or `inputs` by columns.",
    "responses": _WORK,
    "openapi_extra": _body(
        {
            "signature_name": {"enum": ["serving_default", "nbest", "translate_ids"]},
            "instances": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "oneOf": [
                        _STRINGS,
                        {"type": "object", "properties": {"text": _STRINGS, "ids": _IDS}},
                    ]
                },
            },
            "inputs": {
                "type": "object",
                "properties": {
                    "text": {"type": "array", "items": _STRINGS},
                    "ids": {"type": "array", "items": _IDS},
                },
            },
        },
        [],
    ),
}
ATTENTION: dict[str, Any] = {
    "summary": "Draw the attention between the words of a sentence and its translation",
    "responses": _WORK,
    "openapi_extra": _body({"text": {"type": "string"}}, ["text"]),
}
STATUS: dict[str, Any] = {
    "summary": "State of the versions",
    "responses": _responses(400, 401, 404),
}
METADATA: dict[str, Any] = {
    "summary": "Signatures of the version that is served",
    "responses": _responses(400, 401, 404, 503),
}
