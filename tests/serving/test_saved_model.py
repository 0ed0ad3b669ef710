"""The SavedModel: its signatures, its graph, the processes that load it, and its other files."""

import functools
import hashlib
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import clean_process
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations
from paths import ROOT
from tensorflow.core.protobuf import saved_model_pb2

import t2t_repro
from pipelines import storage
from pipelines.errors import BadInput
from pipelines.toy import toy_ende
from pipelines.vocabulary import EOS, PAD, Vocabulary
from t2t_repro import cli, export, visualize
from t2t_repro.decoding.translator import Translator
from t2t_repro.model.table1_layers import RestrictedSelfAttention
from t2t_repro.model.transformer import Transformer
from t2t_repro.paper.attention_figure import AttentionFigure
from t2t_repro.serving import ctranslate2, saved_model
from t2t_repro.serving.export_directory import atomic_directory
from t2t_repro.workdir import Workdir

PAGES = "\n".join(
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/serving.md")
)
LINES = [pair["source"] for pair in islice(toy_ende.examples("dev"), 24)]


# Short outputs save time.
SETTINGS = {"beam_size": 3, "max_source_length": 300, "max_extra_length": 2}


@pytest.fixture(scope="module")
def run(tiny_run):
    from t2t_repro import experiment

    return experiment.restore(Workdir(tiny_run), SETTINGS)


@pytest.fixture(scope="module")
def rounded(tiny_run):
    """Return the run with its weights rounded to bfloat16."""
    from t2t_repro import experiment

    run = experiment.restore(Workdir(tiny_run), SETTINGS)
    for weight in run.model.trainable_variables:
        weight.assign(tf.cast(tf.cast(weight.value, tf.bfloat16), tf.float32))
    return run


@pytest.fixture(scope="module")
def exports(run, tmp_path_factory):
    """Return a directory with three exports: text, ids and bfloat16."""
    directory = tmp_path_factory.mktemp("exports")
    saved_model.save(run, directory / "text" / "1")
    saved_model.save(run, directory / "ids" / "1", ids_only=True)
    saved_model.save(run, directory / "bfloat16" / "1", weights="bfloat16", ids_only=True)
    return directory


@pytest.fixture(scope="module")
def signatures(exports):
    loaded = tf.saved_model.load(str(exports / "text" / "1"))
    return loaded.signatures


def translations(signature, lines):
    return signature(text=tf.constant(lines, tf.string))["translation"].numpy().tolist()


@pytest.fixture(scope="module")
def alone(signatures):
    """Return the translation of each line in a batch of its own."""
    return [translations(signatures["serving_default"], [line])[0] for line in LINES]


def graphs(directory):
    """Return every node of a SavedModel, including the nodes of its functions."""
    model = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    graph = model.meta_graphs[0].graph_def
    return [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]


# Signatures


def test_signatures(exports, signatures):
    """Types and ranks are known; the batch size and the length of ids are free."""
    described = {
        name: {
            side: {key: (spec.dtype.name, spec.shape.as_list()) for key, spec in specs.items()}
            for side, specs in (
                ("in", signature.structured_input_signature[1]),
                ("out", signature.structured_outputs),
            )
        }
        for name, signature in signatures.items()
    }
    text = {"text": ("string", [None])}
    cut = {"cut": ("bool", [None])}
    ids = {"in": {"ids": ("int32", [None, None])}}
    best = {"translation": ("string", [None]), "score": ("float32", [None])}
    beam = {"translations": ("string", [None, 3]), "scores": ("float32", [None, 3])}
    assert described.pop("translate_ids")["in"] == ids["in"]
    pieces = {f"{side}_pieces": ("string", [None]) for side in ("source", "target")}
    weights = {kind: ("float32", [1, 3, None, None]) for kind in ("encoder", "decoder", "cross")}
    assert described == {
        "serving_default": {"in": text, "out": best | cut},
        "nbest": {"in": text, "out": beam | cut},
        "attention": {
            "in": {"text": ("string", [])},
            "out": {"translation": ("string", [])} | pieces | weights,
        },
    }
    without_text = tf.saved_model.load(str(exports / "ids" / "1")).signatures
    assert set(without_text) == {"serving_default", "translate_ids"}
    for signature in without_text.values():
        assert set(signature.structured_outputs) == {"ids", "score"}


