"""Prepare a problem's text without training: all that `train` does before its first step."""

import argparse
import sys

from t2t_repro import cli


def parser() -> argparse.ArgumentParser:
    """The flags; every hyperparameter is one, and `train` then takes them from the run."""
    flags = cli.Parser(prog="python -m t2t_repro.prepare", description=__doc__)
    cli.add_run(flags)
    flags.add_argument(
        "--beam_pipeline_options",
        metavar="NAME=VALUE,...",
        help="prepare on Apache Beam, as with runner=DirectRunner,direct_num_workers=2; with more "
        "than one machine --prepared_dir has to be where all of them reach it",
    )
    return flags


def main() -> None:
    """Flags, then one call."""
    given = parser().parse_args()
    run = cli.run_of(given)
    cli.quiet_tensorflow()
    from t2t_repro import experiment

    resolved = experiment.begin(run.problem, run.variant, run.overrides, run.workdir)
    options = given.beam_pipeline_options
    experiment.prepare(resolved, run.workdir, None if options is None else options.split(","))
    print(f"prepared; now: python -m t2t_repro.train --workdir={run.workdir}", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
