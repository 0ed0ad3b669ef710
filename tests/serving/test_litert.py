"""The LiteRT export: TensorFlow's translations without TensorFlow, int8 weights, damaged files."""

import ast
import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import clean_process
import commands
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from paths import ROOT
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from pipelines.errors import BadInput
from pipelines.toy import toy_ende, toy_parsing
from pipelines.vocabulary import EOS, Vocabulary
from t2t_repro.config import Decode, Model
from t2t_repro.decoding.translator import Translator, nbest_lines
from t2t_repro.model.table1_layers import RestrictedSelfAttention
from t2t_repro.model.transformer import Transformer
from t2t_repro.serving import export_files, exports, litert
from t2t_repro.workdir import Workdir

litert_translator = pytest.importorskip("t2t_repro.serving.litert_translator")
SOURCES = [pair["source"] for split in ("dev", "test") for pair in toy_ende.examples(split)]
# A batch of very different lengths, with lines that need no search.
MIXED = [
    *("", "The cat sleeps.", " \t", "long " * 25, "Yes.", *SOURCES[:20]),
    *("日本 🎉", "a\tb\u2028c", "\n", "I."),
]


def restored(tiny_run, **settings):
    from t2t_repro import experiment

    return experiment.restore(Workdir(tiny_run), settings)


@pytest.fixture(scope="module")
def run(tiny_run):
    return restored(tiny_run, beam_size=3)


@pytest.fixture(scope="module")
def vocabulary(tiny_run):
    return Vocabulary.load(tiny_run)


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """Return an export in float32 with a beam of 3."""
    directory = tmp_path_factory.mktemp("litert") / "1"
    litert.save(run, directory)
    return directory


@pytest.fixture(scope="module")
def translator(exported):
    return litert_translator.Translator(exported, threads=1)


def written(directory, content, vocabulary, decode, output="text"):
    """Write an export of a model that belongs to no run."""
    directory.mkdir()
    (directory / "model.tflite").write_bytes(content)
    vocabulary.save(directory)
    settings = {"format": "litert", "format_version": 1, "output": output, "decode": vars(decode)}
    export_files.write_settings(directory, settings)
    return directory


def signed(directory):
    """Write the SHA-256 of the present files into settings.json, as a malicious export would."""
    settings = json.loads((directory / "settings.json").read_text())
    export_files.write_settings(directory, settings)
    return directory


@pytest.fixture
def copy(exported, tmp_path):
    """Return a copy of the export that a test may damage."""
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def with_settings(directory, **decode):
    """Change decode settings in an export's settings.json."""
    path = directory / "settings.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"decode": settings["decode"] | decode}))
    return directory


def assert_same(theirs, ours):
    """Assert that n-best lists are equal, with scores that differ by rounding only."""
    for their, our in zip(theirs, ours, strict=True):
        assert [line.translation for line in their] == [line.translation for line in our]
        assert [line.cut for line in their] == [line.cut for line in our]
        scores = [[line.score for line in lines] for lines in (their, our)]
        np.testing.assert_allclose(*scores, rtol=0, atol=1e-4)


# The search


def all_of(translator, sentences):
    """Return the whole beam of each sentence, by TensorFlow."""
    return list(nbest_lines(translator.nbest, sentences))


def agrees(run, directory, sentences):
    beam_size = run.config.decode.beam_size
    ours = all_of(run.translator(), sentences)
    translator = litert_translator.Translator(directory, threads=1)
    theirs = translator.nbest(sentences, beam_size)
    assert_same(theirs, ours)
    best = translator.nbest(sentences, 1)  # whose search may end earlier
    assert_same(best, [lines[:1] for lines in theirs])
    return [lines[0] for lines in theirs]


def test_nbest_lists_are_tensorflows(run, exported):
    """Outputs need more than three times the positions that there is room for at first."""
    best = agrees(run, exported, SOURCES[:150] + MIXED)
    lengths = list(map(len, run.vocabulary.encode([line.translation for line in best])))
    assert min(lengths) == 1
    assert max(lengths) > 3 * litert_translator._ROOM
    assert len({line.translation for line in best}) > 100


