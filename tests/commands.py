"""Call a command in this process, or start Python in a child process as a shell would."""

import importlib
import io
import os
import subprocess
import sys

import pytest
from paths import ROOT

from t2t_repro import cli


def environment():
    """Return a shell's environment, without the variables that importing TensorFlow sets."""
    ours = "TF_CPP_MIN_LOG_LEVEL", "KERAS_BACKEND", "TF_ENABLE_ONEDNN_OPTS"
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return kept | {"PYTHONPATH": str(ROOT)}


def call(name, *flags, stdin=b""):
    """Run a command in this process, which saves importing TensorFlow; return its exit status."""
    module = importlib.import_module(f"t2t_repro.{name}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # leaves this process's stderr where it is
        patch.setattr(sys, "argv", [name, *map(str, flags)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            cli.run(module.main)
    return end.value.code


def without(*packages):
    """Return Python code after which packages cannot be imported, as if not installed."""
    return f"""
import sys

class Absent:
    def find_spec(name, path, target=None):
        if name in {packages}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Absent)
"""


def python(*arguments, stdin=b"", cwd=ROOT.anchor, **variables):
    """Run Python in a child process and return its output; a status other than 0 is an error."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=environment() | variables,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done
