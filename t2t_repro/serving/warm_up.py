"""Requests that TensorFlow Serving answers to itself when it loads an export.

So that no user waits for the first answer, which takes longer than the others. The file is
assets.extra/tf_serving_warmup_requests, a TFRecord of PredictionLogs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

# One short line, then a batch with a long one: the two sizes that memory is taken for.
TEXTS = (["Hello."], ["Hello."] * 7 + ["this is a long line " * 8])


def write(directory: Path, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Writes the file into a SavedModel.

    Args:
        directory: The SavedModel.
        requests: (signature, {input: value}) of each request, in the order they are answered.
    """
    path = directory / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            writer.write(prediction_log(signature, inputs))


def prediction_log(signature: str, inputs: Mapping[str, Any]) -> bytes:
    """A tensorflow.serving.PredictionLog with one PredictRequest.

    Spelt out here, since four messages around TensorFlow's own TensorProto are not worth another
    package beside every install; the numbers are those of the fields in prediction_log.proto,
    predict.proto and model.proto. A test reads them with tensorflow-serving-api.
    """
    model_spec = _field(3, signature.encode())
    entries = (  # of a map: 1 the key, 2 the value
        _field(1, name.encode()) + _field(2, tf.make_tensor_proto(value).SerializeToString())
        for name, value in inputs.items()
    )
    request = _field(1, model_spec) + b"".join(_field(2, entry) for entry in entries)
    return _field(6, _field(1, request))  # PredictionLog.predict_log, PredictLog.request


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes, text or a message: its key, its length, itself."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    if value < 0x80:
        return bytes([value])
    return bytes([value & 0x7F | 0x80]) + _varint(value >> 7)
