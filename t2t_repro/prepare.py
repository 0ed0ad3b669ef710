"""Prepare a problem's text without training: all that `train` does before its first step.

The values shown are the paper's base model; configs/<problem>.yaml replaces some of them.
"""

import argparse
import sys

from t2t_repro import cli, tensorflow_log


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags; `train` later finds the settings in the work directory."""
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
    """Parse the flags, then prepare."""
    given = parser().parse_args()
    run = cli.run_of(given)
    tensorflow_log.quiet()
    from t2t_repro import experiment

    options = given.beam_pipeline_options
    with run.workdir.locked() as workdir:
        config = workdir.config_to_train(run.problem, run.variant, run.overrides)
        experiment.prepare(config, workdir, None if options is None else options.split(","))
    done = f"prepared; now: python -m t2t_repro.train --workdir={run.workdir.path}"
    print(done, file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
