"""What the processor can do, as Linux says it and as lscpu does."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from t2t_repro.distributed import machine
from t2t_repro.distributed.machine import cpu_has

needs_lscpu = pytest.mark.skipif(not shutil.which("lscpu"), reason="needs lscpu (Linux)")


@needs_lscpu
@pytest.mark.parametrize(
    "name", ["avx2", "avx512_bf16", "amx_bf16", "avx512_vnni", "asimd", "none"]
)
def test_instructions_are_those_that_lscpu_lists(name):
    listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    assert cpu_has(name) == (name in listed.split())


@needs_lscpu
def test_one_of_several_is_enough():
    names = {"fp", "fpu"}  # ARM's and x86's name for floating point
    assert cpu_has(*names, "none")
    assert not cpu_has()


def test_what_is_not_known_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "Path", lambda _: tmp_path / "absent")
    assert cpu_has("fpu") is None


def test_a_softmax_in_bfloat16_without_onednn_is_not_exact():
    """TensorFlow reads the variable once, when it is imported."""
    code = """
import json
from t2t_repro.distributed.machine import softmax_is_exact
print(json.dumps([softmax_is_exact(dtype) for dtype in ("float32", "bfloat16")]))
"""
    env = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert json.loads(done.stdout) == [True, False]
