"""What a command imports with TensorFlow, in a process of its own."""

import commands
import pytest

CODE = """
import sys
from t2t_repro import tensorflow_import
tensorflow_import.quiet()
print("tensorflow" in sys.modules, "keras" in sys.modules, "matplotlib" in sys.modules)
import matplotlib.figure
print(matplotlib.figure.Figure)
"""


@pytest.mark.parametrize("environment", [{}, {"TF_CPP_MIN_LOG_LEVEL": "3"}], ids=str)
def test_matplotlib_is_imported_only_when_it_is_needed(environment):
    printed = commands.python("-c", CODE, **environment).stdout.decode().splitlines()
    assert printed[0] == "True True False"
    assert "Figure" in printed[1]
