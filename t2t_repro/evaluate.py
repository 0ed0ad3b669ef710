"""Score a trained run, or any system's output, by BLEU, chrF and perplexity, or F1 for parsing."""

import argparse
import json
import sys
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.errors import BadInput
from pipelines.sources import text_files
from t2t_repro import cli, config, tensorflow_import
from t2t_repro.paper import table2, table4
from t2t_repro.workdir import Workdir

if typing.TYPE_CHECKING:
    from t2t_repro.problems import Scores
    from t2t_repro.reports import MoreScores

# Settings for text that has moved since training, for its language, and for scoring files.
_DATA = (
    "data_dir",
    "dev_source_files",
    "dev_target_files",
    "test_source_files",
    "test_target_files",
    "tokenized",
    "target_language",
)

# What can be scored: {flag: (flags that it needs, flags that do not go with it)}.
_FORMS = {
    "workdir": ((), ("problem", "hypotheses", "references", "compare", "sources")),
    "compare": (("references",), ("hypotheses", "sources", "comet", "strict", "checkpoint")),
    "hypotheses": (("problem", "references"), ("strict", "checkpoint")),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    flags = cli.Parser(prog="python -m t2t_repro.evaluate", description=__doc__)
    flags.add_argument(
        "--workdir", type=Path, nargs="+", help="a trained run; several: print a table of them"
    )
    flags.add_argument("--split", choices=("test", "dev"), default="test", help="split to score")
    flags.add_argument(
        "--hypotheses", type=Path, help="instead of a run: a system's output, one sentence a line"
    )
    flags.add_argument(
        "--compare",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="instead of a run: outputs of systems, each compared with the first by paired "
        "bootstrap resampling",
    )
    flags.add_argument(
        "--references", type=Path, help="human translations, one for each line of the outputs"
    )
    flags.add_argument("--sources", type=Path, help="the text that was translated, for --comet")
    flags.add_argument("--problem", help="problem whose metric scores the files")
    _add_metrics(flags)
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
    cli.add_checkpoint(flags)
    flags.add_argument("--json", action="store_true", help="print one JSON object")
    cli.add_settings(flags, ["decode"], *_DATA)
    return flags


def _add_metrics(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("--ter", action="store_true", help="also compute TER, which is slow")
    flags.add_argument(
        "--comet", type=Path, metavar="MODEL", help="also compute COMET with this model.ckpt"
    )
    flags.add_argument(
        "--comet_python",
        metavar="PYTHON",
        help="the Python in which unbabel-comet is installed (default: this one)",
    )


def main() -> None:
    """Parse the flags, then score."""
    given = parser().parse_args()
    _check(given)
    if given.compare:
        _compare(given)
    elif given.workdir is None:
        failures: list[BadInput] = []
        _print(given, _score_files(given, failures))
        if failures:
            raise failures[0]
    else:
        _score_runs(given)


def _check(given: argparse.Namespace) -> None:
    """Raise BadInput if the flags do not go together."""
    runs = given.workdir or []
    if given.table and (given.json or given.split != "test" or len(runs) != 1):
        raise BadInput(f"--{given.table}: wanted --workdir, --split=test and no --json")
    _check_form(given)
    if not runs:
        _check_no_translation(given)
    if given.comet and not runs and not given.sources:
        raise BadInput("--comet: wanted --sources too, the text that was translated")
    if given.comet_python and not given.comet:
        raise BadInput("--comet_python: wanted --comet with it, the model")


def _check_form(given: argparse.Namespace) -> None:
    """Raise BadInput unless there are all flags of a form, and none of another."""
    there = {name for name, value in vars(given).items() if value}
    if given.checkpoint == "average":
        there.remove("checkpoint")
    form = next((flag for flag in _FORMS if flag in there), None)
    needed, alien = _FORMS[form] if form else ((), ())
    if form is None or not there.issuperset(needed):
        raise BadInput(
            "wanted --workdir, or --problem with --hypotheses and --references, or --compare with "
            "--references"
        )
    for flag in alien:
        if flag in there:
            raise BadInput(f"--{flag}: does not go with --{form}; leave one of them out")


def _check_no_translation(given: argparse.Namespace) -> None:
    """Raise BadInput for flags that say what to translate and how: files are scored as they are."""
    flags = [name for name in cli.settings(given) if name not in ("tokenized", "target_language")]
    if given.split != "test":
        flags.append("split")
    if flags:
        raise BadInput(f"--{flags[0]}: only runs have it; wanted --workdir, or leave it out")


def _score_runs(given: argparse.Namespace) -> None:
    """Score runs, print the scores and write them to each run's results.json.

    Raises:
        BadInput: The flags do not suit a run; or, once all is printed and written, COMET failed.
    """
    for path in given.workdir:  # finds a mistake before the slow work
        _check_run(given, Workdir(path))
    scored: dict[Path, Scores] = {}
    failures: list[BadInput] = []
    try:
        for path in given.workdir:
            scored[path] = _score_run(given, path, failures)
    finally:  # the scores of some runs are not lost if another cannot be scored
        _report_runs(given, scored)
    if failures:
        raise failures[0]


def _report_runs(given: argparse.Namespace, scored: "dict[Path, Scores]") -> None:
    """Print the scores of runs, and write them to each run's results.json."""
    if not scored:
        return
    try:
        if len(given.workdir) == 1:
            _print(given, *scored.values())
        else:
            _print_runs(given, scored)
        sys.stdout.flush()
    finally:  # the scores are printed if the disk is full, and written if stdout was closed
        for path, scores in scored.items():
            Workdir(path).add_result(given.split, scores)


def _check_run(given: argparse.Namespace, workdir: Workdir) -> None:
    """Raise BadInput if flags or the table that is wanted do not suit a run."""
    from t2t_repro.problems import PROBLEMS

    name = workdir.config(settings := cli.settings(given)).problem
    PROBLEMS[name].check_flags(name, settings)
    if given.table == "table4":
        table4.check(name, bool(PROBLEMS[name].postprocess))
    elif given.table:
        table2.check(name, not PROBLEMS[name].postprocess, workdir.results().get("cost"))


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


def _print_runs(given: argparse.Namespace, scored: "dict[Path, Scores]") -> None:
    """Print a table with a row for each run and a column for each score."""
    if given.json:
        print(json.dumps({str(path): scores for path, scores in scored.items()}))
        return
    columns = {
        name: max(len(name), 8)
        for scores in scored.values()
        for name, value in scores.items()
        if isinstance(value, float)
    }
    width = max(len(str(path)) for path in scored)
    print(" " * width + "".join(f"  {name:>{size}}" for name, size in columns.items()))
    for path, scores in scored.items():
        cells = (
            f"  {f'{scores[name]:.2f}' if name in scores else '-':>{size}}"
            for name, size in columns.items()
        )
        print(f"{path!s:{width}}" + "".join(cells))


def _table(given: argparse.Namespace, scores: "Scores") -> Iterator[str]:
    workdir = Workdir(given.workdir[0])
    run = workdir.config(cli.settings(given))
    if given.table == "table4":
        return table4.listing(run, scores)
    return table2.listing(run, scores, workdir.results().get("cost"))


def _score_run(given: argparse.Namespace, path: Path, failures: list[BadInput]) -> "Scores":
    settings, workdir = cli.settings(given), Workdir(path)
    more = _more_scores(given, workdir.config(settings), failures)
    tensorflow_import.quiet()
    from t2t_repro import experiment, reports

    run = experiment.restore(workdir, settings, given.strict, given.checkpoint)
    return reports.evaluate(run, given.split, more)


def _score_files(given: argparse.Namespace, failures: list[BadInput]) -> "Scores":
    settings = config.resolve(given.problem, overrides=cli.settings(given))
    more = _more_scores(given, settings, failures)
    from t2t_repro.problems import PROBLEMS

    hypotheses, references = (_lines(path) for path in (given.hypotheses, given.references))
    sources = _lines(given.sources) if given.sources else None
    if sources is not None and len(sources) != len(references):
        raise BadInput(
            f"--sources: {len(sources):,} lines, but {len(references):,} references; wanted the "
            "text that was translated, in the same order"
        )
    scores = PROBLEMS[given.problem].score(hypotheses, references, settings, sources)
    return scores | more(hypotheses, references, sources)


def _more_scores(
    given: argparse.Namespace, settings: config.Config, failures: list[BadInput]
) -> "MoreScores":
    """Return a function to the scores that flags ask for, beside those of the problem.

    If COMET fails, the error goes to `failures`, and the other scores are not lost.

    Raises:
        BadInput: The problem is not translation, or COMET cannot be used.
    """
    from t2t_repro.problems import PROBLEMS
    from t2t_repro.scoring import bleu
    from t2t_repro.scoring.comet import Comet

    if (given.ter or given.comet) and PROBLEMS[settings.problem].postprocess:
        flag = "--ter" if given.ter else "--comet"
        raise BadInput(f"{flag}: a score of translations, which {settings.problem} does not make")
    comet = Comet(given.comet, given.comet_python) if given.comet else None

    def more(
        hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str] | None
    ) -> "Scores":
        scores: Scores = {}
        if given.ter:
            scores |= bleu.ter_scores(hypotheses, references, settings.data.target_language)
        if comet is not None and sources is not None:
            try:
                scores |= comet.scores(hypotheses, references, sources)
            except BadInput as error:
                failures.append(error)
        return scores

    return more


def _compare(given: argparse.Namespace) -> None:
    """Print how the outputs of systems compare with the first one's."""
    from t2t_repro.problems import PROBLEMS
    from t2t_repro.scoring import comparison

    problem = given.problem or "parallel_text"
    data = config.resolve(problem, overrides=cli.settings(given)).data
    if PROBLEMS[problem].postprocess:
        raise BadInput(f"--compare: compares translations, which {problem} does not make")
    compared = comparison.comparison(
        [(str(path), _lines(path)) for path in given.compare],
        _lines(given.references),
        language=data.target_language,
        tokenized=data.tokenized,
        ter=given.ter,
    )
    print(json.dumps(compared) if given.json else "\n".join(comparison.lines(compared)))


def _lines(path: Path) -> list[str]:
    return list(text_files.lines(path))


if __name__ == "__main__":
    cli.run(main)
