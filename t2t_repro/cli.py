"""Shared code of the commands: flags from hyperparameters, clear endings.

Exit status: 0 done; 2 bad usage or input, with one line on stderr; 1 anything else.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import sys
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from pipelines.errors import BadInput
from pipelines.storage import is_address
from t2t_repro import config
from t2t_repro.settings import nearest
from t2t_repro.workdir import Workdir

GROUPS_SHOWN = {
    "model": "model (section 3)",
    "data": "data (section 5.1)",
    "train": "training (sections 5.2 to 5.4)",
    "decode": "decoding (section 6.1)",
}


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of each flag unless the default is off or None."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_off = action.default is None or action.default is False
        return action.help if is_off else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises BadInput with the nearest flag on a mistake."""

    def __init__(self, **kwargs: Any):
        super().__init__(allow_abbrev=False, formatter_class=_HelpFormatter, **kwargs)

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments; an unknown flag raises a BadInput that names the nearest flag."""
        namespace, unknown = self.parse_known_args(*args, **kwargs)
        if unknown:
            word = unknown[0].split("=")[0]
            known = [option for action in self._actions for option in action.option_strings]
            raise BadInput(f"unknown argument '{word}'{nearest(word, known)} (--help lists all)")
        return namespace

    def error(self, message: str) -> NoReturn:
        """Raise BadInput, in place of argparse's usage and exit."""
        raise BadInput(message)


class Run(typing.NamedTuple):
    """The run that the flags of `add_run` name."""

    problem: str | None
    variant: str | None
    workdir: Workdir
    overrides: dict[str, Any]


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name a run, old or new, and one for every setting; see `run_of`."""
    names = ", ".join(config.problem_names())
    parser.add_argument(
        "--problem",
        default=argparse.SUPPRESS,
        help=f"problem to train on: {names} (default: toy_ende)",
    )
    parser.add_argument(
        "--variant",
        default=argparse.SUPPRESS,
        help="row of Table 3, or variant of the problem, applied to its model (default: base)",
    )
    parser.add_argument(
        "--workdir",
        default=argparse.SUPPRESS,
        help="work directory (default: runs/<problem>, or runs/<problem>_<variant>)",
    )
    add_settings(parser, config.GROUPS)


def add_strict(parser: argparse.ArgumentParser) -> None:
    """Add the flag that makes a damaged checkpoint an error."""
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end with an error at a damaged checkpoint, instead of a warning and an earlier one",
    )


def run_of(namespace: argparse.Namespace) -> Run:
    """Return the run that the flags name; raise BadInput for unknown names and values."""
    problem, variant = getattr(namespace, "problem", None), getattr(namespace, "variant", None)
    name = "_".join(filter(None, (problem or "toy_ende", variant)))
    overrides = _absolute(settings(namespace))
    config.resolve(problem or "toy_ende", variant or "base", overrides)
    workdir = Workdir(Path(getattr(namespace, "workdir", f"runs/{name}")))
    return Run(problem, variant, workdir, overrides)


def _absolute(overrides: dict[str, Any]) -> dict[str, Any]:
    """Make paths absolute: later commands, in any directory, read them in config.yaml."""

    def absolute(name: str, value: Any) -> Any:
        if name.endswith("_dir") and value and not is_address(value):
            return str(Path(value).absolute())
        return [str(Path(file).absolute()) for file in value] if name.endswith("_files") else value

    return {name: absolute(name, value) for name, value in overrides.items()}


def add_settings(parser: argparse.ArgumentParser, groups: Iterable[str], *names: str) -> None:
    """Add a flag for every setting of the groups, and for the further names.

    Flags that are not given leave nothing in the namespace; `settings` finds the given ones.
    """
    shown = {group: parser.add_argument_group(GROUPS_SHOWN[group]) for group in config.GROUPS}
    for group, field in config.fields():
        if group in groups or field.name in names:
            _add_setting(shown[group], field)


def _add_setting(group: argparse._ArgumentGroup, field: dataclasses.Field) -> None:
    default = "none" if field.default in (None, ()) else str(field.default).lower()
    many = field.default == ()
    group.add_argument(
        f"--{field.name}",
        default=argparse.SUPPRESS,
        metavar="FILE" if many else default,
        help=field.metadata["help"],
        nargs="+" if many else "?" if field.default is False else None,
        const="true" if field.default is False else None,
    )


def settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the settings given as flags, as values of their types; raise BadInput if wrong."""
    given = {name: value for name, value in vars(namespace).items() if name in config.FIELDS}
    return {
        name: value if isinstance(value, list) else config.parse(name, value)
        for name, value in given.items()
    }


def run(main: Callable[[], None]) -> NoReturn:
    """Run a command's main function and end the process with the exit status above."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # UTF-8 and "\n" whatever the locale says
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    try:
        main()
        sys.stdout.flush()
    except BadInput as error:
        _end(2, f"error: {' '.join(str(error).split())}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(1)  # not sys.exit, which would wait for TFDS's threads to finish downloading
    except BrokenPipeError:  # the reader of stdout went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _end(1, "stdout was closed")
    except OSError as error:
        _end(2, f"error: {error.filename or 'input or output'}: {error.strerror or error}")
    sys.exit(0)


def _end(status: int, message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(status)
