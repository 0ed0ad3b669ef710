"""A run exported as one folder for Keras translates as the run does."""

import json
import shutil

import commands
import pytest

import t2t_repro
from pipelines.errors import BadInput
from pipelines.vocabulary import Vocabulary
from t2t_repro.serving import exports
from t2t_repro.workdir import Workdir

pytestmark = pytest.mark.slow
LINES = ["The old house is not small.", "", "We know that my sister called the doctor."]


@pytest.fixture(scope="module")
def preset(tiny_run, tmp_path_factory):
    directory = tmp_path_factory.mktemp("preset") / "export"
    flags = f"--workdir={tiny_run}", f"--export_dir={directory}", "--format=keras"
    assert commands.call("export", *flags) == 0
    return directory / "1"


def test_it_translates_as_the_run(tiny_run, preset):
    expected = t2t_repro.load(tiny_run).translate(LINES)
    assert len(set(expected)) == 3
    assert t2t_repro.load(preset).translate(LINES) == expected
    exports.verify(preset)
    opened = exports.open_export(preset)
    vocabulary = Vocabulary.load(tiny_run)
    ((ids, score),) = opened.translate_ids(vocabulary.encode(LINES[:1]))
    ((best, _, *_),) = opened.nbest(LINES[:1], opened.beam_size)
    assert vocabulary.decode([ids]) == [best.translation]
    assert score == pytest.approx(best.score, abs=1e-5)


def test_the_tokenizer_is_the_runs_and_kerashubs(tiny_run, preset):
    assert Vocabulary.from_preset(preset).fingerprint == Vocabulary.load(tiny_run).fingerprint
    described = json.loads((preset / "tokenizer.json").read_text())
    assert described["registered_name"] == "keras_hub>SentencePieceTokenizer"
    assert described["config"]["add_eos"]
    names = {path.relative_to(preset).as_posix() for path in preset.rglob("*") if path.is_file()}
    assert names == {
        *("config.json", "metadata.json", "model.weights.h5", "settings.json", "tokenizer.json"),
        "assets/tokenizer/vocabulary.spm",
    }
    assert not Workdir(preset).holds_run


def test_damage_is_found(preset, tmp_path):
    copy = shutil.copytree(preset, tmp_path / "copy")
    (copy / "assets/tokenizer/vocabulary.spm").write_bytes(b"")
    with pytest.raises(BadInput, match=r"vocabulary.spm is damaged"):
        t2t_repro.load(copy)
