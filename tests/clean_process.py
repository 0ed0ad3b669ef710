"""Child processes that have TensorFlow but none of this project's code, like a server."""

import subprocess
import sys
from pathlib import Path

# A program that starts with these lines cannot import this project's packages.
ALONE = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("t2t_repro", "pipelines"):
            raise ImportError(f"{name} must not be needed")

sys.meta_path.insert(0, Blocker())
import tensorflow as tf
import tensorflow_text
"""


def output_of(*arguments, stdin=""):
    """Run Python with `arguments` and without PYTHONPATH; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-I", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=Path.home(),
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
