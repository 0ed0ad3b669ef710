"""The files that use Keras and numpy only pass their tests on Keras's JAX backend too."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="a dev extra")

FILES = (
    *("model/test_attention", "model/test_fast_ops", "model/test_layers"),
    "model/test_keras_objects",
    *(
        "model/test_table1_layers",
        "model/test_transformer",
        "training/test_loss",
        "training/test_schedule",
    ),
    *("decoding/test_beam_search", "decoding/test_decoder"),
)


def test_pure_files_pass_on_jax():
    tests = Path(__file__).parent
    files = [str(tests / f"{name}.py") for name in FILES]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files],
        cwd=tests.parent,
        env=os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) > 80, run.stdout