@pytest.mark.parametrize(
    ("beam_size", "alpha", "reward"),
    [pytest.param(1, 0.0, 0.0, marks=pytest.mark.slow), (3, 2.5, 0.0), (3, 0.6, 0.8)],
)
def test_other_searches(tiny_run, exported, tmp_path, beam_size, alpha, reward):
    settings = {"alpha": alpha, "length_reward": reward, "length_ratio": 1.3}
    settings |= {"max_extra_length": 6}
    run = restored(tiny_run, beam_size=beam_size, **settings)
    directory = tmp_path / "1"
    if beam_size == 3:  # the other settings are not part of the model file
        shutil.copytree(exported, directory)
        with_settings(directory, **settings)
    else:
        litert.save(run, directory)
    agrees(run, directory, SOURCES[:60])


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 3, 4])
def test_a_thousand_sentences(tiny_run, tmp_path, beam_size):
    run = restored(tiny_run, beam_size=beam_size)
    litert.save(run, tmp_path / "1")
    agrees(run, tmp_path / "1", SOURCES)


def test_a_batch_of_one_gives_the_same(translator):
    """A sentence does not depend on the others of its batch, which are padded and end later."""
    together = translator.nbest(MIXED, 3)
    assert_same([translator.nbest([line], 3)[0] for line in MIXED], together)
    assert translator.nbest([], 3) == translator.translate([]) == []
    assert together[0] == together[2] == [("", 0, False)] + [("", -1e9, False)] * 2


def test_what_would_end_a_line_and_half_a_surrogate_pair_are_read_as_a_space(translator):
    spaced, *others = translator.nbest([f"the{c}house" for c in " \x00\n\x1c\x85\ud800"], 1)
    assert others == [spaced] * 5


def test_a_translation_is_one_line(translator):
    """A model can spell U+2028, which ends a line for Python, in bytes."""
    spelt = [translator._pieces.piece_to_id(f"<0x{byte:02X}>") for byte in "\u2028".encode()]
    ids, score = np.int32([[*translator._pieces.encode("Yes."), *spelt, EOS]]), np.float32([-1])
    (line,) = translator._lines("Yes.", litert_translator.Hypotheses(ids, score), False)
    assert line == ("Yes. ", -1.0, False)


def test_a_very_long_sentence_is_cut(run, translator):
    """The model file has positions for all that `max_source_length` lets through."""
    long = "house " * 3000
    (line, *_), (other, *_) = translator.nbest([long, "The old house."], 1)
    assert (line.cut, other.cut) == (True, False)
    (ids,) = run.vocabulary.encode([long])
    kept = [*ids[: run.config.decode.max_source_length - 1], EOS]
    (expected,) = translator.decode([kept], 1)
    assert line.score == pytest.approx(expected.scores[0], abs=1e-5)


def test_a_sentence_of_the_greatest_length_is_not_cut(vocabulary, copy):
    (ids,) = vocabulary.encode(SOURCES[:1])
    for longest, cut in ((len(ids), False), (len(ids) - 1, True)):
        with_settings(copy, max_source_length=longest)
        ((line,),) = litert_translator.Translator(copy, threads=1).nbest(SOURCES[:1], 1)
        assert line.cut == cut


def test_a_long_sentence_is_decoded_with_few_others(translator):
    sources = [[5] * length + [EOS] for length in (*[9] * 70, 900)]
    batches = list(translator._batches(sources))
    assert sorted(number for numbers in batches for number in numbers) == list(range(71))
    for numbers in batches:
        longest = max(len(sources[number]) for number in numbers)
        positions = len(numbers) * (2 * longest + translator.max_extra_length)
        assert positions <= litert_translator._POSITIONS


def test_a_forced_length(translator, vocabulary):
    sources = vocabulary.encode(SOURCES[:5])
    for found in translator.decode(sources, 1, forced_length=21):
        assert (found.ids[0] == EOS).nonzero()[0].tolist() == [20]


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        pytest.param({"d_k": 7, "d_v": 5}, {}, marks=pytest.mark.slow),
        # Fewer than the sentences need: the last row repeats.
        pytest.param({"learned_positions": 6}, {}, marks=pytest.mark.slow),
        ({"num_layers": 1}, {"max_source_length": 8, "beam_size": 2}),
    ],
    ids=str,
)
def test_models_of_other_shapes(build, vocabulary, tmp_path, changes, settings):
    """Of equally good hypotheses, which random models have, either may be the better one."""
    model = build(embedding_rows=510, **changes)
    decode = Decode(**{"max_extra_length": 4} | settings)
    content = litert.convert(model, vocabulary, decode, "float32")
    directory = written(tmp_path / "1", content, vocabulary, decode)
    theirs = litert_translator.Translator(directory, threads=1).nbest(MIXED, decode.beam_size)
    ours = all_of(Translator(model, vocabulary, decode), MIXED)
    distinct = set()
    for their, our in zip(theirs, ours, strict=True):
        scores = [[line.score for line in lines] for lines in (their, our)]
        np.testing.assert_allclose(*scores, rtol=0, atol=2e-4)
        assert their[0].cut == our[0].cut
        if our[0].score > our[1].score + 1e-3:
            assert their[0].translation == our[0].translation
            distinct.add(our[0].translation)
    assert len(distinct) > 8
    assert any(lines[0].cut for lines in ours) == ("max_source_length" in settings)


