"""The sdist and its wheel, installed away from the checkout and used from another directory."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from paths import ROOT

pytestmark = pytest.mark.slow
NO_BYTECODE = shutil.ignore_patterns("__pycache__")
VENV_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the sdist, in a copy, where setuptools leaves *.egg-info behind, and its wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    for folder in ("t2t_repro", "pipelines", "configs", "tests"):
        shutil.copytree(ROOT / folder, source / folder, ignore=NO_BYTECODE)
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(directory)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, stdout=subprocess.DEVNULL, check=True)
    (sdist,) = directory.glob("*.tar.gz")
    options = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*VENV_PIP, "wheel", *options, "-w", directory, sdist], check=True)
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    subprocess.run([*VENV_PIP, "install", "--no-deps", "--target", site, wheel], check=True)
    return site


@pytest.fixture
def python(site, tmp_path):
    """Return a function that runs Python in an empty directory with only the wheel on its path."""

    def python(*arguments):
        environment = os.environ | {"PYTHONPATH": str(site)}
        return subprocess.check_output(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, text=True, timeout=60
        )

    return python


def test_content(wheel):
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    expected = [
        *(str(path.relative_to(ROOT)) for path in ROOT.glob("t2t_repro/**/*.py")),
        "t2t_repro/paper/attention_figure.html",
        "t2t_repro/server/page.html",
        "t2t_repro/py.typed",
        *(str(path.relative_to(ROOT)) for path in ROOT.glob("pipelines/**/*.py")),
        *(f"t2t_repro/configs/{path.name}" for path in ROOT.glob("configs/*.yaml")),
    ]
    assert "t2t_repro/configs/table3.yaml" in expected
    assert sorted(names) == sorted(expected)


def test_the_installed_package_is_the_one_used(python, site):
    assert python("-c", "import t2t_repro; print(t2t_repro.__file__)").startswith(str(site))


def test_the_installed_configurations_are_found(python):
    code = (
        "from t2t_repro.config import resolve; config = resolve('toy_ende', 'D4'); "
        "print(config.model.num_layers, config.train.label_smoothing, config.model.dropout)"
    )
    assert python("-c", code).split() == ["2", "0.2", "0.1"]


def test_list_variants(python):
    lines = python("-m", "t2t_repro.train", "--list_variants").splitlines()
    assert next(line for line in lines if line.startswith("big ")).count("d_model 1024") == 1


@pytest.mark.parametrize("command", ["train", "evaluate", "translate", "export", "visualize"])
def test_help(python, command):
    text = python("-m", f"t2t_repro.{command}", "--help")
    assert f"usage: python -m t2t_repro.{command}" in text
    assert "--beam_size" in text


def test_a_console_script_is_the_command(site, tmp_path):
    ended = subprocess.run(
        [site / "bin" / "t2t-translate", "--workdir=run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: run: no run there (no config.yaml); ")


@pytest.mark.timeout(3000)
def test_an_empty_environment_gets_what_the_commands_need(wheel, tmp_path):
    """What setup.py requires, without extras, is enough to train and to translate."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True)
    programs = tmp_path / "empty" / "bin"
    pip = [programs / "python", *VENV_PIP[1:], "install", "--no-compile"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", wheel], check=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    run = f"--workdir={tmp_path / 'run'}"
    tiny = ["--num_layers=1", "--d_model=8", "--d_ff=16", "--num_heads=2", "--train_steps=2"]
    tiny += ["--vocabulary_size=400", "--embedding_rows=none", "--eval_sentences=0"]
    for command, sentence in (
        (["t2t-train", run, *tiny], ""),
        (["t2t-translate", run], "Hello.\n"),
    ):
        ended = subprocess.run(
            [programs / command[0], *command[1:]],
            input=sentence,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("\n") == 1
    shutil.rmtree(tmp_path / "empty")  # 2.6 GB
