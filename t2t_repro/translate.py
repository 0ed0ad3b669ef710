"""Translate stdin to stdout, one output line for every input line, from a run or an export.

A run of a parsing problem, or its export, writes one tree per sentence. Its input has words and
punctuation marks separated by spaces, as in the treebank.
"""

import argparse
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pipelines.errors import BadInput
from pipelines.parsing import trees
from t2t_repro import cli, tensorflow_log
from t2t_repro.workdir import Workdir

if typing.TYPE_CHECKING:
    from t2t_repro.decoding.lines import Line, Lines


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    flags = cli.Parser(prog="python -m t2t_repro.translate", description=__doc__)
    flags.add_argument("--workdir", type=Path, help="a trained run")
    flags.add_argument("--saved_model", type=Path, help="instead: an export, or one version of it")
    flags.add_argument(
        "--litert", type=Path, help="instead: an export for LiteRT, or one version of it"
    )
    flags.add_argument(
        "--verify",
        action="store_true",
        help="first compare all files of the export with the SHA-256 in its settings.json",
    )
    cli.add_number(
        flags,
        "--nbest",
        None,
        "N output lines for every input line instead of one: the N best translations, best first, "
        "blank where the search found fewer; at most --beam_size",
        1,
        1_000,
        metavar="N",
    )
    flags.add_argument(
        "--score",
        action="store_true",
        help="write score<TAB>translation: log-probability over length penalty",
    )
    flags.add_argument(
        "--pretty", action="store_true", help="parsing: indent each tree, over several lines"
    )
    cli.add_strict(flags)
    cli.add_settings(flags, ["decode"])
    return flags


def main() -> None:
    """Parse the flags, then translate."""
    given = parser().parse_args()
    settings = cli.settings(given)
    models = given.workdir, given.saved_model, given.litert
    if sum(model is not None for model in models) != 1:
        raise BadInput("wanted one of --workdir, --saved_model and --litert")
    if settings and not given.workdir:
        raise BadInput(f"--{next(iter(settings))}: an export has its decode settings in it")
    if given.verify and given.workdir:
        raise BadInput("--verify: an export's files have digests; wanted --saved_model or --litert")
    if given.strict and not given.workdir:
        raise BadInput("--strict: an export has no checkpoints; leave it out")
    if given.workdir:
        run = Workdir(given.workdir).config(settings)  # before the slow import
        _check_nbest(given.nbest, run.decode.beam_size, "give a greater --beam_size too")
        _check_pretty(given.pretty, run.problem)
    translate = _load(given, settings)
    # A person at the keyboard wants each translation at once.
    at_once = sys.stdin.isatty()
    rows = translate(_lines(), 1 if at_once else 4096)
    for number, row in enumerate(_with_progress(rows, at_once), start=1):
        if row[0].cut:
            _note(f"line {number}: too long, its end was cut off")
        for line in row:
            score = f"{line.score:.4f}\t" if given.score else ""
            text = _indented(line.translation) if given.pretty else line.translation
            print(f"{score}{text}", flush=at_once)


def _indented(tree: str) -> str:
    try:
        return trees.indented(trees.parse(tree))
    except BadInput as error:  # from an export; `_check_pretty` covers runs
        raise BadInput(f"--pretty: wanted the export of a run that parses; {error}") from None


def _check_pretty(pretty: bool, problem: str) -> None:
    from t2t_repro.problems import PROBLEMS

    if pretty and PROBLEMS[problem].postprocess is None:
        raise BadInput(f"--pretty: {problem} does not parse, and only trees are indented")


def _check_nbest(nbest: int | None, beam_size: int, way_out: str) -> None:
    if nbest and nbest > beam_size:
        raise BadInput(f"--nbest={nbest}: the search keeps {beam_size} hypotheses; {way_out}")


def _load(given: argparse.Namespace, settings: dict[str, Any]) -> "Lines":
    """Load the run or the export, as a function from lines to their n best translations."""
    from t2t_repro.serving import exports

    n_best = given.nbest or 1
    if given.verify:
        exports.verify(given.saved_model or given.litert)
    if given.litert:  # needs no TensorFlow
        return exports.litert(given.litert, n_best)
    tensorflow_log.quiet()
    if given.saved_model:
        return exports.saved_model(given.saved_model, n_best)
    from t2t_repro import experiment

    run = experiment.restore(Workdir(given.workdir), settings, given.strict)
    return run.translator(postprocess=True).lines(n_best)


def _lines() -> Iterator[str]:
    """Yield lines of stdin, split at line feeds only; invalid UTF-8 becomes U+FFFD, with a note."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield line.decode()
        except UnicodeDecodeError:
            _note(f"line {number}: not UTF-8, read with replacement characters")
            yield line.decode(errors="replace")


def _with_progress(rows: "Iterator[list[Line]]", at_once: bool) -> "Iterator[list[Line]]":
    """Yield the rows, with a progress bar on stderr unless translations appear on the terminal."""
    # Redrawn ten times a second on a terminal, twice a minute in a log file; short texts show none.
    interval = 0.1 if sys.stderr.isatty() else 30
    hidden = at_once or sys.stdout.isatty()
    bar = tqdm(rows, desc="translate", unit="line", mininterval=interval, delay=2, disable=hidden)
    yield from bar


def _note(message: str) -> None:
    """Print a line on stderr, above the progress bar if there is one."""
    if sys.stderr.isatty():
        tqdm.write(message, file=sys.stderr)
    else:
        print(message, file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
