"""The cost of training, by count (`model.flops`) and by the paper's own formula (6.1, Table 2).

The paper estimates it "by multiplying the training time, the number of GPUs used, and an estimate
of the sustained single-precision floating-point capacity of each GPU". That is what the GPUs could
have computed in that time: for the paper's runs 3.4 (base) and 2.3 (big) times the count.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from t2t_repro import config
from t2t_repro.config import Model
from t2t_repro.model.flops import Positions, Shape, positions, training_flops

PAPER = {"base": 3.3e18, "big": 2.3e19}  # Table 2, by the formula
# 25,000 tokens a side (5.1) as equally long sentences. The length is ours, about WMT's mean: at 50
# the count is 0.7 % more.
PAPER_BATCH: Shape = (1000, 25, 25)


class Sustained(NamedTuple):
    """What a GPU is taken to do."""

    tflops: float
    source: str


class _Gpu(NamedTuple):
    float32: float  # TFLOPS; in TF32, as TensorFlow and JAX multiply, where the GPU has it
    bfloat16: float
    source: str


_FOOTNOTE = "sustained in single precision, by the paper's footnote 5"
# The paper's figure for P100 is 90 % of its data sheet's 10.6, M40's 6.0 is 86 % of 7.0.
_PEAK = "the data sheet's dense peak, assumed to be sustained: an upper bound"
_FP16 = f"{_PEAK}; with 16 bits it is float16's, bfloat16 is not in the hardware"
# By a pattern for words of the name, unless others in it tell of a model with less.
_GPUS = {
    "K80": _Gpu(2.8, 2.8, _FOOTNOTE),
    "K40m?": _Gpu(3.7, 3.7, _FOOTNOTE),
    "M40": _Gpu(6.0, 6.0, _FOOTNOTE),
    "P100": _Gpu(9.5, 9.5, _FOOTNOTE),
    "V100": _Gpu(15.7, 125, _FP16),
    "T4": _Gpu(8.1, 65, _FP16),
    "A100": _Gpu(156, 312, _PEAK),
    "L4": _Gpu(60, 121, _PEAK),
    "RTX 4090": _Gpu(82.6, 165, _PEAK),
    "H100": _Gpu(494, 989, _PEAK),  # SXM
    "H200": _Gpu(494, 989, _PEAK),
    "B200": _Gpu(1125, 2250, _PEAK),
}
_LESS = re.compile(r"MIG|NVL|Laptop|4090 D|H100 PCIe|V100-PCIE")


def paper_counts() -> dict[str, float]:
    """What the count gives for the paper's runs: base 9.8e17, big 9.9e18."""
    counts = {}
    for name in PAPER:
        run = config.resolve("wmt14_ende", name)
        assert run.model.embedding_rows
        step = training_flops(run.model, run.model.embedding_rows, positions([PAPER_BATCH]))
        counts[name] = float(run.train.train_steps * step.total)
    return counts


def by_formula(seconds: float, devices: int, tflops: float) -> float:
    """Footnote 5's estimate: 12 hours on 8 P100 are 3.3e18."""
    return seconds * devices * tflops * 1e12


def sustained(device: str, precision: str) -> Sustained | None:
    """What a device of that name does, None if it is not in the table: nothing is guessed.

    Args:
        device: As the driver names it, such as "NVIDIA H100 80GB HBM3".
        precision: "float32", or "mixed_bfloat16" or "bfloat16".
    """
    for name, gpu in _GPUS.items():
        if re.search(rf"\b{name}\b", device) and not _LESS.search(device):
            return Sustained(
                gpu.bfloat16 if precision.endswith("bfloat16") else gpu.float32, gpu.source
            )
    return None


def trained_positions(plan: Callable[[int], Sequence[Any]], steps: int) -> Positions:
    """Positions of a run's first `steps` batches, however often it was stopped and went on.

    With `bpe_dropout` and `auxiliary_tasks` batches are others, but as large; these are of the text
    without.

    Args:
        plan: `Batching.plan`, from an epoch to its batches (pairs, source length, target length).
            All epochs have batches of the same shapes, in another order.
        steps: Updates made.
    """

    def of(batches: Sequence[Any]) -> Positions:
        return positions((len(pairs), s, t) for pairs, s, t in batches)

    first = plan(0)
    epochs, rest = divmod(steps, len(first))
    whole, part = of(first), of(plan(epochs)[:rest])
    return Positions(*(epochs * n + m for n, m in zip(whole, part, strict=True)))


def run_cost(
    model: Model,
    rows: int,
    precision: str,
    positions: Positions,
    seconds: float,
    devices: Sequence[str],
) -> dict[str, Any]:
    """What a run has cost, for results.json.

    Args:
        model: Its model.
        rows: Of the shared matrix.
        precision: "float32" or "mixed_bfloat16".
        positions: What it was trained on.
        seconds: Of training.
        devices: The names of the GPUs that it was trained on, all alike, or "CPU".

    Returns:
        `flops` by count, `formula_flops` by the paper's formula, and what they were made of. What
        is not known is None.
    """
    counted = training_flops(model, rows, positions)
    capacity = sustained(devices[0], precision)
    tflops, source = capacity or (None, None)
    formula = None if tflops is None else by_formula(seconds, len(devices), tflops)
    return {
        "flops": counted.total,
        "matrix_flops": counted.matrices,
        "attention_flops": counted.attention,
        "source_positions": positions.source,
        "target_positions": positions.target,
        "seconds": seconds,
        "device": devices[0],
        "devices": len(devices),
        "sustained_tflops": tflops,
        "sustained_source": source,
        "formula_flops": formula,
        "paper_flops": paper_counts(),
        "paper_formula_flops": PAPER,
    }


def lines(cost: dict[str, Any]) -> str:
    """What `run_cost` gave, in two lines."""
    share = cost["attention_flops"] / max(1, cost["flops"])
    text = (
        f"cost: {cost['flops']:.2e} FLOPs by count, {share:.1%} of them attention's; by the same "
        f"count the paper's {_listed(cost['paper_flops'])}"
    )
    rate = cost["flops"] / max(1e-9, cost["seconds"]) / 1e12
    text += (
        f"\ncost: {cost['seconds']:,.0f} s on {cost['devices']} x {cost['device']}, {rate:.3g} "
        "TFLOPS by count"
    )
    if cost["formula_flops"] is None:
        return f"{text}; what it sustains is not known, so nothing by the paper's formula"
    return (
        f"{text}; x {cost['sustained_tflops']:g} TFLOPS ({cost['sustained_source']}) = "
        f"{cost['formula_flops']:.2e} by the paper's formula; its {_listed(PAPER)}"
    )


def _listed(runs: dict[str, float]) -> str:
    return ", ".join(f"{name} {flops:.1e}" for name, flops in runs.items())
