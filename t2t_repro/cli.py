"""Shared code of the commands: flags from hyperparameters, clear endings.

Exit status: 0 done; 2 bad usage or input, with one line on stderr; 1 anything else. The line
has at most 500 characters.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pipelines.errors import BadInput, first_line
from pipelines.storage import is_address
from t2t_repro import __version__, config, stdio
from t2t_repro.settings import help_text, is_text, nearest, shown
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


class _Version(argparse.Action):
    """Prints the versions and exits; TensorFlow, which takes seconds to import, is not imported."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        import importlib.metadata as installed  # takes 20 ms

        names, shown = {"TensorFlow": "tensorflow", "Keras": "keras"}, [f"t2t_repro {__version__}"]
        for name, package in names.items():
            try:
                shown.append(f"{name} {installed.version(package)}")
            except installed.PackageNotFoundError:
                shown.append(f"{name} not installed")
        print(", ".join(shown))
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argument parser that raises BadInput with the nearest flag on a mistake.

    Args:
        prog: How the command is called, "python -m t2t_repro.train"; the console script t2t-train
            shows its own name instead.
        **kwargs: See argparse.
    """

    def __init__(self, prog: str, **kwargs: Any):
        script = f"t2t-{prog.rpartition('.')[2]}"
        prog = script if Path(sys.argv[0]).stem == script else prog
        super().__init__(prog, allow_abbrev=False, formatter_class=_HelpFormatter, **kwargs)
        self.add_argument(
            "--version",
            action=_Version,
            nargs=0,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            help="print the versions of this package, TensorFlow and Keras, and exit",
        )

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse the arguments; an unknown flag raises a BadInput that names the nearest flag."""
        if "_ARGCOMPLETE" in os.environ:  # a shell asks what may follow, in COMP_LINE
            import argcomplete

            argcomplete.autocomplete(self)  # answers, and ends the process
        args = [_with_home(word) for word in (sys.argv[1:] if args is None else args)]
        _check_words(args)
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].split("=")[0]
            known = [option for action in self._actions for option in action.option_strings]
            raise BadInput(f"unknown argument '{word}'{nearest(word, known)} (--help lists all)")
        return namespace

    def print_help(self, file: Any = None) -> None:
        """Print what --help shows; argparse's own method is silent about a full disk."""
        print(self.format_help(), end="", file=file or sys.stdout)

    def error(self, message: str) -> NoReturn:
        """Raise BadInput, in place of argparse's usage and exit."""
        raise BadInput(message)


def _with_home(word: str) -> str:
    """Expand `~` at the start of a flag's value, as in --workdir=~/run, which a shell leaves."""
    flag, equals, value = word.partition("=")
    if flag.startswith("--") and (value == "~" or value.startswith("~/")):
        value = os.path.expanduser(value)
    return flag + equals + value


def _check_words(words: Sequence[str]) -> None:
    """Raise BadInput for an empty value, as of an unset shell variable, or one that is no text."""
    for before, word in itertools.pairwise(("", *words)):
        flag, equals, value = word.partition("=")
        if not word or (flag.startswith("--") and equals and not value):
            raise BadInput(f"{flag or before}: the value is empty; give one, or leave the flag out")
        if not is_text(word):
            raise BadInput(f"{shown(word)}: wanted UTF-8; rename the file, or convert the text")


def add_number(
    flags: argparse._ActionsContainer,
    name: str,
    default: float | None,
    text: str,
    low: float,
    high: float,
    **shape: Any,
) -> None:
    """Add a flag whose value is a number from `low` to `high`, which its help says.

    Args:
        flags: A parser or a group of one.
        name: The flag.
        default: Its default; if it is a float, other values may be too.
        text: Its line in `--help`.
        low: The least value allowed.
        high: The greatest value allowed.
        **shape: `metavar` and `nargs`, see argparse.
    """
    kind = float if isinstance(default, float) else int

    def number(word: str) -> float:
        with contextlib.suppress(ValueError):
            if low <= (value := kind(word)) <= high:  # NaN is not
                return value
        described = "number" if kind is float else "whole number"
        raise argparse.ArgumentTypeError(
            f"wanted a {described} from {low:,} to {high:,}, got {shown(word)}"
        )

    flags.add_argument(
        name, type=number, default=default, help=f"{text} ({low:,} to {high:,})", **shape
    )


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
    ).completer = lambda **_: config.problem_names()  # type: ignore[attr-defined]
    parser.add_argument(
        "--variant",
        default=argparse.SUPPRESS,
        help="row of Table 3, or variant of the problem, applied to its model (default: base)",
    ).completer = _variants  # type: ignore[attr-defined]
    parser.add_argument(
        "--workdir",
        default=argparse.SUPPRESS,
        help="work directory (default: runs/<problem>, or runs/<problem>_<variant>)",
    )
    add_settings(parser, config.GROUPS)