@pytest.mark.slow
def test_a_model_in_bfloat16_is_exported_in_float32(build, vocabulary, tmp_path):
    answers = []
    for dtype in ("float32", "mixed_bfloat16"):
        model = build(dtype, embedding_rows=510, num_layers=1)
        content = litert.convert(model, vocabulary, Decode(max_extra_length=4), "float32")
        directory = written(tmp_path / dtype, content, vocabulary, Decode(max_extra_length=4))
        answers.append(litert_translator.Translator(directory, threads=1).nbest(MIXED, 4))
    assert_same(*answers)


# int8


@pytest.fixture(scope="module")
def wide(build, vocabulary):
    """Return a model, and its exports in float32 and int8 as bytes.

    Its feed-forward layer has as many units as there are rows in the shared matrix, and so a
    matrix of the same shape.
    """
    model = build(embedding_rows=510, num_layers=1, d_model=64, d_ff=512, d_k=24, d_v=32)
    decode = Decode(max_source_length=20, max_extra_length=10)  # few positions, in float32 always
    return model, *(
        litert.convert(model, vocabulary, decode, weights) for weights in ("float32", "int8")
    )


def operations(model, code):
    """Yield (tensors, operation) for the operations of one kind in a model file."""
    codes = [max(c.builtinCode, c.deprecatedBuiltinCode) for c in model.operatorCodes]
    for graph in model.subgraphs:
        for operation in graph.operators:
            if codes[operation.opcodeIndex] == code:
                yield graph.tensors, operation


def numbers(model, tensor):
    """Return the int8 numbers of a tensor, as integers that do not overflow."""
    data = np.asarray(model.buffers[tensor.buffer].data).view("int8")
    return data.reshape(tensor.shape).astype(int)


def test_int8_is_a_quarter_of_the_size_with_a_scale_for_each_output(wide, vocabulary):
    model, float32, int8 = wide
    assert len(int8) < 0.35 * len(float32)
    read = flatbuffer_utils.read_model_from_bytearray(bytearray(int8))
    products = list(operations(read, schema.BuiltinOperator.FULLY_CONNECTED))
    # The encoder's attention: queries, keys and values as one, and outputs; four for each of the
    # decoder's two; two feed-forward layers of two matrices; the logits.
    assert len(products) == 2 + 2 * 4 + 2 * 2 + 1
    for tensors, product in products:
        weights = tensors[product.inputs[1]]
        assert weights.type == schema.TensorType.INT8
        assert len(weights.quantization.scale) == weights.shape[0]

    # The embedding and the logits share the matrix.
    shared = {
        tensors[gather.inputs[0]].buffer
        for tensors, gather in operations(read, schema.BuiltinOperator.GATHER)
        if tensors[gather.inputs[0]].type == schema.TensorType.INT8
    }
    assert len(shared) == 1
    (logits,) = (
        tensors[product.inputs[1]]
        for tensors, product in products
        if tensors[product.inputs[1]].buffer in shared
    )
    scale = logits.quantization.scale[: vocabulary.size, None]
    rows = numbers(read, logits)[: vocabulary.size]
    matrix = np.asarray(model.embedding.matrix)[: vocabulary.size]
    assert (np.abs(rows * scale - matrix) <= 0.51 * scale).all()
    assert (np.abs(rows).max(axis=1) == 127).all()


