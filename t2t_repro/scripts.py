"""The console scripts: `t2t-train` is `python -m t2t_repro.train`, and so on."""

import importlib
from collections.abc import Callable
from typing import NoReturn

from t2t_repro import cli


def _script(module: str) -> Callable[[], NoReturn]:
    """Return a function that runs the command in a module, which only then is imported."""
    return lambda: cli.run(importlib.import_module(f"t2t_repro.{module}").main)


# setup.py names them.
train = _script("train")
evaluate = _script("evaluate")
translate = _script("translate")
export = _script("export")
serve = _script("serve")
prepare = _script("prepare")
visualize = _script("visualize")
score = _script("score")
bench = _script("bench.__main__")
