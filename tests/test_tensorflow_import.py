"""What a command imports with TensorFlow, in a process of its own."""

import commands
import pytest

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
