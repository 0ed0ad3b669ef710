"""One suite of requests for this server and for TensorFlow Serving.

It always runs against `serve` with a LiteRT export, and in the slow tier with a SavedModel. Where
TensorFlow Serving serves an export, it runs against that, too:

    TF_SERVING_URL=http://localhost:8501/v1/models/ende TF_SERVING_EXPORT=<the export's directory>
"""

import base64
import json
import os
import re
import typing
from pathlib import Path

import numpy as np
import pytest
import requests
from paths import ROOT
from served import exported, server

from pipelines.vocabulary import EOS, Vocabulary
from t2t_repro.serving import exports, litert, saved_model

LINES = [
    "The house is old.",
    "",
    "We know that the house is old.",
    "<b>&amp;</b> \u2028 \U0001f600",
    "a",
]


class Model(typing.NamedTuple):
    """Where a model is served, and the same model offline."""

    url: str
    offline: exports.Translator
    vocabulary: Vocabulary

    def predict(self, body, path=":predict"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return requests.post(self.url + path, data=data, timeout=60)

    def answer(self, **body):
        reply = self.predict(body)
        assert reply.status_code == 200, reply.text
        assert reply.headers["Content-Type"] == "application/json"
        return reply.json()

    def error(self, body, path=":predict"):
        reply = self.predict(body, path)
        (error,) = reply.json().values()
        assert reply.json().keys() == {"error"}
        return reply.status_code, error


@pytest.fixture(
    scope="module", params=["litert", pytest.param("saved_model", marks=pytest.mark.slow), "url"]
)
def model(request, once, tiny_run):
    if request.param == "url":
        url, export = os.environ.get("TF_SERVING_URL"), os.environ.get("TF_SERVING_EXPORT")
        if not (url and export):
            pytest.skip("no TF_SERVING_URL and TF_SERVING_EXPORT")
        newest = exports.newest_version(Path(export))
        yield Model(url, exports.open_export(newest), Vocabulary.load(newest / "assets.extra"))
        return
    export = exported(once, tiny_run, {"litert": litert, "saved_model": saved_model}[request.param])
    pytest.importorskip("ai_edge_litert")
    offline = exports.open_export(export)
    with server(export, "--model_name=ende", "--no_access_log", "--timeout_s=300") as ours:
        yield Model(f"{ours.address}/v1/models/ende", offline, Vocabulary.load(tiny_run))


def assert_close(scores, expected):
    np.testing.assert_allclose(np.array(scores, "float32"), expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def best(model):
    return [row[0] for row in model.offline.nbest(LINES, 1)]


def test_by_columns(model, best):
    """With the input's name, without it, and in base64."""
    encoded = [{"b64": base64.b64encode(line.encode()).decode()} for line in LINES]
    for inputs in ({"text": LINES}, LINES, {"text": encoded}):
        outputs = model.answer(inputs=inputs)["outputs"]
        assert outputs.keys() == {"translation", "score", "cut"}
        assert outputs["translation"] == [line.translation for line in best]
        assert_close(outputs["score"], [line.score for line in best])
        assert outputs["cut"] == [False] * len(LINES)


def test_by_rows(model, best):
    for instances in ([{"text": line} for line in LINES], LINES):
        rows = model.answer(instances=instances)["predictions"]
        assert [row["translation"] for row in rows] == [line.translation for line in best]
        assert_close([row["score"] for row in rows], [line.score for line in best])


def test_a_long_line_is_cut_in_company_of_others(model):
    rows = model.answer(instances=["a", "long " * 1500, "a"])["predictions"]
    assert [row["cut"] for row in rows] == [False, True, False]
    assert rows[0] == rows[2]


def test_nbest(model):
    beams = model.offline.nbest(LINES, model.offline.beam_size)
    outputs = model.answer(signature_name="nbest", inputs={"text": LINES})["outputs"]
    assert outputs["translations"] == [[line.translation for line in row] for row in beams]
    assert_close(outputs["scores"], [[line.score for line in row] for row in beams])
    rows = model.answer(signature_name="nbest", instances=LINES)["predictions"]
    assert [row["translations"] for row in rows] == outputs["translations"]
    assert [row["cut"] for row in rows] == outputs["cut"] == [False] * len(LINES)


def test_ids(model):
    lines = ["The house is old.", "We know that the house is old."]
    sources = model.vocabulary.encode(lines)
    width = max(map(len, sources))
    padded = [row + [0] * (width - len(row)) for row in sources]
    outputs = model.answer(signature_name="translate_ids", inputs={"ids": padded})["outputs"]
    expected = [row[0] for row in model.offline.nbest(lines, 1)]
    assert model.vocabulary.decode(outputs["ids"]) == [line.translation for line in expected]
    assert_close(outputs["score"], [line.score for line in expected])
    assert len({len(row) for row in outputs["ids"]}) == 1  # padded
    assert all(EOS in row for row in outputs["ids"])
    rows = model.answer(signature_name="translate_ids", instances=padded)["predictions"]
    assert [row["ids"] for row in rows] == outputs["ids"]


def test_attention(model):
    """Only SavedModels have it; its input is a single text."""
    has_it = hasattr(model.offline, "attention")
    body = {"signature_name": "attention", "inputs": {"text": LINES[0]}}
    if not has_it:
        assert '"attention" not found in signature' in model.error(body)[1]
        return
    outputs, expected = model.answer(**body)["outputs"], model.offline.attention(LINES[0])
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(outputs[name], value, atol=1e-5)
        else:
            assert outputs[name] == value
    assert model.answer(signature_name="attention", inputs=LINES[0])["outputs"] == outputs
    for wrong in ({"instances": [LINES[0]]}, {"inputs": {"text": LINES[:1]}}):
        assert model.error({"signature_name": "attention", **wrong})[0] == 400


def test_the_bodies_of_the_documentation(model):
    text = "".join((ROOT / name).read_text() for name in ("README.md", "docs/serving.md"))
    bodies = re.findall(r"-d '(\{.*?\})'", text)
    assert len(bodies) >= 3
    for body in bodies:
        reply = model.predict(body.encode())
        assert reply.status_code == 200, (body, reply.text)


def test_a_version_can_be_named(model):
    (status,) = requests.get(model.url, timeout=60).json()["model_version_status"]
    version = f"/versions/{status['version']}"
    assert model.predict({"instances": ["a"]}, f"{version}:predict").status_code == 200
    assert requests.get(model.url + version, timeout=60).json()["model_version_status"] == [status]
    assert model.error({"instances": ["a"]}, "/versions/99:predict")[0] == 404
    assert requests.get(f"{model.url}/versions/99", timeout=60).status_code == 404


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "JSON Parse error"),
        (b"{", "JSON Parse error"),
        (b"[]", "not object"),
        (b"{}", "Missing 'inputs' or 'instances' key"),
        ({"instances": ["a"], "inputs": ["a"]}, "one of"),
        ({"instances": []}, "No values in 'instances' array"),
        ({"instances": "a"}, "'instances' to be an list"),
        ({"instances": [1]}, "not of expected type: string"),
        ({"instances": [None]}, "not of expected type: string"),
        ({"instances": [{"texts": "a"}]}, "text"),
        ({"instances": [{"text": "a"}, "a"]}, "Expecting object"),
        ({"instances": ["a", {"text": "a"}]}, "Expecting value/list"),
        ({"instances": [["a"]]}, ""),
        ({"instances": [{"b64": "?"}]}, "base64"),
        ({"inputs": {}}, "Missing named input: text"),
        ({"inputs": "a"}, ""),
        ({"inputs": {"text": [["a"]]}}, ""),
        ({"signature_name": 1, "instances": ["a"]}, "'signature_name' key must be a string"),
        ({"signature_name": "x", "instances": ["a"]}, '"x" not found in signature'),
        ({"signature_name": "translate_ids", "inputs": {"ids": [["a"]]}}, "expected type: int32"),
        ({"signature_name": "translate_ids", "inputs": {"ids": [[2.5, 1]]}}, "type: int32"),
        ({"signature_name": "translate_ids", "inputs": {"ids": [[5, 1], [1]]}}, ""),
        ({"signature_name": "translate_ids", "inputs": {"ids": [5, 1]}}, ""),
        (b'{"instances": ["\\ud800"]}', "surrogate"),
    ],
    ids=str,
)
def test_malformed_requests(model, body, words):
    status, error = model.error(body)
    assert status == 400
    assert words in error


