"""Translate stdin to stdout, one output line for every input line, from a run or an export."""

import argparse
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.errors import BadInput
from t2t_repro import command, config

if typing.TYPE_CHECKING:
    from t2t_repro.translator import Translate


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = command.Parser(prog="python -m t2t_repro.translate", description=__doc__)
    flags.add_argument("--workdir", type=Path, help="a trained run")
    flags.add_argument("--saved_model", type=Path, help="instead: an export, or one version of it")
    command.add_settings(flags, ["decode"])
    return flags


def main() -> None:
    """Flags, then one call."""
    given = parser().parse_args()
    settings = command.settings(given)
    if (given.workdir is None) == (given.saved_model is None):
        raise BadInput("wanted one of --workdir and --saved_model")
    if given.saved_model and settings:
        raise BadInput(f"--{next(iter(settings))}: an export has its decode settings in it")
    if given.workdir:
        config.of_run(given.workdir)  # a mistake is told before the slow import
    command.quiet_tensorflow()
    from t2t_repro.translator import translate_lines

    translate = _of_export(given.saved_model) if given.saved_model else _of_run(given, settings)
    # A person at the keyboard wants each answer at once.
    window = 1 if sys.stdin.isatty() else 4096
    for number, result in enumerate(translate_lines(translate, _lines(), window), start=1):
        if result.cut:
            print(f"line {number}: too long, its end was cut off", file=sys.stderr)
        print(result.translation, flush=window == 1)


def _lines() -> Iterator[str]:
    """Lines of stdin, ended by a line feed alone; what is not UTF-8 becomes U+FFFD, with a note."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield line.decode()
        except UnicodeDecodeError:
            print(f"line {number}: not UTF-8, read with replacement characters", file=sys.stderr)
            yield line.decode(errors="replace")


def _of_run(given: argparse.Namespace, settings: dict[str, Any]) -> "Translate":
    from t2t_repro import experiment

    return experiment.restore(given.workdir, settings).translator()


def _of_export(path: Path) -> "Translate":
    from t2t_repro import export

    return export.load(path)


if __name__ == "__main__":
    command.run(main)
