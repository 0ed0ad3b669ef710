"""Print the log-probability that a run gives to each of the given translations, one line a pair.

The pairs come from two files, or as source<TAB>target from stdin. The logarithm is natural. No
length penalty is applied, except in the `score` that --json adds.
"""

import argparse
import json
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

from pipelines.errors import BadInput
from pipelines.sources import text_files
from t2t_repro import cli, tensorflow_import
from t2t_repro.workdir import Workdir

if typing.TYPE_CHECKING:
    from t2t_repro.decoding.scorer import ScoredPair


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    flags = cli.Parser(prog="python -m t2t_repro.score", description=__doc__)
    flags.add_argument("--workdir", type=Path, required=True, help="a trained run")
    flags.add_argument("--sources", type=Path, help="source sentences, one a line (plain or .gz)")
    flags.add_argument("--targets", type=Path, help="their translations, line by line")
    flags.add_argument(
        "--per_token",
        action="store_true",
        help="add two columns: the target's pieces, and the log-probability of each",
    )
    flags.add_argument("--json", action="store_true", help="print one JSON object for each pair")
    cli.add_strict(flags)
    cli.add_checkpoint(flags)
    lengths = "max_source_length", "max_extra_length"
    cli.add_settings(flags, [], "alpha", "length_reward", "length_ratio", "average_last", *lengths)
    return flags


def main() -> None:
    """Parse the flags, then score."""
    given = parser().parse_args()
    settings = cli.settings(given)
    if (given.sources is None) != (given.targets is None):
        raise BadInput("wanted both --sources and --targets, or neither and pairs on stdin")
    workdir = Workdir(given.workdir)
    _check_text(workdir.config(settings).problem)  # before the slow import
    tensorflow_import.quiet()
    from t2t_repro import experiment

    run = experiment.restore(workdir, settings, given.strict, given.checkpoint)
    pieces = run.vocabulary.pieces
    pairs = _pairs(given.sources, given.targets)
    for number, pair in enumerate(run.scorer().score(pairs), start=1):
        _note_lengths(number, pair)
        columns = [pieces[i] for i in pair.ids] if given.per_token else None
        print(_json(pair, columns) if given.json else _text(pair, columns))


def _check_text(problem: str) -> None:
    from t2t_repro.problems import PROBLEMS

    if PROBLEMS[problem].postprocess is not None:
        raise BadInput(
            f"--workdir: {problem} writes trees, and only translations can be scored; wanted a run "
            "that translates"
        )


def _pairs(sources: Path | None, targets: Path | None) -> Iterator[tuple[str, str]]:
    if sources and targets:
        pairs = text_files.aligned(sources, targets)
    else:
        pairs = text_files.tab_separated("stdin", sys.stdin.buffer)
    return ((pair["source"], pair["target"]) for pair in pairs)


def _note_lengths(number: int, pair: "ScoredPair") -> None:
    if pair.cut:
        print(f"line {number}: the source is too long, its end was cut off", file=sys.stderr)
    if pair.too_long:
        print(f"line {number}: the target is longer than any output", file=sys.stderr)


def _text(pair: "ScoredPair", pieces: list[str] | None) -> str:
    if pieces is None:
        return f"{pair.log_prob:.4f}"
    log_probs = " ".join(f"{value:.4f}" for value in pair.log_probs)
    return f"{pair.log_prob:.4f}\t{' '.join(pieces)}\t{log_probs}"


def _json(pair: "ScoredPair", pieces: list[str] | None) -> str:
    values: dict[str, typing.Any] = {
        "log_prob": None if pair.too_long else pair.log_prob,  # JSON has no infinity
        "score": None if pair.too_long else pair.score,
        "length": len(pair.ids),
    }
    if pieces is not None:
        values |= {"pieces": pieces, "log_probs": pair.log_probs}
    return json.dumps(values, ensure_ascii=False)


if __name__ == "__main__":
    cli.run(main)
