"""Measure the speed of training, decoding and input on this machine, and Tables 1 and 3 anew.

Each figure is the median of several runs after a warm-up, in one process. The machine's own large
matrix product is measured beside the training step, so that the share of it that a step reaches can
be compared between machines.
"""

import argparse
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipelines.errors import BadInput
from t2t_repro import cli, config

Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = cli.Parser(prog="python -m t2t_repro.bench", description=__doc__)
    flags.add_argument("what", choices=sorted(BENCHES), help="what to measure")
    flags.add_argument("--repeats", type=int, default=5, help="runs of which the median is told")
    flags.add_argument(
        "--backend", choices=("tensorflow", "jax"), default="tensorflow", help="train: of Keras"
    )
    flags.add_argument(
        "--account", action="store_true", help="train: also what the step spends where"
    )
    flags.add_argument("--problem", default="toy_ende", help="input, table3: whose text")
    flags.add_argument(
        "--pairs", type=int, default=0, help="input: draw so many from the text; 0: as it is"
    )
    table = flags.add_argument_group("table3")
    table.add_argument("--minutes", type=float, default=5.0, help="that base trains")
    table.add_argument("--updates", type=int, default=0, help="that base makes, instead of minutes")
    table.add_argument(
        "--divisor", type=int, default=4, help="of the paper's d_model, d_ff, d_k, d_v"
    )
    table.add_argument("--rows", default="all", help="of Table 3, such as base,C1")
    table.add_argument("--workdir", type=Path, help="default: runs/table3_<problem>")
    flags.add_argument("--json", action="store_true", help="print one JSON object")
    cli.add_settings(flags, ["data"])
    return flags


def main() -> None:
    """Flags, then one call."""
    given = parser().parse_args()
    if given.repeats < 1:
        raise BadInput(f"--repeats: wanted at least 1, got {given.repeats}")
    if given.pairs < 0:
        raise BadInput(f"--pairs: wanted at least 0, got {given.pairs}")
    if given.what not in _OF_TEXT and (settings := cli.settings(given)):
        raise BadInput(f"--{next(iter(settings))}: only for {', '.join(_OF_TEXT)}")
    _check_train(given)
    _check_table3(given)
    if given.backend == "tensorflow" and given.what != "table3":  # whose runs are other processes
        cli.quiet_tensorflow()
    rows = []
    for row in BENCHES[given.what](given):
        rows.append(row)
        if not given.json:
            print(", ".join(f"{name} {_shown(value)}" for name, value in row.items()), flush=True)
    if given.json:
        print(json.dumps({"rows": rows}))


def _check_train(given: argparse.Namespace) -> None:
    """Raises BadInput for flags of `train` that do not go with the rest."""
    if given.what != "train" and (given.backend, given.account) != ("tensorflow", False):
        raise BadInput("--backend, --account: only for train")
    if given.account and given.backend == "jax":
        raise BadInput("--account: only for --backend=tensorflow")
    if given.backend == "jax" and importlib.util.find_spec("jax") is None:
        raise BadInput("--backend=jax: JAX is not there; pip install jax, with CUDA jax[cuda13]")


def _check_table3(given: argparse.Namespace) -> None:
    """Raises BadInput for flags of `table3` that do not go with the rest, or cannot be."""
    names = ("minutes", "updates", "divisor", "rows", "workdir")
    defaults = parser().parse_args([given.what])
    if given.what != "table3" and any(
        getattr(given, name) != getattr(defaults, name) for name in names
    ):
        raise BadInput(f"{', '.join(f'--{name}' for name in names)}: only for table3")
    if given.minutes <= 0 or given.updates < 0:
        raise BadInput("--minutes, --updates: wanted more than 0")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {_shown(part)}" for name, part in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def bench_train(given: argparse.Namespace) -> Iterator[Row]:
    """Training steps of base and tiny; see `bench_train` and, for --backend=jax, `bench_jax`."""
    if given.backend == "jax":
        os.environ["KERAS_BACKEND"] = "jax"  # read at Keras's import
        from t2t_repro.bench import jax as bench_jax

        return bench_jax.rows(given.repeats)
    from t2t_repro.bench import train as bench_train

    return bench_train.rows(given.repeats, given.account)


def bench_decode(given: argparse.Namespace) -> Iterator[Row]:
    """Beam search at base size; see `bench_decode`."""
    from t2t_repro.bench import decode as bench_decode

    return bench_decode.rows(given.repeats)


def bench_input(given: argparse.Namespace) -> Iterator[Row]:
    """Preparation and epochs of the problem that is given; see `bench_input`."""
    from t2t_repro.bench import input as bench_input

    resolved = config.resolve(given.problem, overrides=cli.settings(given))
    return bench_input.rows(resolved, given.pairs, given.repeats)


def bench_vocabulary(given: argparse.Namespace) -> Iterator[Row]:
    """Learnt on source and target files, tested on the dev files; see `bench_vocabulary`."""
    from t2t_repro.bench import vocabulary as bench_vocabulary

    data = config.resolve("parallel_text", overrides=cli.settings(given)).data
    test_files = [*data.dev_source_files, *data.dev_target_files]
    if not (data.source_files and test_files):
        raise BadInput("wanted --source_files to learn from and --dev_source_files to test on")
    return bench_vocabulary.rows(
        data.source_files, data.target_files, test_files, data.vocabulary_size
    )


def bench_table1(given: argparse.Namespace) -> Iterator[Row]:
    """Table 1's layers over n and d; see `bench_table1`."""
    from t2t_repro.bench import table1 as bench_table1

    return bench_table1.rows(given.repeats)


def bench_table3(given: argparse.Namespace) -> Iterator[Row]:
    """Table 3's rows, trained small; see `bench_table3`."""
    from t2t_repro.bench import table3 as bench_table3

    if given.divisor not in bench_table3.DIVISORS:
        raise BadInput(f"--divisor: wanted one of {bench_table3.DIVISORS}, got {given.divisor}")
    names = list(config.variants()) if given.rows == "all" else given.rows.split(",")
    workdir = given.workdir or Path(f"runs/table3_{given.problem}")
    settings = {"prepared_dir": str((workdir / "corpus").absolute())} | cli.settings(given)
    plan = bench_table3.Plan(given.problem, given.divisor, given.updates, settings)
    for name in names:
        plan._replace(updates=plan.updates or 1).config(name)  # mistakes are told before the work
    return bench_table3.rows(names, workdir, bench_table3.planned(workdir, plan, given.minutes))


BENCHES: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "train": bench_train,
    "decode": bench_decode,
    "input": bench_input,
    "vocabulary": bench_vocabulary,
    "table1": bench_table1,
    "table3": bench_table3,
}
_OF_TEXT = ("input", "vocabulary", "table3")  # take the flags that name a text


if __name__ == "__main__":
    cli.run(main)
