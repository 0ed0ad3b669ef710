"""Measure the speed of training, decoding, input and the server; reproduce Tables 1 and 3.

Speeds are medians over --repeats, after a warm-up; `vocabulary` and `table3` run once. `train` also
measures the speed of a large matrix product on the same machine. The share of that speed that a
training step reaches can be compared between machines.
"""

import argparse
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import BadInput
from t2t_repro import cli, config, tensorflow_import

Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    flags = cli.Parser(prog="python -m t2t_repro.bench", description=__doc__)
    flags.add_argument("what", choices=sorted(BENCHES), help="what to measure")
    cli.add_number(flags, "--repeats", 5, "runs to take the median of", 1, 1_000)
    flags.add_argument(
        "--backend",
        choices=("tensorflow", "jax"),
        default="tensorflow",
        help="train: Keras's backend",
    )
    flags.add_argument(
        "--account", action="store_true", help="train: also print where the time of a step goes"
    )
    flags.add_argument(
        "--format",
        choices=("saved_model", "litert"),
        default="saved_model",
        help="decode: the engine; litert is compared with CTranslate2, both in int8",
    )
    flags.add_argument("--problem", default="toy_ende", help="input, table3: the problem to use")
    pairs = "input: number of pairs to draw from the text; 0: use the text as it is"
    cli.add_number(flags, "--pairs", 0, pairs, 0, 1_000_000_000)
    table = flags.add_argument_group("table3")
    cli.add_number(table, "--minutes", 5.0, "training time of base", 0.001, 1_000_000)
    updates = "updates of base, instead of --minutes; 0: unused"
    cli.add_number(table, "--updates", 0, updates, 0, 1_000_000)
    divisor = "divides the paper's d_model, d_ff, d_k and d_v"
    cli.add_number(table, "--divisor", 4, divisor, 1, 16)
    table.add_argument("--rows", default="all", help="rows of Table 3 to train, such as base,C1")
    table.add_argument("--workdir", type=Path, help="work directory; none: runs/table3_<problem>")
    serving = flags.add_argument_group("serve")
    serving.add_argument("--export_dir", type=Path, help="an export; none: base, random weights")
    serving.add_argument("--text", type=Path, help="file of sentences for --export_dir")
    soak = "requests sent while some clients misbehave"
    cli.add_number(serving, "--requests", 2000, soak, 10, 10_000_000)
    flags.add_argument("--json", action="store_true", help="print one JSON object")
    cli.add_settings(flags, ["data"])
    return flags


def main() -> None:
    """Parse the flags, run one benchmark and print its rows."""
    given = parser().parse_args()
    _check_settings_are_read(given)
    _check_flags_are_read(given)
    _check_train(given)
    _check_serve(given)
    _check_decode(given)
    if given.backend == "tensorflow" and given.what not in _WITHOUT_TENSORFLOW:
        tensorflow_import.quiet()
    rows = []
    for row in BENCHES[given.what](given):
        rows.append(row)
        if not given.json:
            print(", ".join(f"{name} {_format(value)}" for name, value in row.items()), flush=True)
    if given.json:
        print(json.dumps({"rows": [_for_json(row) for row in rows]}, allow_nan=False))


def _for_json(row: Row) -> Row:
    """Return a row with None for what could not be measured: JSON has no NaN."""
    return {name: None if value != value else value for name, value in row.items()}


def _check_settings_are_read(given: argparse.Namespace) -> None:
    """Raise BadInput for a setting of the text that the benchmark does not read."""
    for name in cli.settings(given):
        if given.what not in _READ_TEXT:
            raise BadInput(f"--{name}: only for {', '.join(_READ_TEXT)}")
        reads = name in _READ_BY_VOCABULARY
        if given.what == "input":
            reads = name not in _NOT_READ_BY_INPUT
        if given.what != "table3" and not reads:
            raise BadInput(f"--{name}: {given.what} does not read it")


def _check_flags_are_read(given: argparse.Namespace) -> None:
    """Raise BadInput for a flag that the benchmark does not read."""
    defaults = parser().parse_args([given.what])
    for name, readers in _READERS.items():
        if given.what not in readers and getattr(given, name) != getattr(defaults, name):
            raise BadInput(f"--{name}: only for {', '.join(readers)}")


def _check_train(given: argparse.Namespace) -> None:
    """Raise BadInput for flags of `train` that contradict each other, or for a missing package."""
    if given.account and given.backend == "jax":
        raise BadInput("--account: only for --backend=tensorflow")
    if given.backend == "jax" and importlib.util.find_spec("jax") is None:
        raise BadInput("--backend=jax: JAX is not installed; pip install jax, on a GPU jax[cuda13]")


def _check_serve(given: argparse.Namespace) -> None:
    """Raise BadInput for flags of `serve` that contradict each other, or for a missing package."""
    if given.what != "serve":
        return
    if (given.export_dir is None) != (given.text is None):
        raise BadInput("--export_dir, --text: wanted both, or none")
    extra = '"t2t_repro[serve]"'
    _check_installed("serve", {"locust": "locust", "fastapi": extra, "uvicorn": extra})


