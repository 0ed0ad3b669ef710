"""Train a model: python -m t2t_repro.train --problem=multi30k_ende. Run it again to resume.

The values shown are those of the paper's base model; configs/<problem>.yaml replaces some of them.
"""

import argparse
import sys

from t2t_repro import cli, tensorflow_import


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags; every hyperparameter is a flag."""
    flags = cli.Parser(prog="python -m t2t_repro.train", description=__doc__)
    cli.add_run(flags)
    cli.add_strict(flags)
    flags.add_argument(
        "--list_variants",
        action="store_true",
        help="print the rows of Table 3, with --problem also its own variants, and exit",
    )
    flags.add_argument(
        "--profile_steps",
        type=_profile_steps,
        metavar="FIRST,LAST",
        help="steps to record for TensorBoard's Profile tab, such as 100,110",
    )
    return flags


def _profile_steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(",")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"wanted FIRST,LAST such as 100,110, got {text}")
    return int(first), int(last)


def main() -> None:
    """Parse the flags, then train."""
    given = parser().parse_args()
    run = cli.run_of(given)  # before the slow import
    if given.list_variants:
        return _list_variants(run)
    from t2t_repro.training import early_epoch  # imports NumPy, which --help can do without

    with early_epoch.begun(*run) as early:
        tensorflow_import.quiet()
        from t2t_repro import launch

        launch.train(*run, strict=given.strict, profile_steps=given.profile_steps, early=early)


def _list_variants(run: cli.Run) -> None:
    from t2t_repro.paper import table3

    problem = run.problem or "wmt14_ende"  # the paper's problem
    print(table3.heading(problem), file=sys.stderr)
    for line in table3.listing(problem, run.overrides):
        print(line)


if __name__ == "__main__":
    cli.run(main)
