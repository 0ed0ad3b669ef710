"""Measure the speed of training, decoding and input on this machine.

Each figure is the median of several runs after a warm-up, in one process. The machine's own large
matrix product is measured beside the training step, so that the share of it that a step reaches can
be compared between machines. FLOPs are counted as 6 x matrix parameters x target tokens (forward 2,
backward 4), for equally long source and target; attention's products are left out (about 2 % of
base at length 64).
"""

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

from pipelines.errors import BadInput
from t2t_repro import command, config
from t2t_repro.machine import matmul_gflops

Row = dict[str, Any]

# The workloads that other toolkits are measured with: rows x tokens a side, no padding.
TINY = config.Model(num_layers=4, d_model=128, d_ff=256, num_heads=4, d_k=32, d_v=32)
TRAIN = {"base": (config.Model(), 32_000, (32, 64)), "tiny": (TINY, 10_000, (128, 24))}
PRECISIONS = ("float32", "mixed_bfloat16")


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = command.Parser(prog="python -m t2t_repro.bench", description=__doc__)
    flags.add_argument("what", choices=sorted(BENCHES), help="what to measure")
    flags.add_argument("--repeats", type=int, default=5, help="runs of which the median is told")
    flags.add_argument("--problem", default="toy_ende", help="input: whose text")
    flags.add_argument(
        "--pairs", type=int, default=0, help="input: draw so many from the text; 0: as it is"
    )
    flags.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_settings(flags, ["data"])
    return flags


def main() -> None:
    """Flags, then one call."""
    given = parser().parse_args()
    if given.repeats < 1:
        raise BadInput(f"--repeats: wanted at least 1, got {given.repeats}")
    if given.pairs < 0:
        raise BadInput(f"--pairs: wanted at least 0, got {given.pairs}")
    if given.what not in _OF_TEXT and (settings := command.settings(given)):
        raise BadInput(f"--{next(iter(settings))}: only for {', '.join(_OF_TEXT)}")
    command.quiet_tensorflow()
    rows = []
    for row in BENCHES[given.what](given):
        rows.append(row)
        if not given.json:
            print(", ".join(f"{name} {_shown(value)}" for name, value in row.items()), flush=True)
    if given.json:
        print(json.dumps({"rows": rows}))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {_shown(part)}" for name, part in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def bench_train(given: argparse.Namespace) -> Iterator[Row]:
    """Forward, backward and Adam, dropout 0.1 and label smoothing 0.1, through the Trainer."""
    for size, (model, rows, shape) in TRAIN.items():
        for precision in PRECISIONS:
            seconds = _train_step(model, rows, shape, precision, given.repeats)
            tokens = shape[0] * shape[1]
            flops = 6 * _matrix_parameters(model, rows) * tokens
            yield {
                "size": size,
                "precision": precision.removeprefix("mixed_"),
                "target_tokens_per_s": tokens / seconds,
                "gflops": flops / seconds / 1e9,
                "matmul_gflops": matmul_gflops(precision.removeprefix("mixed_"), given.repeats),
            }


def bench_decode(given: argparse.Namespace) -> Iterator[Row]:
    """Beam search at base size; see `bench_decode`."""
    from t2t_repro import bench_decode

    return bench_decode.rows(given.repeats)


def bench_input(given: argparse.Namespace) -> Iterator[Row]:
    """Preparation and epochs of the problem that is given; see `bench_input`."""
    from t2t_repro import bench_input

    resolved = config.resolve(given.problem, overrides=command.settings(given))
    return bench_input.rows(resolved, given.pairs, given.repeats)


def bench_vocabulary(given: argparse.Namespace) -> Iterator[Row]:
    """Learnt on source and target files, tested on the dev files; see `bench_vocabulary`."""
    from t2t_repro import bench_vocabulary

    data = config.resolve("parallel_text", overrides=command.settings(given)).data
    test_files = [*data.dev_source_files, *data.dev_target_files]
    if not (data.source_files and test_files):
        raise BadInput("wanted --source_files to learn from and --dev_source_files to test on")
    return bench_vocabulary.rows(
        data.source_files, data.target_files, test_files, data.vocabulary_size
    )


BENCHES: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "train": bench_train,
    "decode": bench_decode,
    "input": bench_input,
    "vocabulary": bench_vocabulary,
}
_OF_TEXT = ("input", "vocabulary")  # take the flags that name a text


def _train_step(
    model_config: config.Model, rows: int, shape: tuple[int, int], precision: str, repeats: int
) -> float:
    import tensorflow as tf

    from t2t_repro.machine import median_seconds
    from t2t_repro.trainer import Trainer, default_strategy
    from t2t_repro.transformer import Transformer

    strategy = default_strategy()
    with strategy.scope():
        model = Transformer(model_config, rows, precision)
    trainer = Trainer(model, config.Train(), strategy)
    source, target = tf.constant(_ids(rows, shape)), tf.constant(_ids(rows, shape))
    return median_seconds(lambda: trainer.step(source, target).numpy(), repeats)


def _matrix_parameters(model: config.Model, rows: int) -> int:
    attention = model.d_model * model.num_heads * (2 * model.d_k + 2 * model.d_v)
    feed_forward = 2 * model.d_model * model.d_ff
    return model.num_layers * (3 * attention + 2 * feed_forward) + rows * model.d_model


def _ids(rows: int, shape: tuple[int, int]) -> Any:
    """Random pieces, none of them special: int32."""
    import numpy as np

    return np.random.default_rng(0).integers(3, rows, shape, dtype=np.int32)


if __name__ == "__main__":
    command.run(main)