def _check_decode(given: argparse.Namespace) -> None:
    """Raise BadInput if a package is missing that `decode --format=litert` compares with."""
    if given.what == "decode" and given.format == "litert":
        wanted = {
            "ai_edge_litert": '"t2t_repro[litert]"',
            "ctranslate2": '"t2t_repro[ctranslate2]"',
        }
        _check_installed("decode", wanted)


def _check_installed(what: str, wanted: Mapping[str, str]) -> None:
    """Raise BadInput if a package is missing, with what to install."""
    for package, installed in wanted.items():
        if importlib.util.find_spec(package) is None:
            raise BadInput(f"{what}: {package} is not installed; pip install {installed}")


def _format(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {_format(part)}" for name, part in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def training_steps(given: argparse.Namespace) -> Iterator[Row]:
    """Measure training steps of base and tiny; see `bench.train`, or `bench.jax` for JAX."""
    if given.backend == "jax":
        os.environ["KERAS_BACKEND"] = "jax"  # Keras reads it when it is imported
        from t2t_repro.bench import jax

        return jax.rows(given.repeats)
    from t2t_repro.bench import train

    return train.rows(given.repeats, given.account)


def beam_search(given: argparse.Namespace) -> Iterator[Row]:
    """Measure beam search at base size; see `bench.decode`, or `bench.litert` for LiteRT."""
    if given.format == "litert":
        from t2t_repro.bench import litert

        return litert.rows(given.repeats)
    from t2t_repro.bench import decode

    return decode.rows(given.repeats)


def input_pipeline(given: argparse.Namespace) -> Iterator[Row]:
    """Measure the encoding and the epochs of a problem's text; see `bench.input`."""
    from t2t_repro.bench import input

    resolved = config.resolve(given.problem, overrides=cli.settings(given))
    return input.rows(resolved, given.pairs, given.repeats)


def vocabularies(given: argparse.Namespace) -> Iterator[Row]:
    """Compare vocabularies learned from the training files on the dev files.

    See `bench.vocabulary`.
    """
    from t2t_repro.bench import vocabulary

    data = config.resolve("parallel_text", overrides=cli.settings(given)).data
    test_files = [*data.dev_source_files, *data.dev_target_files]
    if not (data.source_files and test_files):
        raise BadInput("wanted --source_files to learn from and --dev_source_files to test on")
    return vocabulary.rows(data.source_files, data.target_files, test_files, data.vocabulary_size)


def layer_types(given: argparse.Namespace) -> Iterator[Row]:
    """Measure Table 1's layers over n and d; see `bench.table1`."""
    from t2t_repro.bench import table1

    return table1.rows(given.repeats)


def model_variations(given: argparse.Namespace) -> Iterator[Row]:
    """Train the rows of Table 3 at reduced width; see `bench.table3`."""
    from t2t_repro.bench import table3
    from t2t_repro.problems import PROBLEMS

    if PROBLEMS[given.problem].postprocess:
        raise BadInput(f"--problem={given.problem}: wanted a problem that is scored by BLEU")
    if given.divisor not in table3.DIVISORS:
        raise BadInput(f"--divisor: wanted one of {table3.DIVISORS}, got {given.divisor}")
    names = list(config.variants()) if given.rows == "all" else given.rows.split(",")
    workdir = given.workdir or Path(f"runs/table3_{given.problem}")
    settings = {"prepared_dir": str((workdir / "corpus").absolute())} | cli.settings(given)
    plan = table3.Plan(given.problem, given.divisor, given.updates, settings)
    for name in names:  # raises BadInput before any row is trained
        plan._replace(updates=plan.updates or 1).config(name)
    return table3.rows(names, workdir, table3.load_or_make_plan(workdir, plan, given.minutes))


def server(given: argparse.Namespace) -> Iterator[Row]:
    """Measure the server of `python -m t2t_repro.serve`; see `bench.serve`."""
    from t2t_repro.bench import serve

    return serve.rows(given.export_dir, given.text, given.requests, given.repeats)


BENCHES: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "train": training_steps,
    "decode": beam_search,
    "input": input_pipeline,
    "vocabulary": vocabularies,
    "table1": layer_types,
    "table3": model_variations,
    "serve": server,
}
_READERS = {  # of the flags that not all benchmarks read
    **dict.fromkeys(("backend", "account"), ("train",)),
    "format": ("decode",),
    "pairs": ("input",),
    "problem": ("input", "table3"),
    "repeats": ("train", "decode", "input", "table1", "serve"),
    **dict.fromkeys(("minutes", "updates", "divisor", "rows", "workdir"), ("table3",)),
    **dict.fromkeys(("export_dir", "text", "requests"), ("serve",)),
}
_READ_TEXT = ("input", "vocabulary", "table3")  # benchmarks that accept the flags of a text
_READ_BY_VOCABULARY = (
    "source_files",
    "target_files",
    "dev_source_files",
    "dev_target_files",
    "vocabulary_size",
)
# It learns its own vocabulary, encodes all of the text, and translates nothing.
_NOT_READ_BY_INPUT = (
    *("vocabulary", "prepared_dir", "stream", "target_language"),
    *("max_ratio", "drop_duplicates", "drop_copies"),
)
_WITHOUT_TENSORFLOW = ("serve", "table3", "vocabulary")  # in this process


if __name__ == "__main__":
    cli.run(main)
