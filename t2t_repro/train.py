"""Train a model: python -m t2t_repro.train --problem=multi30k_ende. Run it again to go on."""

import argparse
import sys
from pathlib import Path
from typing import Any

from t2t_repro import command, config


def parser() -> argparse.ArgumentParser:
    """The flags; every hyperparameter is one."""
    flags = command.Parser(prog="python -m t2t_repro.train", description=__doc__)
    names = ", ".join(config.problem_names())
    flags.add_argument("--problem", default=argparse.SUPPRESS, help=f"{names} (default: toy_ende)")
    flags.add_argument(
        "--variant",
        default=argparse.SUPPRESS,
        help="row of Table 3, on top of the problem's own model (default: base)",
    )
    flags.add_argument("--workdir", default=argparse.SUPPRESS, help="(default: runs/<problem>)")
    flags.add_argument("--list_variants", action="store_true", help="print the rows and end")
    command.add_settings(flags, config.GROUPS)
    return flags


def main() -> None:
    """Flags, then one call."""
    given = parser().parse_args()
    if given.list_variants:
        return _list_variants()
    problem, variant = getattr(given, "problem", None), getattr(given, "variant", None)
    name = "_".join(filter(None, (problem or "toy_ende", variant)))
    workdir = Path(getattr(given, "workdir", f"runs/{name}"))
    overrides = _absolute(command.settings(given))
    config.resolve(problem or "toy_ende", variant or "base", overrides)  # before the slow import
    command.quiet_tensorflow()
    from t2t_repro import experiment
    from t2t_repro.loop import Stopped
    from t2t_repro.trainer import default_strategy

    resolved = experiment.begin(problem, variant, overrides, workdir)
    run = experiment.build(resolved, workdir, default_strategy())
    try:
        experiment.train(run)
    except Stopped:
        print("stopped; the state is saved, the same command goes on from it", file=sys.stderr)
        sys.exit(1)
    print(f"trained; now: python -m t2t_repro.evaluate --workdir={workdir}", file=sys.stderr)


def _absolute(overrides: dict[str, Any]) -> dict[str, Any]:
    """Paths as they will be found from any directory: later commands read them in config.yaml."""

    def absolute(name: str, value: Any) -> Any:
        if name == "data_dir" and value:
            return str(Path(value).absolute())
        return [str(Path(file).absolute()) for file in value] if name.endswith("_files") else value

    return {name: absolute(name, value) for name, value in overrides.items()}


def _list_variants() -> None:
    for name, row in config.variants().items():
        print(f"{name:5} {', '.join(f'{key} {value}' for key, value in row.items()) or '-'}")


if __name__ == "__main__":
    command.run(main)
