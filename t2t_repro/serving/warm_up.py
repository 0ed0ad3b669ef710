"""Warm-up requests, which TensorFlow Serving runs when it loads an export.

The first request takes longer than later ones; with warm-up requests no user waits for it. They are
in the file assets.extra/tf_serving_warmup_requests, a TFRecord of PredictionLogs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

# One short line, then a batch that has a long one: memory is allocated for both sizes.
TEXTS = (["Hello."], ["Hello."] * 7 + ["this is a long line " * 8])


def write(directory: Path, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Write the file of warm-up requests into a SavedModel.

    Args:
        directory: The SavedModel.
        requests: (signature, {input: value}) of each request, in the order in which they are run.
    """
    path = directory / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests:
            writer.write(prediction_log(signature, inputs))


def prediction_log(signature: str, inputs: Mapping[str, Any]) -> bytes:
    """Return a serialised tensorflow.serving.PredictionLog with one PredictRequest.

    The four messages around TensorFlow's own TensorProto are encoded here, which saves the
    dependency on tensorflow-serving-api. The numbers are the field numbers of prediction_log.proto,
    predict.proto and model.proto. A test reads the result with tensorflow-serving-api.
    """
    model_spec = _field(3, signature.encode())
    entries = (  # map entries: field 1 is the key, 2 the value
        _field(1, name.encode()) + _field(2, tf.make_tensor_proto(value).SerializeToString())
        for name, value in inputs.items()
    )
    request = _field(1, model_spec) + b"".join(_field(2, entry) for entry in entries)
    return _field(6, _field(1, request))  # PredictionLog.predict_log, PredictLog.request


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of bytes, text or a message: its key, its length, its content."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Encode seven bits per byte, the lowest first; the eighth bit says that more bytes follow."""
    if value < 0x80:
        return bytes([value])
    return bytes([value & 0x7F | 0x80]) + _varint(value >> 7)
