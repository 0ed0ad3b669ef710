"""Processes that have TensorFlow and nothing of this project, as those that serve an export."""

import subprocess
import sys
from pathlib import Path

# The beginning of a program in which importing a package of this project fails.
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
    """Run Python with `arguments`, this code not on its path; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-I", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=Path.home(),
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
