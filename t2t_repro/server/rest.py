"""TensorFlow Serving's REST language: its requests read, its answers and errors written.

https://www.tensorflow.org/tfx/serving/api_rest describes it. The wording of errors is TensorFlow
Serving's own where a client may look at it.
"""

import base64
import binascii
import json
import typing
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.vocabulary import EOS, PAD
from t2t_repro.server.engine import Description, Row


class Rejected(Exception):
    """A request that is answered by {"error": message} and an HTTP status."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Predict(typing.NamedTuple):
    """A request to predict."""

    signature: str
    rows: list[Row]
    by_columns: bool  # {"inputs": ...} was sent instead of {"instances": ...}


_Tensors = dict[str, tuple[str, list[int]]]  # {name: (type, sizes)}, -1 for any size


def signatures(description: Description) -> dict[str, tuple[_Tensors, _Tensors]]:
    """Return {signature: (its inputs, its outputs)} of an export."""
    text, beam = {"text": ("DT_STRING", [-1])}, description.beam_size
    found: dict[str, tuple[_Tensors, _Tensors]] = {
        "serving_default": (
            text,
            {
                "translation": ("DT_STRING", [-1]),
                "score": ("DT_FLOAT", [-1]),
                "cut": ("DT_BOOL", [-1]),
            },
        ),
        "nbest": (
            text,
            {
                "translations": ("DT_STRING", [-1, beam]),
                "scores": ("DT_FLOAT", [-1, beam]),
                "cut": ("DT_BOOL", [-1]),
            },
        ),
        "translate_ids": (
            {"ids": ("DT_INT32", [-1, -1])},
            {"ids": ("DT_INT32", [-1, -1]), "score": ("DT_FLOAT", [-1])},
        ),
    }
    if description.draws_attention:
        found["attention"] = {"text": ("DT_STRING", [])}, _attention_outputs(description)
    return found


def _attention_outputs(description: Description) -> _Tensors:
    model = description.settings["model"]
    weights = ("DT_FLOAT", [model["num_layers"], model["num_heads"], -1, -1])
    pieces = ("DT_STRING", [-1])
    return {
        "translation": ("DT_STRING", []),
        **dict.fromkeys(("source_pieces", "target_pieces"), pieces),
        **dict.fromkeys(("encoder", "decoder", "cross"), weights),
    }


def predict_request(body: bytes, description: Description) -> Predict:
    """Read the body of a predict request.

    Raises:
        Rejected: It is not one; status 400.
    """
    request, known = _object(body), signatures(description)
    signature = request.get("signature_name", "")
    if not isinstance(signature, str):
        raise Rejected(400, "'signature_name' key must be a string value.")
    signature = signature or "serving_default"
    if signature not in known:
        raise Rejected(400, f'Serving signature name: "{signature}" not found in signature def')
    ((name, (_, sizes)),) = known[signature][0].items()
    if ("instances" in request) == ("inputs" in request):
        if "inputs" in request:
            raise Rejected(400, "wanted only one of the keys 'inputs' and 'instances'")
        raise Rejected(400, "Missing 'inputs' or 'instances' key")
    by_columns = "inputs" in request
    values = _column(request["inputs"], name) if by_columns else _rows(request["instances"], name)
    if not sizes:
        values = _single(values, name, by_columns)
    if not isinstance(values, list):
        raise Rejected(400, f"'{name}': wanted a list, got {_shown(values)}")
    rows: list[Row] = [_ids(value) if name == "ids" else _text(value) for value in values]
    if name == "ids" and len({len(value) for value in values}) > 1:
        raise Rejected(400, f"'{name}': wanted rows of one length, padded with {PAD}")
    return Predict(signature, rows, by_columns)


def _single(value: Any, name: str, by_columns: bool) -> list[Any]:
    """Return the only value of an input without a batch, in a list."""
    if not by_columns or isinstance(value, list):
        raise Rejected(400, f'wanted a single text: {{"inputs": {{"{name}": "..."}}}}')
    return [value]


def attention_request(body: bytes) -> Predict:
    """Read the body of a request for attention, {"text": ...}.

    Raises:
        Rejected: It is not one; status 400.
    """
    request = _object(body)
    if "text" not in request:
        raise Rejected(400, "Missing 'text' key")
    return Predict("attention_page", [_text(request["text"])], True)


def _object(body: bytes) -> dict[str, Any]:
    if not body:
        raise Rejected(400, "JSON Parse error: The document is empty")
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Rejected(400, f"JSON Parse error: {error}") from None
    if not isinstance(request, dict):
        raise Rejected(400, f"JSON Value: {_shown(request)} Is not object")
    return request


def _rows(instances: Any, name: str) -> list[Any]:
    """Return the values of {"instances": [{name: value}, ...]} or {"instances": [value, ...]}."""
    if not isinstance(instances, list):
        raise Rejected(400, "Excepting 'instances' to be an list/array")
    if not instances:
        raise Rejected(400, "No values in 'instances' array")
    named = _is_object(instances[0])
    for number, instance in enumerate(instances):
        if _is_object(instance) != named:
            wanted, got = ("object", "list") if named else ("value/list", "object")
            raise Rejected(400, f"Expecting {wanted} but got {got} at item {number} of input list")
        if named and instance.keys() != {name}:
            raise Rejected(
                400,
                f"Failed to process element: {number} of 'instances' list. "
                f"JSON object: {_shown(instance)} keys must be equal to: {name}",
            )
    return [instance[name] for instance in instances] if named else instances


def _column(inputs: Any, name: str) -> Any:
    """Return the value of {"inputs": {name: value}} or {"inputs": value}."""
    if not _is_object(inputs):
        return inputs
    if name not in inputs:
        raise Rejected(400, f"Missing named input: {name} in 'inputs' object.")
    return inputs[name]


def _is_object(value: Any) -> bool:
    """Whether a value is an object, and not a string in base64."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def _text(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True).decode(errors="replace")
        except (binascii.Error, ValueError):
            raise Rejected(400, "Unable to base64 decode") from None
    if not isinstance(value, str):
        raise _wrong_type(value, "string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Rejected(400, "JSON Parse error: The surrogate pair in string is invalid.") from None
    return value


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise Rejected(400, f"'ids': wanted a list of rows, got {_shown(value)} in place of a row")
    for each in value:
        if type(each) is not int or not -(1 << 31) <= each < 1 << 31:
            raise _wrong_type(each, "int32")
    end = value.index(EOS) + 1 if EOS in value else 0
    if not end or any(value[end:]) or PAD in value[:end]:
        raise Rejected(
            400, f"'ids': wanted rows of pieces, then EOS ({EOS}), then {PAD}; got {_shown(value)}"
        )
    return value[:end]


def check(request: Predict, description: Description, max_lines: int, max_characters: int) -> None:
    """Check a request against the model's sizes and the server's limits.

    Raises:
        Rejected: It goes beyond them; status 400.
    """
    if len(request.rows) > max_lines:
        raise Rejected(400, f"{len(request.rows)} sentences; wanted at most {max_lines} a request")
    longest = int(description.settings["decode"]["max_source_length"])
    for row in request.rows:
        if isinstance(row, str):
            if len(row) > max_characters:
                raise Rejected(
                    400, f"a sentence of {len(row)} characters; wanted at most {max_characters}"
                )
        elif len(row) > longest:
            raise Rejected(400, f"'ids': a row of {len(row)} pieces; wanted at most {longest}")
        elif not 0 <= min(row) <= max(row) < (description.vocabulary_size or 1 << 31):
            raise Rejected(
                400, f"'ids': wanted 0 to {description.vocabulary_size} - 1, got {_shown(row)}"
            )


def predict_answer(request: Predict, answers: Sequence[Any]) -> dict[str, Any]:
    """Return the body of the answer to a predict request.

    Args:
        request: The request.
        answers: The engine's answers to its rows, see `engine.answer`.
    """
    columns = _COLUMNS[request.signature](answers)
    if request.by_columns:
        return {"outputs": columns}
    rows = zip(*columns.values(), strict=True)
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


def _default_columns(answers: Sequence[Any]) -> dict[str, list[Any]]:
    best = [lines[0] for lines in answers]
    return {
        "translation": [text for text, _, _ in best],
        "score": [_float32(score) for _, score, _ in best],
        "cut": [cut for _, _, cut in best],
    }


def _nbest_columns(answers: Sequence[Any]) -> dict[str, list[Any]]:
    return {
        "translations": [[text for text, _, _ in lines] for lines in answers],
        "scores": [[_float32(score) for _, score, _ in lines] for lines in answers],
        "cut": [lines[0][2] for lines in answers],
    }


def _ids_columns(answers: Sequence[Any]) -> dict[str, list[Any]]:
    longest = max((len(ids) for ids, _ in answers), default=0)
    return {
        "ids": [ids + [PAD] * (longest - len(ids)) for ids, _ in answers],
        "score": [_float32(score) for _, score in answers],
    }


_COLUMNS = {
    "serving_default": _default_columns,
    "nbest": _nbest_columns,
    "translate_ids": _ids_columns,
}


def _float32(value: float) -> float:
    """Return the shortest decimal fraction that is this float32, as TensorFlow Serving writes."""
    return float(str(np.float32(value)))


def version_status(number: int, state: str, message: str = "") -> dict[str, Any]:
    """Return the state of one version, for `GET /v1/models/NAME`."""
    code = "UNKNOWN" if message else "OK"
    status = {"error_code": code, "error_message": message}
    return {"version": str(number), "state": state, "status": status}


def metadata(name: str, version: int, description: Description) -> dict[str, Any]:
    """Return the answer to `GET /v1/models/NAME/metadata`."""
    found = {
        signature: {
            "inputs": _shapes(inputs),
            "outputs": _shapes(outputs),
            "method_name": "tensorflow/serving/predict",
            "defaults": {},
        }
        for signature, (inputs, outputs) in signatures(description).items()
    }
    spec = {"name": name, "signature_name": "", "version": str(version)}
    return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": found}}}


def _shapes(tensors: _Tensors) -> dict[str, Any]:
    return {
        name: {
            "dtype": dtype,
            "tensor_shape": {
                "dim": [{"size": str(size), "name": ""} for size in sizes],
                "unknown_rank": False,
            },
            "name": f"{name}:0",
        }
        for name, (dtype, sizes) in tensors.items()
    }


def _wrong_type(value: Any, wanted: str) -> Rejected:
    got = f"{_shown(value)} Type: {_TYPES[type(value)]}"
    return Rejected(400, f"JSON Value: {got} is not of expected type: {wanted}")


_TYPES = {
    **{type(None): "Null", bool: "Bool", dict: "Object", list: "Array", str: "String"},
    **{int: "Number", float: "Number"},
}


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:  # nested as deeply as can be read, but not as can be written
        return "a value"
    return text if len(text) <= 100 else f"{text[:100]}..."