def test_unknown_models_and_paths(model):
    base = model.url.rpartition("/")[0]
    for url in (f"{base}/other", f"{base}/other/metadata"):
        assert requests.get(url, timeout=60).status_code == 404
    reply = requests.post(f"{base}/other:predict", json={"instances": ["a"]}, timeout=60)
    assert (reply.status_code, reply.json()) == (
        *(404, {"error": "Servable not found for request: Latest(other)"}),
    )
    for method, url in (
        *(("GET", f"{model.url}:predict"), ("POST", model.url), ("DELETE", model.url)),
        *(("GET", base), ("POST", f"{model.url}:translate"), ("GET", f"{model.url}/versions/x")),
    ):
        assert requests.request(method, url, timeout=60).status_code == 400


def test_the_status_is_tensorflow_servings(model):
    """The message that a client of tensorflow-serving-api makes of it is whole."""
    messages = pytest.importorskip("tensorflow_serving.apis.get_model_status_pb2")
    from google.protobuf import json_format

    reply = requests.get(model.url, timeout=60).json()
    status = json_format.ParseDict(reply, messages.GetModelStatusResponse())
    (version,) = status.model_version_status
    assert version.state == version.AVAILABLE
    assert version.status.error_code == 0


def test_the_metadata_are_those_of_a_saved_model(model):
    """Types and shapes are those of a SavedModel; a client of tensorflow-serving-api reads them."""
    messages = pytest.importorskip("tensorflow_serving.apis.get_model_metadata_pb2")
    from google.protobuf import json_format

    reply = requests.get(f"{model.url}/metadata", timeout=60).json()
    assert reply["model_spec"]["name"] == model.url.rpartition("/")[2]
    found = json_format.ParseDict(
        reply["metadata"]["signature_def"], messages.SignatureDefMap()
    ).signature_def
    beam = model.offline.beam_size
    string, real, truth, integer = 7, 1, 10, 3  # DT_STRING, DT_FLOAT, DT_BOOL, DT_INT32
    sizes = {
        (name, side, key): (tensor.dtype, [dim.size for dim in tensor.tensor_shape.dim])
        for name in found
        for side in ("inputs", "outputs")
        for key, tensor in getattr(found[name], side).items()
    }
    attention = {key: value for key, value in sizes.items() if key[0] == "attention"}
    assert ("attention" in found) == hasattr(model.offline, "attention")
    if attention:
        texts = ("translation", []), ("source_pieces", [-1]), ("target_pieces", [-1])
        weights = [(name, [1, 3, -1, -1]) for name in ("encoder", "decoder", "cross")]
        outputs = {name: (string, size) for name, size in texts}
        outputs |= {name: (real, size) for name, size in weights}
        assert attention == {("attention", "inputs", "text"): (string, [])} | {
            ("attention", "outputs", name): tensor for name, tensor in outputs.items()
        }
    assert sizes == attention | {
        ("serving_default", "inputs", "text"): (string, [-1]),
        ("serving_default", "outputs", "translation"): (string, [-1]),
        ("serving_default", "outputs", "score"): (real, [-1]),
        ("serving_default", "outputs", "cut"): (truth, [-1]),
        ("nbest", "inputs", "text"): (string, [-1]),
        ("nbest", "outputs", "translations"): (string, [-1, beam]),
        ("nbest", "outputs", "scores"): (real, [-1, beam]),
        ("nbest", "outputs", "cut"): (truth, [-1]),
        ("translate_ids", "inputs", "ids"): (integer, [-1, -1]),
        ("translate_ids", "outputs", "ids"): (integer, [-1, -1]),
        ("translate_ids", "outputs", "score"): (real, [-1]),
    }
