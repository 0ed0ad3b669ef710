"""What a command imports with TensorFlow, in a process of its own."""

import platform
import subprocess
import sys

import commands
import pytest

pytestmark = pytest.mark.slow

CODE = """
import sys
from t2t_repro import tensorflow_import
tensorflow_import.quiet()
print(*{"tensorflow", "keras", "matplotlib", "jax", "IPython"} & sys.modules.keys())
import keras, matplotlib.figure
print(keras.backend.backend(), matplotlib.figure.Figure)
"""


@pytest.mark.parametrize(
    "environment", [{}, {"TF_CPP_MIN_LOG_LEVEL": "3"}, {"KERAS_BACKEND": "jax"}], ids=str
)
def test_large_packages_are_imported_only_when_they_are_needed(environment):
    printed = commands.python("-c", CODE, **environment).stdout.decode().splitlines()
    assert set(printed[0].split()) == {"tensorflow", "keras"}
    assert printed[1].startswith("tensorflow ")
    assert "Figure" in printed[1]


@pytest.mark.parametrize("package", ["tensorflow", "keras"])
def test_a_missing_package_is_named(package):
    """As where an export without TensorFlow is the only thing to be served."""
    code = "from t2t_repro import cli, tensorflow_import\ncli.run(tensorflow_import.quiet)"
    command = [sys.executable, "-c", commands.without(package) + code]
    done = subprocess.run(command, capture_output=True, text=True, env=commands.environment())
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert (
        line
        == f"error: wanted the package {package}, which is not installed; pip install t2t_repro"
    )


def test_no_garbage_is_collected_during_the_import():
    code = """
import gc
from t2t_repro import tensorflow_import
begun = []
gc.callbacks.append(lambda phase, _: begun.append(phase))
tensorflow_import.quiet()
print(len(begun), gc.get_freeze_count() > 100_000, gc.isenabled())
frozen = gc.get_freeze_count()
cycle = []
cycle.append(cycle)
tensorflow_import.quiet()
print(gc.get_freeze_count() == frozen)
"""
    first, again = commands.python("-c", code).stdout.decode().splitlines()
    assert first == "0 True True"
    assert again == "True"


# The variable alone would not do: TensorFlow reads it once, when it is loaded.
ONEDNN = """
import os
from t2t_repro import tensorflow_import
tensorflow_import.quiet()
from tensorflow.python.util import _pywrap_util_port
print(_pywrap_util_port.IsMklEnabled(), os.environ["TF_ENABLE_ONEDNN_OPTS"])
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86 processor")
@pytest.mark.parametrize("given", [{}, {"TF_ENABLE_ONEDNN_OPTS": "0"}], ids=str)
def test_onednn_is_used_unless_the_user_says_otherwise(given):
    printed = commands.python("-c", ONEDNN, **given).stdout.decode().split()
    assert printed == (["False", "0"] if given else ["True", "1"])
