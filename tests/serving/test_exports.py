"""Exports of every format, and the run they were made of, loaded alike and translating alike."""

import functools
import json
import re
import shutil
from itertools import islice
from types import SimpleNamespace

import commands
import numpy as np
import pytest
import tensorflow as tf

import t2t_repro
from pipelines.errors import BadInput
from pipelines.toy import toy_ende
from pipelines.vocabulary import EOS, Vocabulary
from t2t_repro.serving import ctranslate2, export_files, exports, litert, saved_model
from t2t_repro.workdir import Workdir

pytest.importorskip("ctranslate2")
pytest.importorskip("ai_edge_litert")
LINES = ["", *(pair["source"] for pair in islice(toy_ende.examples("dev"), 100))]
FORMATS = [pytest.param("saved_model", marks=pytest.mark.slow), "litert", "ctranslate2"]
SAVE = {"saved_model": saved_model.save, "litert": litert.save, "ctranslate2": ctranslate2.save}


@pytest.fixture(scope="module")
def made(tiny_run, tmp_path_factory):
    """Return a function that exports in a format, beside an older version that is unusable."""
    from t2t_repro import experiment

    run = experiment.restore(Workdir(tiny_run), {"beam_size": 2})
    directory = tmp_path_factory.mktemp("exports")

    @functools.cache
    def made(name):
        SAVE[name](run, directory / name / "10")
        (directory / name / "9").mkdir()
        return directory / name

    return made


@pytest.fixture(scope="module")
def ours(tiny_run):
    """Return the translations of the run itself."""
    from t2t_repro import experiment

    translator = experiment.restore(Workdir(tiny_run), {"beam_size": 2}).translator()
    return [lines[0].translation for lines in translator.lines()(LINES, 4096)]


@pytest.mark.parametrize(
    ("name", "share"),
    [
        pytest.param("saved_model", 1, marks=pytest.mark.slow),
        ("litert", 1),
        ("ctranslate2", 0.9),
    ],
)
def test_every_format_translates_like_the_run(made, ours, name, share):
    """CTranslate2 prunes by another length penalty."""
    model = t2t_repro.load(made(name))
    theirs = model.translate(LINES)
    same = [a == b for a, b in zip(theirs, ours, strict=True)]
    assert np.mean(same) >= share
    assert theirs[0] == ""
    assert t2t_repro.load(str(made(name) / "10")).translate(LINES[:3]) == theirs[:3]
    with pytest.warns(UserWarning, match=r"the end was cut off: sentences \[1\]"):
        assert model.translate(["The old house.", "long " * 1200])[0] != ""
    assert model.translate([]) == []


@pytest.mark.parametrize("name", FORMATS)
def test_nbest(made, name):
    """The best of the n best is the translation, and blank lines have one."""
    best = [line for (line,) in exports.load(made(name))(iter(LINES[:9]), 4)]
    beams = list(exports.load(made(name), 2)(iter(LINES[:9]), 4))
    assert [row[0].translation for row in beams] == [line.translation for line in best]
    assert all(len(row) == 2 and row[0].score >= row[1].score for row in beams)
    assert [(line.translation, line.score) for line in beams[0]] == [("", 0), ("", -1e9)]
    with pytest.raises(BadInput, match="--nbest=3: the search keeps 2 hypotheses; export with a"):
        exports.load(made(name), 3)


@pytest.mark.parametrize("name", FORMATS)
def test_ids_translate_as_their_text_does(made, tiny_run, name):
    vocabulary, translator = Vocabulary.load(tiny_run), exports.open_export(made(name))
    lines = [line for line in LINES[:9] if line.strip()]
    expected = [(row[0].translation, row[0].score) for row in translator.nbest(lines, 1)]
    ids, scores = zip(*translator.translate_ids(vocabulary.encode(lines)), strict=True)
    assert all(row[-1] == EOS and EOS not in row[:-1] for row in ids)
    assert vocabulary.decode(ids) == [text for text, _ in expected]
    np.testing.assert_allclose(scores, [score for _, score in expected], rtol=1e-5)


def test_versions_are_ordered_as_numbers(tmp_path):
    for name in ("2", "10", "9", "x11", ".12.tmp"):
        (tmp_path / name).mkdir()
    assert exports.newest_version(tmp_path) == tmp_path / "10"
    assert exports.newest_version(tmp_path / "9") == tmp_path / "9"
    (tmp_path / "9" / "model.tflite").touch()
    (tmp_path / "11").touch()
    assert exports.newest_version(tmp_path) == tmp_path / "9"  # no other is an export