def test_both_functions_share_the_weights(wide, exported):
    for content in (*wide[1:], (exported / "model.tflite").read_bytes()):
        read = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
        data = [bytes(buffer.data) for buffer in read.buffers if buffer.data is not None]
        large = [buffer for buffer in data if len(buffer) > 1000]
        assert len(large) > 8
        assert len(large) == len(set(large))


@pytest.mark.slow
def test_int8_translates_nearly_alike(run, translator, tmp_path):
    litert.save(run, tmp_path / "1", "int8")
    assert json.loads((tmp_path / "1/settings.json").read_text())["weights"] == "int8"
    int8 = litert_translator.Translator(tmp_path / "1", threads=1)
    theirs, ours = (
        [lines[0] for lines in each.nbest(SOURCES[:200], 1)] for each in (int8, translator)
    )
    same = [a.translation == b.translation for a, b in zip(theirs, ours, strict=True)]
    assert np.mean(same) > 0.45  # this model is poor, and its best hypotheses nearly equal
    errors = [abs(a.score - b.score) for a, b in zip(theirs, ours, strict=True)]
    assert 1e-4 < np.median(errors) < 0.2  # other weights, but the same model


MEMORY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from translator import Translator

def resident():
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024

before = resident()
translator = Translator(sys.argv[1], threads=1)
translator.translate(["The old house is not small."])
print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_the_weights_are_in_memory_once(vocabulary, tmp_path):
    """LiteRT copies them to its own layout, and the file's pages are given back."""

    class Large:
        size = 32_000
        producible = np.pad(vocabulary.producible, (0, size - vocabulary.size))

    model = Transformer(Model(num_layers=2, embedding_rows=Large.size))
    decode = Decode(max_source_length=100)  # few positions, which are in float32
    content = litert.convert(model, Large(), decode, "int8")
    directory = written(tmp_path / "1", content, vocabulary, decode)
    shutil.copy(litert_translator.__file__, directory / "translator.py")
    assert len(content) < 1.1 * model.count_params()
    growth = int(clean_process.output_of("-c", MEMORY, directory))
    assert growth < 1.5 * len(content) + 8e6


# Without TensorFlow