def test_the_best_of_the_beam_is_the_translation(signatures, alone):
    outputs = {k: v.numpy() for k, v in signatures["nbest"](text=tf.constant(LINES)).items()}
    assert outputs["translations"][:, 0].tolist() == alone
    assert (np.diff(outputs["scores"], axis=1) <= 0).all()
    score = signatures["serving_default"](text=tf.constant(LINES))["score"].numpy()
    np.testing.assert_allclose(outputs["scores"][:, 0], score, rtol=1e-4)
    distinct = [len(set(row)) for row in outputs["translations"].tolist()]
    assert np.mean(distinct) > 2.5  # two spellings of one text may differ as pieces


def test_ids(run, exports, signatures, alone):
    """Text becomes ids, passes through either export, and becomes text again."""
    source = padded(run.vocabulary.encode(LINES))
    for signature in (
        signatures["translate_ids"],
        tf.saved_model.load(str(exports / "ids" / "1")).signatures["translate_ids"],
    ):
        outputs = signature(ids=source)
        target = outputs["ids"].numpy()
        assert [text.encode() for text in run.vocabulary.decode(target)] == alone
        assert ((target == EOS).sum(axis=1) == 1).all()
        assert outputs["score"].shape == len(LINES)


# The graph


def test_no_python_and_one_graph(exports):
    for name in ("text", "ids", "bfloat16"):
        operations = {node.op for node in graphs(exports / name / "1")}
        assert not [op for op in operations if "PyFunc" in op], name
        assert ("SentencepieceOp" in operations) == (name == "text")
    loaded = tf.saved_model.load(str(exports / "text" / "1"))
    for lines in ([], LINES[:1], LINES[:7], ["word " * 100]):
        loaded.translate(tf.constant(lines, tf.string))
    assert len(loaded.translate.concrete_functions) == 1


def padded(ids):
    width = max(map(len, ids))
    return tf.constant([row + [PAD] * (width - len(row)) for row in ids])


@pytest.mark.slow
def test_bfloat16_is_half_the_size_and_computes_in_float32(run, rounded, exports):
    """The export computes like a model whose weights were rounded to 8 bits of mantissa."""

    def size(name):
        return sum(path.stat().st_size for path in (exports / name / "1" / "variables").iterdir())

    assert size("bfloat16") < 0.55 * size("ids")
    loaded = tf.saved_model.load(str(exports / "bfloat16" / "1"))
    ids = padded(run.vocabulary.encode(LINES))
    theirs = loaded.signatures["translate_ids"](ids=ids)
    ours = rounded.translator().translate_ids(ids)
    np.testing.assert_array_equal(theirs["ids"], ours["ids"])
    np.testing.assert_allclose(theirs["score"], ours["score"], rtol=1e-4)
    exact = tf.saved_model.load(str(exports / "ids" / "1")).signatures["translate_ids"](ids=ids)
    assert np.abs(exact["score"] - ours["score"]).max() > 1e-3  # or the test would prove nothing


# Attention


def figure_of(outputs, sentence):
    """Return the figure of the outputs of the signature `attention`."""
    values = {name: value.numpy() for name, value in outputs.items()}
    pieces = (values[f"{side}_pieces"] for side in ("source", "target"))
    texts = ([piece.decode() for piece in side] for side in pieces)
    return AttentionFigure.of_pair(sentence, values["translation"].decode(), *texts, values)


def assert_drawn_alike(ours, theirs):
    """Compare the labels, the weights, and the pages, whose numbers are thousandths."""
    for name, kind in theirs.kinds.items():
        assert ours.kinds[name][:3] == kind[:3]
        np.testing.assert_allclose(ours.kinds[name].weights, kind.weights, atol=1e-5)
        np.testing.assert_allclose(ours.kinds[name].weights.sum(axis=-1), 1, atol=1e-5)
    pages = [figure.html(figure.view(), "a model") for figure in (ours, theirs)]
    (words, numbers), (their_words, their_numbers) = (
        (re.sub(r"\d+", "", page), np.array(re.findall(r"\d+", page), int)) for page in pages
    )
    assert words == their_words
    np.testing.assert_allclose(numbers, their_numbers, rtol=0, atol=1)