def test_neither_run_nor_export(tmp_path):
    (tmp_path / "3").mkdir()
    message = rf"{tmp_path}/3: no run .* and no export .*model.tflite.* there"
    with pytest.raises(BadInput, match=message):
        t2t_repro.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "file"), [("litert", "model.tflite"), ("ctranslate2", "model.bin")]
)
@pytest.mark.parametrize(
    "damage",
    [
        lambda path, file: (path / file).write_bytes(b"random"),
        lambda path, _: (path / "settings.json").write_text("[]"),
        lambda path, _: (path / "settings.json").unlink(),
        lambda path, _: (path / "vocabulary.model").write_bytes(b"random"),
        lambda path, _: (path / "settings.json").write_text(
            (path / "settings.json").read_text().replace('"alpha": 0.6', '"alpha": "x"')
        ),
        lambda path, _: (path / "settings.json").write_text(
            (path / "settings.json").read_text().replace(": 20,", ": Infinity,")
        ),
    ],
    ids=["model", "list", "no settings", "vocabulary", "alpha", "infinity"],
)
def test_a_damaged_export_is_named_with_a_remedy(made, tmp_path, name, file, damage):
    copy = shutil.copytree(made(name) / "10", tmp_path / "1")
    damage(copy, file)
    with pytest.raises(BadInput) as refusal:
        t2t_repro.load(copy)
    message = str(refusal.value)
    assert message.startswith(f"{copy}: not a usable ")
    assert message.endswith("make one with python -m t2t_repro.export")
    assert len(message.splitlines()) == 1


# Files on which no translation depends: only --verify reads them.
UNREAD = {"litert": {"translator.py", "vocabulary.vocab"}}


@pytest.mark.parametrize("name", FORMATS)
def test_a_flipped_bit_in_any_file_is_found(made, tmp_path, name):
    """SavedModels' variables by TensorFlow's own checksums, all else by SHA-256."""
    copy = shutil.copytree(made(name) / "10", tmp_path / "1")
    exports.verify(copy)
    files = [path for path in copy.rglob("*") if path.is_file() and path.name != "settings.json"]
    assert len(files) >= 4
    for path in files:
        whole = path.read_bytes()
        for place in (0, len(whole) // 3, len(whole) - 30, len(whole) - 1):
            content = bytearray(whole)
            content[place] ^= 4
            path.unlink()  # not overwritten, because an engine may have it mapped
            path.write_bytes(content)
            with pytest.raises(BadInput, match=f"damaged: .*{path.name}"):
                exports.verify(copy)
            if path.name not in UNREAD.get(name, ()):
                with pytest.raises(BadInput, match=r"not a usable"):
                    t2t_repro.load(copy)
        path.unlink()
        path.write_bytes(whole)
    assert t2t_repro.load(copy).translate([""]) == [""]


@pytest.mark.parametrize("name", ["litert", "ctranslate2"])
def test_the_vocabulary_of_another_model(made, toy_vocabulary, tmp_path, name):
    """Also if somebody has written its SHA-256 into settings.json."""
    copy = shutil.copytree(made(name) / "10", tmp_path / "1")
    toy_vocabulary.save(copy)
    with pytest.raises(BadInput, match=r"vocabulary\.(model|vocab) is damaged"):
        t2t_repro.load(copy)
    settings = export_files.settings(copy)
    export_files.write_settings(copy, settings)
    with pytest.raises(BadInput, match=r"not a usable"):
        t2t_repro.load(copy).translate(LINES)


WITHOUT = """
import sys, t2t_repro
translations = t2t_repro.load(sys.argv[1]).translate(["The old house is not small."])
print(sorted({"tensorflow", "keras", "tensorflow_text"} & {*sys.modules}), *translations)
"""


@pytest.mark.parametrize("name", ["litert", "ctranslate2"])
def test_two_formats_load_without_tensorflow(made, name):
    (expected,) = t2t_repro.load(made(name)).translate(["The old house is not small."])
    done = commands.python("-c", WITHOUT, made(name))
    assert done.stdout.decode() == f"[] {expected}\n"


@pytest.mark.parametrize("file", ["saved_model.pb", "model.weights.h5"])
def test_the_others_say_that_they_need_it(file, tmp_path):
    (tmp_path / file).touch()
    code = """
import t2t_repro
from pipelines.errors import BadInput
try:
    t2t_repro.load(sys.argv[1])
except BadInput as error:
    print(error)
"""
    (line,) = (
        commands.python("-c", commands.without("tensorflow", "keras") + code, tmp_path)
        .stdout.decode()
        .splitlines()
    )
    assert re.fullmatch(
        r".*: wanted the package (tensorflow|keras), .*; pip install \"t2t_repro\"", line
    )


@pytest.mark.parametrize(
    "error", [MemoryError("bad_alloc"), tf.errors.ResourceExhaustedError(None, None, "OOM")]
)
def test_too_little_memory_is_no_fault_of_the_export(tmp_path, error):
    def nbest(sentences, count):
        raise error

    lines = exports._lines(SimpleNamespace(beam_size=4, nbest=nbest), tmp_path, 1)
    with pytest.raises(MemoryError):
        list(lines(["a"], 1))


@pytest.mark.parametrize("name", FORMATS)
def test_settings(made, name):
    folder = made(name) / "10" / ("assets.extra" if name == "saved_model" else "")
    settings = json.loads((folder / "settings.json").read_text())
    assert (settings["format"], settings["weights"]) == (name, "float32")
    assert settings["decode"]["beam_size"] == 2