def test_the_reader_imports_three_packages():
    """Only the trees of a parsing run need a fourth, whose files lie in its export."""
    tree = ast.parse(Path(litert_translator.__file__).read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(node.module)
    others = {name for name in found if name.split(".")[0] not in sys.stdlib_module_names}
    trees = "pipelines.parsing.linear_trees"
    assert others == {"numpy", "sentencepiece", "ai_edge_litert.interpreter", trees}


def test_every_operation_is_one_of_litert_s_own(exported):
    """A phone's interpreter has no operations of TensorFlow, and none of ours."""
    model = flatbuffer_utils.read_model(str(exported / "model.tflite"))
    kinds = {code.builtinCode for code in model.operatorCodes}
    assert schema.BuiltinOperator.FULLY_CONNECTED in kinds
    assert schema.BuiltinOperator.CUSTOM not in kinds
    assert not any(code.customCode for code in model.operatorCodes)


def test_the_reader_knows_the_version_of_the_format():
    assert litert_translator.FORMAT_VERSION == export_files.FORMAT_VERSION


# Runs translator.py as `python translator.py` does, where nothing else is installed.
ALONE = """
import runpy, sys
sys.path = [sys.argv[1]] + [path for path in sys.path if path != sys.argv[2]]
sys.meta_path = [f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", "")]
sys.modules |= dict.fromkeys(["tensorflow", "keras", "t2t_repro"])
if sys.argv[3] == "text":
    sys.modules["pipelines"] = None
runpy.run_path(sys.argv[1] + "/translator.py", run_name="__main__")
"""


def alone(directory, lines, output="text"):
    given = "\n".join([*lines, ""])
    printed = clean_process.output_of("-c", ALONE, directory, ROOT, output, stdin=given)
    return printed.split("\n")[:-1]


def test_the_directory_is_all_it_takes(copy, translator):
    lines = [line.replace("\n", " ") for line in MIXED]
    assert alone(copy, lines) == translator.translate(MIXED)
    assert alone(copy, []) == []
    names = {path.name for path in copy.iterdir()}
    model = {"model.tflite", "vocabulary.model", "vocabulary.vocab"}
    assert names - {"__pycache__"} == {*model, "settings.json", "translator.py"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_fresh_environment(exported, translator, tmp_path):
    """These commands are all that a machine needs which has never had TensorFlow."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    packages = ["ai-edge-litert", "sentencepiece", "numpy"]
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, *packages], check=True, timeout=900)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def printed(*arguments, lines=()):
        given = "\n".join([*lines, ""]).encode()
        output = subprocess.check_output([python, *arguments], input=given, env=environment)
        return output.decode().split("\n")[:-1]

    expected = translator.translate(SOURCES[:200])
    assert printed(exported / "translator.py", lines=SOURCES[:200]) == expected
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(import sys\n.*?)```", page, re.DOTALL)
    example = example.replace("runs/toy_ende/litert/1", str(exported)).replace(", 4)", ", 3)")
    both, *beam = printed("-c", example)
    texts = ["The house is old.", "We know that the house is old."]
    assert both == str(translator.translate(texts))
    assert [line.split(" ", 1)[1] for line in beam] == [
        f"{line.translation} False" for line in translator.nbest(texts[:1], 3)[0]
    ]


def test_the_program_ends_silently_where_nobody_reads_any_more(exported):
    lines = ("\n".join([*SOURCES[:5], *[""] * 50_000])).encode()  # 13 times what it prints at once
    program = subprocess.Popen(
        [sys.executable, exported / "translator.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    program.stdout.close()
    _, stderr = program.communicate(lines, timeout=500)
    assert program.returncode == 1
    assert b"rror" not in stderr, stderr  # but a line of XNNPACK


def test_the_program_reads_what_is_not_utf_8(exported, translator):
    program = [sys.executable, exported / "translator.py"]
    done = subprocess.run(program, input=b"Yes.\xff\nYes.\n", capture_output=True)
    assert done.stdout.decode().split("\n")[:-1] == translator.translate(["Yes.\ufffd", "Yes."])


def test_the_program_says_that_the_disk_is_full(exported):
    with open("/dev/full", "wb") as full:
        program = [sys.executable, exported / "translator.py"]
        done = subprocess.run(program, input=b"Yes.\n", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.endswith(b"error: stdout: No space left on device\n")
    assert b"Traceback" not in done.stderr


def test_more_hypotheses_than_the_beam_are_refused(translator):
    with pytest.raises(ValueError, match="count: wanted 1 to the beam size 3, got 4"):
        translator.nbest(["Yes."], 4)


def test_the_directory_alone_refuses_a_damaged_file_in_one_line(copy):
    damage(copy, "vocabulary.model", b"")
    done = subprocess.run(
        [sys.executable, copy / "translator.py"], input=b"", capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"error: {copy}: not a usable LiteRT export (vocab")
    assert done.stderr.count(b"\n") == 1


@pytest.fixture(scope="module")
def parser(run, build):
    """Return a run of toy_parsing with a random model, whose outputs need repair."""
    texts = [text for pair in toy_parsing.examples("dev") for text in pair.values()]
    vocabulary = Vocabulary.learn(texts, 400)
    model = build(embedding_rows=400, num_layers=1)
    matrix = np.array(model.embedding.matrix)
    matrix[:260] /= 10  # fewer bytes, more brackets
    model.embedding.matrix.assign(matrix)
    config = dataclasses.replace(run.config, problem="toy_parsing", model=model.config)
    return dataclasses.replace(run, config=config, vocabulary=vocabulary, model=model)


@pytest.mark.slow
def test_an_export_that_parses_holds_what_makes_trees(parser, tmp_path):
    sentences = ["The cat sleeps .", "", "She gave (him) a  book , --", "Is it\u00a0ours ?", "one"]
    sentences += [pair["source"] for pair in islice(toy_parsing.examples("dev"), 10)]
    litert.save(parser, tmp_path / "1")
    ours = all_of(parser.translator(postprocess=True), sentences)
    theirs = litert_translator.Translator(tmp_path / "1", threads=1).nbest(sentences, 3)
    assert_same(theirs, ours)
    trees = [lines[0].translation for lines in theirs]
    assert trees[0].startswith("(TOP ")
    assert alone(tmp_path / "1", sentences, "trees") == trees


# Mistakes


def test_another_self_attention_than_the_papers_is_refused(run, tmp_path):
    restricted = RestrictedSelfAttention(4, d_model=48, num_heads=3, d_k=12, d_v=20)
    model = Transformer(run.config.model, run.vocabulary.size, self_attention=restricted)
    with pytest.raises(BadInput, match="wanted full self-attention in the encoder"):
        litert.save(dataclasses.replace(run, model=model), tmp_path / "1")
    assert not list(tmp_path.iterdir())


def of_other_signatures():
    """Return a sound model file that is not of this program."""
    double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec([None], tf.float32)])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([double.get_concrete_function()])
    return converter.convert()


def damage(directory, name, content):
    """Write other content into a file of an export; None deletes the file."""
    path = directory / name
    if callable(content):
        content = content(path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)


def changed(**changes):
    """Return a function that changes settings.json; None deletes a key."""

    def change(content):
        settings = json.loads(content) | changes
        return json.dumps({k: v for k, v in settings.items() if v is not None}).encode()

    return change


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("model.tflite", None, "'model.tflite'"),
        ("model.tflite", b"", ""),
        ("model.tflite", lambda content: content[: len(content) // 2], "not a valid Flatbuffer"),
        ("model.tflite", lambda content: content[:-1], "not a valid Flatbuffer"),
        ("model.tflite", np.random.default_rng(1).bytes(9999), "not a valid Flatbuffer"),
        ("model.tflite", lambda _: of_other_signatures(), ""),
        ("vocabulary.model", None, "'vocabulary.model'"),
        ("vocabulary.model", b"", ""),
        ("vocabulary.model", b"random", ""),
        ("settings.json", None, "No such file"),
        ("settings.json", b"", "Expecting value"),
        ("settings.json", b"\xff{}", "can't decode byte"),
        ("settings.json", lambda _: b"[" * 100_000, ""),
        ("settings.json", b"[]", "does not say that the format is litert"),
        ("settings.json", changed(format="ctranslate2"), "does not say that the format is litert"),
        ("settings.json", changed(format=None), "does not say that the format is litert"),
        ("settings.json", changed(format_version=2), "use the translator.py in the export"),
        ("settings.json", changed(format_version="1"), "format_version 1"),
        ("settings.json", changed(format_version=None), "format_version None"),
        ("settings.json", changed(output=None), "output"),
        ("settings.json", changed(decode=None), "decode"),
        ("settings.json", changed(decode=[0.6, 50]), "list"),
        ("settings.json", changed(decode={"alpha": 0.6, "length_reward": 0}), "length_ratio"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value))[:30],
)
def test_a_damaged_export(copy, name, content, reason):
    damage(copy, name, content)
    if name != "settings.json":
        signed(copy)
    with pytest.raises(litert_translator.Unusable) as refusal:
        litert_translator.Translator(copy)
    message = str(refusal.value)
    assert message.startswith(f"{copy}: not a usable LiteRT export (")
    assert reason in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    "decode",
    [
        {"alpha": None},
        {"alpha": -0.1},
        {"alpha": float("nan")},
        {"length_reward": -0.1},
        {"length_reward": float("nan")},
        {"length_reward": float("inf")},
        {"length_ratio": -1},
        {"length_ratio": float("nan")},
        {"max_extra_length": float("inf")},
        {"max_extra_length": -1},
        {"max_source_length": 1},
        {"max_source_length": [3]},
    ],
    ids=str,
)
def test_decode_settings_that_cannot_be(copy, decode):
    with_settings(copy, **decode)
    with pytest.raises(litert_translator.Unusable, match="not a usable LiteRT export"):
        litert_translator.Translator(copy)


def test_the_vocabulary_of_another_program(copy):
    """Its ids for padding and the end would not be the model's."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SOURCES), model_writer=model, vocab_size=200, minloglevel=2
    )
    (copy / "vocabulary.model").write_bytes(model.getvalue())
    signed(copy)
    with pytest.raises(litert_translator.Unusable, match="vocabulary"):
        litert_translator.Translator(copy)


@pytest.mark.parametrize("name", ["model.tflite", "vocabulary.model"])
def test_one_changed_byte(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    damage(copy, name, content)
    with pytest.raises(litert_translator.Unusable, match=f"{name} is damaged: its SHA-256"):
        litert_translator.Translator(copy)


FUZZ = """
import hashlib, json, random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from translator import Translator, Unusable

rng, directory = random.Random(7), Path(sys.argv[1])
original = (directory / "settings.json").read_bytes()
for number in range(80):
    path = directory / ("settings.json" if number % 4 == 0 else "model.tflite")
    whole = path.read_bytes()
    content = bytearray(whole)
    # The flatbuffer has its root in the first bytes, and its graphs in the last.
    start = (0, 0, 0, len(content) - 60_000)[number % 4]
    end = (len(content), 64, 3000, len(content))[number % 4]
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(start, end)] = rng.randrange(256)
    path.write_bytes(content)
    if path.name == "model.tflite":  # else its SHA-256 gives it away
        settings = json.loads(original)
        settings["sha256"][path.name] = hashlib.sha256(content).hexdigest()
        (directory / "settings.json").write_text(json.dumps(settings))
    try:
        Translator(directory, threads=1)
        print("loads")
    except Unusable as error:
        print(str(error).startswith(str(directory)))
    path.unlink()  # not overwritten, because the interpreter may have it mapped
    path.write_bytes(whole)
    (directory / "settings.json").write_bytes(original)
Translator(directory, threads=1)
"""


def test_no_changed_byte_kills_the_process(copy):
    """A changed weight or setting loads; everything else is refused."""
    printed = clean_process.output_of("-c", FUZZ, copy).split()
    assert set(printed) == {"loads", "True"}
    assert len(printed) == 80
    assert printed.count("True") > 30


def test_where_the_cores_cannot_be_counted(exported, monkeypatch):
    """Only Linux knows which cores a process may use."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert litert_translator.Translator(exported).translate(["", "Yes."])[0] == ""


# The command


def test_translate_prints_what_tensorflow_translates(run, exported, capfdbinary):
    text = "".join(f"{line}\n" for line in SOURCES[:20]).encode() + b"caf\xe9\n" + b"a " * 2000
    flags = ["--nbest=3", "--score"]
    outputs = []
    for source in (f"--litert={exported}", f"--litert={exported.parent}"):
        assert commands.call("translate", source, *flags, stdin=text) == 0
        outputs.append(capfdbinary.readouterr())
    assert outputs[0] == outputs[1]
    assert b"line 21: not UTF-8" in outputs[0].err
    assert b"line 22: too long, its end was cut off" in outputs[0].err
    rows = [line.split("\t") for line in outputs[0].out.decode().split("\n")[:-1]]
    ours = [line for row in all_of(run.translator(), SOURCES[:20]) for line in row]
    assert [text for _, text in rows[:60]] == [line.translation for line in ours]
    assert len(rows) == 3 * 22


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--litert={}/none", "none: not a usable export (no model.tflite in it); make"),
        ("--litert={} --workdir=run", "wanted one of --workdir, --saved_model and --litert"),
        ("--litert={} --saved_model=x", "wanted one of --workdir, --saved_model and --litert"),
        ("--litert={} --beam_size=2", "--beam_size: an export has its decode settings in it"),
        ("--litert={} --nbest=4", "--nbest=4: the search keeps 3 hypotheses; export with a"),
        ("--litert={} --nbest=0", "--nbest: wanted a whole number from 1 to 1,000, got '0'"),
        ("--litert={} --pretty", "--pretty: wanted the export of a run that parses"),
    ],
)
def test_flags(exported, capfd, flags, expected):
    status = commands.call("translate", *flags.format(exported).split(), stdin=b"Yes.\n")
    stdout, stderr = capfd.readouterr()
    lines = [line for line in stderr.splitlines() if "XNNPACK" not in line]
    assert (status, stdout, len(lines)) == (2, "", 1)
    assert lines[0].startswith("error: ")
    assert expected in lines[0]


def test_a_damaged_export_is_one_line(copy, capfd):
    damage(copy, "model.tflite", b"random")
    assert commands.call("translate", f"--litert={copy}", stdin=b"Yes.\n") == 2
    stdout, stderr = capfd.readouterr()
    assert (stdout, stderr.count("\n")) == ("", 1)
    assert stderr.startswith(f"error: {copy}: not a usable LiteRT export (")


def test_a_missing_package(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    monkeypatch.delitem(sys.modules, "ai_edge_litert.interpreter")
    monkeypatch.delitem(sys.modules, "t2t_repro.serving.litert_translator")
    monkeypatch.delattr("t2t_repro.serving.litert_translator")
    advice = r'wanted the package ai-edge-litert, .*; pip install "t2t_repro\[litert\]"'
    with pytest.raises(BadInput, match=advice):
        exports.litert(exported)
