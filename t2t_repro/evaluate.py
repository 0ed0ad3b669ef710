"""Score a trained run, or any system's output, by BLEU, chrF and perplexity, or F1 for parsing."""

import argparse
import json
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

from pipelines.errors import BadInput
from pipelines.sources import text_files
from t2t_repro import cli, config, tensorflow_log
from t2t_repro.paper import table2, table4
from t2t_repro.workdir import Workdir

if typing.TYPE_CHECKING:
    from t2t_repro.problems import Scores

# Settings for text that has moved since training, and for scoring files.
_DATA = (
    "data_dir",
    "dev_source_files",
    "dev_target_files",
    "test_source_files",
    "test_target_files",
    "tokenized",
    "target_language",
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    flags = cli.Parser(prog="python -m t2t_repro.evaluate", description=__doc__)
    flags.add_argument("--workdir", type=Path, help="a trained run")
    flags.add_argument("--split", choices=("test", "dev"), default="test", help="split to score")
    flags.add_argument(
        "--hypotheses", type=Path, help="instead of a run: a system's output, one sentence a line"
    )
    flags.add_argument("--references", type=Path, help="the human translations of these lines")
    flags.add_argument("--problem", help="problem whose metric scores the two files")
    tables = flags.add_mutually_exclusive_group()
    for table, content in (("table2", "translation"), ("table4", "parsing")):
        tables.add_argument(
            f"--{table}",
            action="store_const",
            dest="table",
            const=table,
            help=f"{content}: print the paper's Table {table[-1]} with the run's row below",
        )
    cli.add_strict(flags)
    flags.add_argument("--json", action="store_true", help="print one JSON object")
    cli.add_settings(flags, ["decode"], *_DATA)
    return flags


def main() -> None:
    """Parse the flags, then score."""
    given = parser().parse_args()
    files = given.problem, given.hypotheses, given.references
    if given.table and (given.json or given.split != "test" or given.workdir is None):
        raise BadInput(f"--{given.table}: wanted --workdir, --split=test and no --json")
    if given.workdir is not None and not any(files):
        scores = _score_run(given)
    elif given.workdir is None and all(files) and not given.strict:
        scores = _score_files(given)
    else:
        raise BadInput("wanted --workdir, or --problem with --hypotheses and --references")
    try:
        _print(given, scores)
        sys.stdout.flush()
    finally:  # the scores are printed if the disk is full, and written if stdout was closed
        if given.workdir is not None:
            Workdir(given.workdir).add_result(given.split, scores)


def _print(given: argparse.Namespace, scores: "Scores") -> None:
    if given.json:
        print(json.dumps(scores))
    elif given.table:
        for line in _table(given, scores):
            print(line)
    else:
        width = max(len(name) for name in scores)
        for name, value in scores.items():
            shown = f"{value:.2f}" if isinstance(value, float) else value
            print(f"{name:{width}}  {shown}")


def _table(given: argparse.Namespace, scores: "Scores") -> Iterator[str]:
    workdir = Workdir(given.workdir)
    if given.table == "table4":
        return table4.listing(workdir.config(), scores)
    return table2.listing(workdir.config(), scores, workdir.results().get("cost"))


def _score_run(given: argparse.Namespace) -> "Scores":
    settings, workdir = cli.settings(given), Workdir(given.workdir)
    workdir.config(settings)  # finds a mistake before the slow import
    tensorflow_log.quiet()
    from t2t_repro import experiment, reports

    run = experiment.restore(workdir, settings, given.strict)
    return reports.evaluate(run, given.split)


def _score_files(given: argparse.Namespace) -> "Scores":
    settings = config.resolve(given.problem, overrides=cli.settings(given))
    from t2t_repro.problems import PROBLEMS

    hypotheses = list(text_files.lines(given.hypotheses))
    references = list(text_files.lines(given.references))
    return PROBLEMS[given.problem].score(hypotheses, references, settings)


if __name__ == "__main__":
    cli.run(main)
