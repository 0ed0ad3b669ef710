"""The library interface for a user's own program: `load` and `Transformer`, as in the README."""

import random
import re
import shutil
import subprocess
import sys

import commands
import keras
import pytest
from paths import ROOT

import t2t_repro
from pipelines.errors import BadInput
from t2t_repro import experiment
from t2t_repro.config import Model
from t2t_repro.serving import saved_model
from t2t_repro.workdir import Workdir

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = ["The old house is not small.", "", "We know that my sister called the doctor."]


@pytest.fixture(scope="module")
def export(tiny_run, tmp_path_factory):
    directory = tmp_path_factory.mktemp("library") / "export"
    saved_model.save(experiment.restore(Workdir(tiny_run), {}), directory / "1")
    return directory


@pytest.mark.slow
def test_a_run_and_its_export_translate_like_the_command(tiny_run, export, capfdbinary):
    text = "".join(f"{line}\n" for line in LINES).encode()
    assert commands.call("translate", f"--workdir={tiny_run}", stdin=text) == 0
    expected = capfdbinary.readouterr().out.decode().splitlines()
    assert len(set(expected)) == 3
    assert t2t_repro.load(tiny_run).translate(LINES) == expected
    for path in (str(export), export / "1"):
        assert t2t_repro.load(path).translate(iter(LINES)) == expected


def test_no_run_and_no_export(tmp_path):
    with pytest.raises(BadInput, match=r"no run .* and no export .* there"):
        t2t_repro.load(tmp_path)
    (tmp_path / "1").mkdir()
    with pytest.raises(BadInput, match=r"no run .* and no export"):
        t2t_repro.load(tmp_path)


def test_a_run_or_preset_with_another_backend_of_keras(tiny_run, tmp_path, monkeypatch):
    (tmp_path / "model.weights.h5").touch()
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    for path in (tiny_run, tmp_path):
        with pytest.raises(BadInput, match="backend is jax; wanted KERAS_BACKEND=tensorflow"):
            t2t_repro.load(path)


def test_one_string_is_not_a_list_of_strings(export):
    with pytest.raises(TypeError, match="wanted a list of strings, got one string"):
        t2t_repro.load(export).translate("The old house.")
    with pytest.raises(TypeError, match="wanted strings, got NoneType at 1"):
        t2t_repro.load(export).translate(["The old house.", None])


def test_half_a_surrogate_pair_is_a_space(export):
    """Bytes that are not UTF-8 become such, where Python reads with errors="surrogateescape"."""
    half, space = t2t_repro.load(export).translate(["The old \udc80house.", "The old  house."])
    assert half == space


@pytest.mark.slow
def test_a_sentence_that_is_cut_gives_a_warning(export):
    model = t2t_repro.load(export)
    with pytest.warns(UserWarning, match=r"the end was cut off: sentences \[1\]"):
        assert len(model.translate(["The old house.", "long " * 1200])) == 2


def test_loading_leaves_the_random_numbers_of_the_program_alone(tiny_run):
    """If loading set a seed, Keras's random numbers would be the same after each load."""
    after = []
    for seed in (1, 2):
        random.seed(seed)
        t2t_repro.load(tiny_run)
        after.append(random.random())
    assert after[0] != after[1]


@pytest.mark.slow
def test_the_examples_of_the_readme_run(tiny_run):
    translating, modelling = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert 'load("runs/toy_ende")' in translating
    exec(translating.replace("runs/toy_ende", str(tiny_run)), {})
    names = {}
    exec(modelling, names)
    assert names["logits"].shape == (1, 3, 40960)
    assert names["model"].count_params() == 65_110_016


@pytest.mark.slow
def test_the_examples_of_the_page_run(tiny_run, tmp_path, monkeypatch):
    page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    translating, presets, *fitted = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shutil.copytree(tiny_run, tmp_path / "runs/toy_ende")
    monkeypatch.chdir(tmp_path)
    flags = "--workdir=runs/toy_ende", "--export_dir=runs/toy_ende/preset", "--format=keras"
    assert f"t2t_repro.export {' '.join(flags)}\n" in page
    assert commands.call("export", *flags) == 0
    for code in (translating, presets):
        exec(code, {})
    assert len(fitted) == 2
    for code in fitted:
        assert len(code.strip().splitlines()) <= 22
        names = {}
        keras.utils.set_random_seed(1)
        exec(code, names)
        assert names["history"].history["accuracy"][-1] > 0.95


def test_the_model_by_its_short_name():
    model = t2t_repro.Transformer(Model(num_layers=1, d_model=8, d_ff=8), rows=9)
    assert type(model).__module__ == "t2t_repro.model.transformer"
    with pytest.raises(AttributeError, match="has no attribute 'Transfomer'"):
        _ = t2t_repro.Transfomer


def test_importing_the_package_is_quick():
    code = "import sys, t2t_repro; print(sorted({'tensorflow', 'keras'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n"