@pytest.mark.parametrize("line", LINES[:2])
def test_attention_is_what_visualize_draws(run, signatures, line):
    outputs = signatures["attention"](text=tf.constant(line))
    assert_drawn_alike(figure_of(outputs, line), visualize._figure(run, line, None))


@pytest.mark.slow
def test_attention_of_weights_in_bfloat16(run, rounded):
    translator = Translator(run.model, run.vocabulary, run.config.decode, "bfloat16")
    figure = figure_of(translator.attention(tf.constant(LINES[0])), LINES[0])
    assert_drawn_alike(figure, visualize._figure(rounded, LINES[0], None))


def test_attention_of_no_text_and_of_a_long_one(run, signatures):
    """A blank text has an empty translation; of a long one 200 pieces are read, with EOS."""
    attention = signatures["attention"]
    eos = run.vocabulary.pieces[EOS].encode()
    blank = {name: value.numpy() for name, value in attention(text=tf.constant(" ")).items()}
    assert blank["source_pieces"].tolist() == blank["target_pieces"].tolist() == [eos]
    assert blank["translation"] == b""
    long = attention(text=tf.constant("long " * 1000))
    whole = run.vocabulary.encode(["long " * 1000])[0]
    expected = [run.vocabulary.pieces[index].encode() for index in whole[:199]]
    assert long["source_pieces"].numpy().tolist() == [*expected, eos]
    assert long["encoder"].shape == (1, 3, 200, 200)
    assert long["decoder"].shape[2] <= 202


def test_attention_needs_full_self_attention(run):
    restricted = RestrictedSelfAttention(4, d_model=48, num_heads=3, d_k=12, d_v=20)
    model = Transformer(run.config.model, run.vocabulary.size, self_attention=restricted)
    signatures = saved_model._signatures(replace(run, model=model).translator())
    assert set(signatures) == {"serving_default", "nbest", "translate_ids"}


# Inputs


def test_odd_text(signatures):
    translate = signatures["serving_default"]
    assert translations(translate, []) == []
    assert translations(translate, ["", "  \t", "\n"]) == [b""] * 3
    odd = [b"\xff\xfe", b"caf\xe9", "ab\u0000c".encode(), "日本".encode(), LINES[0].encode()]
    outputs = {key: value.numpy() for key, value in translate(text=tf.constant(odd)).items()}
    assert not outputs["cut"].any()
    for text in outputs["translation"]:
        text.decode()
    replaced = [b.decode("utf-8", "replace") for b in odd]
    assert outputs["translation"].tolist() == translations(translate, replaced)


def test_5000_characters(signatures):
    """300 pieces of the long line are read, and the other sentence is not affected."""
    outputs = signatures["serving_default"](text=tf.constant(["long " * 1000, LINES[0]]))
    assert outputs["cut"].numpy().tolist() == [True, False]
    alone = signatures["serving_default"](text=tf.constant(LINES[:1]))
    assert outputs["translation"][1] == alone["translation"][0]


def test_a_batch_of_512(signatures, alone):
    lines = (LINES * 22)[:512]
    assert translations(signatures["serving_default"], lines) == (alone * 22)[:512]


def test_eight_threads(signatures, alone):
    translate = signatures["serving_default"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda line: translations(translate, [line])[0], LINES * 4))
    assert answers == alone * 4


# Other processes

CLEAN = """
def resident():
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024  # MiB

translate = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
answers = translate(text=tf.constant(json.load(sys.stdin)))["translation"].numpy().tolist()
for call in range(2100):
    if call == 100:
        warm = resident()
    translate(text=tf.constant([("", "I.", "A.")[call % 3]]))
json.dump({"answers": [a.decode() for a in answers], "growth": resident() - warm}, sys.stdout)
"""


@pytest.mark.slow
def test_a_clean_process_and_2000_calls(exports, alone):
    """After the first 100 calls, 2,000 more calls use less than 4 MiB of memory, 2 KiB per call."""
    program = clean_process.ALONE + CLEAN
    given = exports / "text" / "1"
    result = json.loads(clean_process.output_of("-c", program, given, stdin=json.dumps(LINES)))
    assert [answer.encode() for answer in result["answers"]] == alone
    assert result["growth"] < 4


SAVED_MODEL_CLI = "from tensorflow.python.tools import saved_model_cli; saved_model_cli.main()"