def _variants(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return what a shell may complete after --variant."""
    return list(config.variants(getattr(parsed_args, "problem", None)))


def add_strict(parser: argparse.ArgumentParser) -> None:
    """Add the flag that makes a damaged checkpoint an error."""
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end with an error at a damaged checkpoint, instead of a warning and an earlier one",
    )


_LAST_STEP = config.FIELDS["train_steps"].metadata["high"]


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the flag that chooses the checkpoints whose weights a command takes."""
    parser.add_argument(
        "--checkpoint",
        type=_checkpoint,
        default="average",
        metavar="STEP|best|last|average",
        help=f"weights to take: of a step (1 to {_LAST_STEP:,}), of the best dev score, the last, "
        "or the mean of the last --average_last",
    )


def _checkpoint(word: str) -> str:
    is_step = re.fullmatch(r"[1-9]\d{0,9}", word, re.ASCII) and int(word) <= _LAST_STEP
    if is_step or word in ("best", "last", "average"):
        return word
    raise argparse.ArgumentTypeError(
        f"wanted a step from 1 to {_LAST_STEP:,}, best, last or average, got {shown(word)}"
    )


def run_of(namespace: argparse.Namespace) -> Run:
    """Return the run that the flags name; raise BadInput for unknown names and values."""
    from t2t_repro.model import flops  # imports NumPy, which --help can do without

    problem, variant = getattr(namespace, "problem", None), getattr(namespace, "variant", None)
    name = "_".join(filter(None, (problem or "toy_ende", variant)))
    workdir = Workdir(Path(getattr(namespace, "workdir", f"runs/{name}")))
    there = workdir.config().problem if workdir.holds_run and not problem else "toy_ende"
    overrides = _absolute(settings(namespace))
    resolved = config.resolve(problem or there, variant or "base", overrides)
    flops.check_size(resolved.model, resolved.model.embedding_rows or resolved.data.vocabulary_size)
    return Run(problem, variant, workdir, overrides)


def _absolute(overrides: dict[str, Any]) -> dict[str, Any]:
    """Make paths absolute: later commands, in any directory, read them in config.yaml."""

    def absolute(name: str, value: Any) -> Any:
        names = ("_dir", "init_from", "vocabulary")
        if name.endswith(names) and value and not is_address(value):
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
        action="extend" if many else "store",
        metavar="FILE" if many else default,
        help=help_text(field).replace("%", "%%"),
        nargs="+" if many else "?" if field.default is False else None,
        const="true" if field.default is False else None,
    )


def settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the settings given as flags, as values of their types; raise BadInput if wrong."""
    given = {name: value for name, value in vars(namespace).items() if name in config.FIELDS}
    checkpoint = getattr(namespace, "checkpoint", "average")
    if "average_last" in given and checkpoint != "average":
        raise BadInput(
            f"--average_last: --checkpoint={checkpoint} takes one checkpoint; leave one of them out"
        )
    return {
        name: value if isinstance(value, list) else config.parse(name, value)
        for name, value in given.items()
    }


def run(main: Callable[[], None]) -> NoReturn:
    """Run a command's main function and end the process with the exit status above."""
    stdio.take_over()
    try:
        _call(main)
    except BadInput as error:
        _end(2, f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(1)  # not sys.exit, which would wait for TFDS's threads to finish downloading
    except BrokenPipeError as error:  # the reader of stdout or stderr went away, as `head` does
        stdio.discard(sys.stderr if error.filename == "stderr" else sys.stdout)
        _end(1, "stdout was closed")
    except OSError as error:
        if error.filename == "stdout":
            stdio.discard(sys.stdout)
        place = "" if error.filename is None else f"{error.filename}: "
        _end(2, f"error: {place}{error.strerror or error}")
    except MemoryError as error:
        _end(2, _no_memory(str(error) or "an allocation failed"))
    except ImportError as error:
        reasons = [line for line in str(error).splitlines() if "failed to map segment" in line]
        if not reasons:
            raise
        _end(2, _no_memory(reasons[-1]))
    except Exception as error:
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is None or not isinstance(error, tensorflow.errors.ResourceExhaustedError):
            raise
        _end(2, _no_memory(first_line(error)))
    sys.exit(0)


def _call(main: Callable[[], None]) -> None:
    """Call a command's main function, then flush stdout, for which a disk may be too full.

    Ctrl-C while a module in C++ is imported, as TensorFlow's are, becomes an ImportError there.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise BadInput("the current directory has been deleted; cd to another one") from None
    try:
        main()
    except SystemExit:  # after --help
        sys.stdout.flush()
        raise
    except ImportError as error:
        if any(isinstance(each, KeyboardInterrupt) for each in _led_to(error)):
            raise KeyboardInterrupt from error
        raise
    sys.stdout.flush()


def _led_to(error: BaseException | None) -> list[BaseException]:
    """Return an error and those that led to it, the latest first."""
    found: list[BaseException] = []
    while error and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _no_memory(reason: str) -> str:
    return (
        f"error: too little memory ({reason}); end other programs, or raise the limit that "
        "`ulimit -v` shows"
    )


_LONGEST_LINE = 500  # characters: what was found is at its beginning, the way out at its end


def shortened(message: str) -> str:
    """Return a message as one line of bounded length, with control characters made visible."""
    line = _middle_cut(message)
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return _middle_cut("".join(escaped))


def _middle_cut(message: str) -> str:
    if len(message) > 4 * _LONGEST_LINE:  # before the split, which a message of 28 MB would slow
        message = f"{message[:_LONGEST_LINE]} ... {message[-_LONGEST_LINE:]}"
    line = " ".join(message.split())
    half = (_LONGEST_LINE - len(" ... ")) // 2
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]} ... {line[-half:]}"


def _end(status: int, message: str) -> NoReturn:
    try:
        print(shortened(message), file=sys.stderr)
    except OSError:  # nobody reads it; Python, as it ends, would try again and exit with 120
        stdio.discard(sys.stderr)
    sys.exit(status)
