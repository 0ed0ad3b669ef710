"""COMET (Rei et al. 2020, arXiv:2009.09025): a trained metric that also reads the source.

It runs in a process of its own, with a Python of the user's choice: the package unbabel-comet 2.2
wants protobuf below 5 and NumPy below 2, which no installation of TensorFlow 2.21 can have.
"""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import BadInput

# Passed as text: a file would put its folder on the path, and this module before the package comet.
_PROGRAM = Path(__file__).with_name("comet_program.py")
# Any folder called comet, as of a virtual environment, is found too, but has no origin.
_FIND = (
    "import importlib.util as i, sys; s = i.find_spec('comet'); "
    "sys.exit(3 * (s is None or s.origin is None))"
)
_HOW = (
    "python3 -m venv comet, comet/bin/pip install unbabel-comet, and then "
    "--comet_python=comet/bin/python"
)


class Comet:
    """A COMET model on disk, and the Python that runs it.

    Args:
        model: The checkpoint, a file such as checkpoints/model.ckpt.
        python: A Python that has unbabel-comet, as a shell would find it; None for this one.

    Raises:
        BadInput: There is no such file, or that Python has no COMET.
    """

    def __init__(self, model: Path, python: str | None = None):
        self.model, self.python = model, python or sys.executable
        if not model.is_file():
            raise BadInput(f"--comet={model}: no such file; wanted the model.ckpt of a COMET model")
        if self._run(["-c", _FIND]).returncode:
            raise BadInput(f"--comet: unbabel-comet is not installed in {self.python}; {_HOW}")

    def scores(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, float | str | int]:
        """Return `comet`, the mean over all lines, and `comet_model`, the path of the model.

        Raises:
            BadInput: COMET fails.
        """
        lines = zip(sources, hypotheses, references, strict=True)
        samples = [{"src": s, "mt": h, "ref": r} for s, h, r in lines]
        program = _PROGRAM.read_text(encoding="utf-8")
        done = self._run(["-c", program, str(self.model)], json.dumps(samples))
        try:
            if not math.isfinite(score := float(done.stdout.splitlines()[-1])):
                raise ValueError(f"a score of {score}")
        except (ValueError, IndexError):
            said = [line for line in done.stderr.splitlines() if line.strip()] or ["no score"]
            raise BadInput(
                f"--comet={self.model}: {said[-1]}; wanted a model that {self.python} can load"
            ) from None
        return {"comet": score, "comet_model": str(self.model)}

    def _run(self, arguments: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self.python, *arguments],
                input=text,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise BadInput(
                f"--comet_python={self.python}: {error.strerror}; wanted a Python: {_HOW}"
            ) from None