def saved_model_cli(exports, name, signature, value, imports=""):
    given = ["run", "--dir", exports / name / "1", "--tag_set", "serve"]
    given += ["--signature_def", signature, "--input_exprs", value]
    return clean_process.output_of("-W", "ignore", "-c", f"{imports}{SAVED_MODEL_CLI}", *given)


@pytest.mark.slow
def test_plain_saved_model_cli_runs_ids(run, exports, signatures):
    ids = run.vocabulary.encode(LINES[:1])
    printed = saved_model_cli(exports, "ids", "translate_ids", f"ids={ids}")
    (numbers,) = re.findall(r"output key ids:\s*\[\[([\d\s]+)\]\]", printed)
    expected = signatures["translate_ids"](ids=tf.constant(ids))["ids"]
    assert [int(word) for word in numbers.split()] == expected.numpy()[0].tolist()


@pytest.mark.slow
def test_saved_model_cli_runs_text_with_tensorflow_text(exports, alone):
    printed = saved_model_cli(
        exports, "text", "serving_default", f"text={LINES[:1]}", "import tensorflow_text; "
    )
    assert f"output key translation:\n[{alone[0]!r}]" in printed


# Beside the graph


def test_settings_are_readable_without_tensorflow(run, exports):
    extra = exports / "bfloat16/1/assets.extra"
    settings = json.loads((extra / "settings.json").read_text())
    names = ("saved_model.pb", "fingerprint.pb", "variables/variables.index")
    names += ("variables/variables.data-00000-of-00001", "assets.extra/tf_serving_warmup_requests")
    names += ("assets.extra/vocabulary.model", "assets.extra/vocabulary.vocab")
    digests = {
        name: hashlib.sha256((exports / "bfloat16/1" / name).read_bytes()).hexdigest()
        for name in names
    }
    assert len(settings.pop("settings_sha256")) == 64
    assert settings == {
        "t2t_repro": t2t_repro.__version__,
        "format": "saved_model",
        "format_version": 1,
        "output": "text",
        "weights": "bfloat16",
        "problem": "toy_ende",
        "variant": "base",
        "training_step": 500,
        "averaged_checkpoints": ["step-490", "step-500"],
        "vocabulary_sha256": run.vocabulary.fingerprint,
        "model": vars(run.config.model),
        "decode": vars(run.config.decode),
        "sha256": digests,
    }
    assert settings["decode"]["beam_size"] == 3  # the exported value, not the run's
    assert Vocabulary.load(extra).fingerprint == run.vocabulary.fingerprint


def requests(directory):
    """Return the warm-up requests, parsed with the same messages as in TensorFlow Serving."""
    prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    path = directory / "1" / "assets.extra" / "tf_serving_warmup_requests"
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        assert log.SerializeToString(deterministic=True) == record.numpy()  # no unknown fields
        assert log.WhichOneof("log_type") == "predict_log"
        yield log.predict_log.request


@pytest.mark.parametrize("name", ["text", "ids"])
@pytest.mark.slow
def test_warm_up_requests_are_answered(exports, name):
    signatures = tf.saved_model.load(str(exports / name / "1")).signatures
    sizes = {}
    for request in requests(exports / name):
        inputs = {key: tf.constant(tf.make_ndarray(v)) for key, v in request.inputs.items()}
        outputs = signatures[request.model_spec.signature_name](**inputs)
        (first, *_) = outputs.values()
        sizes.setdefault(request.model_spec.signature_name, []).append(first.shape[0])
    # Attention is not for servers' load; of an export of ids, both signatures are the same.
    warmed = set(signatures) - ({"serving_default"} if name == "ids" else {"attention"})
    assert sizes == {signature: [1, 8] for signature in warmed}


def test_requests_of_the_documentation_fit(signatures):
    """The page has the row and the column format of TensorFlow Serving's REST interface."""
    bodies = [json.loads(body) for body in re.findall(r"-d '(.*)'", PAGES)]
    assert len(bodies) == 5
    for body in bodies:
        rows = body.get("instances")  # of objects here, though values alone would do, too
        inputs = {"text": [row["text"] for row in rows]} if rows else body["inputs"]
        signature = signatures[body.get("signature_name", "serving_default")]
        outputs = signature(**{key: tf.constant(value) for key, value in inputs.items()})
        assert all(value.shape[0] == len(inputs["text"]) for value in outputs.values())
    assert 'request.inputs["text"].CopyFrom(tf.make_tensor_proto(["' in PAGES


