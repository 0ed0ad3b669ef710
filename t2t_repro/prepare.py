"""Prepare a problem's text without training: all that `train` does before its first step.

The values shown are those of the paper's base model; configs/<problem>.yaml replaces some of them.
"""

import argparse
import json
import sys

from pipelines.errors import BadInput
from t2t_repro import cli, tensorflow_import


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags; `train` later finds the settings in the work directory."""
    flags = cli.Parser(prog="python -m t2t_repro.prepare", description=__doc__)
    cli.add_run(flags)
    flags.add_argument(
        "--beam_pipeline_options",
        metavar="NAME=VALUE,...",
        help="prepare on Apache Beam, as with runner=DirectRunner,direct_num_workers=2,"
        "direct_running_mode=multi_processing; with more than one machine --prepared_dir has to be "
        "where all of them reach it",
    )
    flags.add_argument(
        "--report",
        action="store_true",
        help="then print what the training text is like: lengths, ratios, repeats, copies",
    )
    flags.add_argument("--json", action="store_true", help="print the report as one JSON object")
    return flags


def main() -> None:
    """Parse the flags, then prepare."""
    given = parser().parse_args()
    if given.json and not given.report:
        raise BadInput("--json: wanted --report with it, whose format it decides")
    run = cli.run_of(given)
    tensorflow_import.quiet()
    from t2t_repro import experiment

    options = given.beam_pipeline_options
    with run.workdir.locked() as workdir:
        config = experiment.config_to_train(workdir, run.problem, run.variant, run.overrides)
        corpus = experiment.prepare(
            config, workdir, None if options is None else options.split(",")
        )
    if given.report:
        report = corpus.report()
        print(json.dumps(report.values()) if given.json else "\n".join(report.lines()))
    done = f"prepared; now: python -m t2t_repro.train --workdir={run.workdir.path}"
    print(done, file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
