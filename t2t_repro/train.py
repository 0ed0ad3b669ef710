"""Train a model: python -m t2t_repro.train --problem=multi30k_ende. Run it again to go on."""

import argparse
import sys

from t2t_repro import command, config


def parser() -> argparse.ArgumentParser:
    """The flags; every hyperparameter is one."""
    flags = command.Parser(prog="python -m t2t_repro.train", description=__doc__)
    command.add_run(flags)
    flags.add_argument("--list_variants", action="store_true", help="print the rows and end")
    return flags


def main() -> None:
    """Flags, then one call."""
    given = parser().parse_args()
    if given.list_variants:
        return _list_variants()
    run = command.run_of(given)  # before the slow import
    command.quiet_tensorflow()
    from t2t_repro import experiment
    from t2t_repro.loop import Stopped
    from t2t_repro.trainer import default_strategy

    resolved = experiment.begin(run.problem, run.variant, run.overrides, run.workdir)
    built = experiment.build(resolved, run.workdir, default_strategy())
    try:
        experiment.train(built)
    except Stopped:
        print("stopped; the state is saved, the same command goes on from it", file=sys.stderr)
        sys.exit(1)
    print(f"trained; now: python -m t2t_repro.evaluate --workdir={run.workdir}", file=sys.stderr)


def _list_variants() -> None:
    for name, row in config.variants().items():
        print(f"{name:5} {', '.join(f'{key} {value}' for key, value in row.items()) or '-'}")


if __name__ == "__main__":
    command.run(main)