# Mistakes


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--weights=int8", "--weights=int8: --format=saved_model holds float32 or bfloat16"),
        (
            "--format=ctranslate2 --weights=bfloat16",
            "--weights=bfloat16: --format=ctranslate2 holds float32 or int8",
        ),
        ("--format=ctranslate2 --ids_only", "--ids_only: --format=ctranslate2 takes pieces"),
        ("--export_dir=/dev/null", "/dev/null is a file; wanted a directory"),
        ("--format=onnx", "choose from 'saved_model', 'litert', 'ctranslate2'"),
        ("--weights=float16", "choose from 'bfloat16', 'float32', 'int8'"),
    ],
)
def test_flags(tmp_path, monkeypatch, capsys, flags, expected):
    given = [f"--workdir={tmp_path}/run", f"--export_dir={tmp_path}/export", *flags.split()]
    monkeypatch.setattr(sys, "argv", ["export", *given])
    with pytest.raises(SystemExit) as end:
        cli.run(export.main)
    assert end.value.code == 2
    assert expected in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_export_without_text_does_not_translate(exports):
    with pytest.raises(BadInput, match="no 'serving_default' of text in it; was it made with --id"):
        saved_model.load(exports / "ids" / "1")


def of_text(outputs, dtype=tf.string, name="text"):
    """Return a function from a batch to zeros of the given types and numbers of axes."""

    @tf.function(input_signature=[tf.TensorSpec([None], dtype, name)])
    def function(text):
        size = tf.shape(text)[0]
        return {
            key: tf.fill([size] * rank, "" if kind == tf.string else tf.cast(0, kind))
            for key, (kind, rank) in outputs.items()
        }

    return function


BEST = {"translation": (tf.string, 1), "score": (tf.float32, 1), "cut": (tf.bool, 1)}
BEAM = {"translations": (tf.string, 2), "scores": (tf.float32, 2), "cut": (tf.bool, 1)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signatures", "reason"),
    [
        (None, "no 'serving_default' of text"),
        ({}, "no 'serving_default' of text"),
        ({"serving_default": of_text(BEST)}, "no 'nbest' of text"),
        (
            {"serving_default": of_text(BEST, tf.int32), "nbest": of_text(BEAM)},
            "no 'serving_default' of text",
        ),
        (
            {"serving_default": of_text(BEST, name="x"), "nbest": of_text(BEAM)},
            "no 'serving_default' of text",
        ),
        (
            {"serving_default": of_text(BEST), "nbest": of_text(BEAM | {"scores": BEST["score"]})},
            "no 'nbest' of text",
        ),
        ({"serving_default": of_text(BEST), "nbest": of_text(BEAM)}, "no number of hypotheses"),
        (
            {
                "serving_default": of_text(BEST),
                "nbest": of_text(BEAM),
                "translate_ids": of_text(BEST),
            },
            "its 'translate_ids' has other inputs or outputs",
        ),
    ],
    ids=range(8),
)
def test_a_foreign_saved_model_is_refused(tmp_path, signatures, reason):
    module = tf.Module()
    module.functions = [*(signatures or {}).values()]
    tf.saved_model.save(module, str(tmp_path / "1"), signatures)
    with pytest.raises(BadInput, match=r"not a usable export \(") as refusal:
        t2t_repro.load(tmp_path)
    assert reason in str(refusal.value)


def test_what_a_killed_export_left_is_cleared(tmp_path):
    """Its process is dead: no process has this number."""
    own = storage.unfinished_name("1")
    left = tmp_path / f"{own.removesuffix(str(os.getpid()))}999999999"
    (left / "variables").mkdir(parents=True)
    with atomic_directory(tmp_path / "1") as unfinished:
        assert not left.exists()
        (unfinished / "file").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize(
    "save", [functools.partial(saved_model.save, ids_only=True), ctranslate2.save]
)
def test_a_full_disk_leaves_nothing(run, tmp_path, save):
    """A limit on file sizes simulates a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(BadInput) as refusal:
            save(run, tmp_path / "export" / "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = str(refusal.value)
    assert f"{tmp_path}/export/1: could not be written: " in message
    assert "File too large" in message
    assert "make room" in message
    assert not list((tmp_path / "export").iterdir())
