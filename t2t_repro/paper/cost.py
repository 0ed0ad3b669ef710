"""The cost of training, by count (`model.flops`) and by the paper's own formula (6.1, Table 2).

The paper estimates the cost "by multiplying the training time, the number of GPUs used, and an
estimate of the sustained single-precision floating-point capacity of each GPU". This is the
number of FLOPs that the GPUs could have computed in that time. For the paper's runs it is 3.4 times
(base) and 2.3 times (big) the count.
"""

from collections.abc import Callable, Sequence
from typing import Any

from t2t_repro import config
from t2t_repro.config import Model
from t2t_repro.distributed.data_sheets import sustained
from t2t_repro.model.flops import Positions, Shape, positions, training_flops

PAPER = {"base": 3.3e18, "big": 2.3e19}  # Table 2, by the formula
# 25,000 tokens per side (5.1) in sentences of one length. The paper does not state a length; 25 is
# about WMT's mean. With 50 the count would be 0.7 % higher.
PAPER_BATCH: Shape = (1000, 25, 25)


def paper_counts() -> dict[str, float]:
    """Return the FLOPs of the paper's runs by count: base 9.8e17, big 9.9e18."""
    counts = {}
    for name in PAPER:
        run = config.resolve("wmt14_ende", name)
        assert run.model.embedding_rows
        step = training_flops(run.model, run.model.embedding_rows, positions([PAPER_BATCH]))
        counts[name] = float(run.train.train_steps * step.total)
    return counts


def by_formula(seconds: float, devices: int, tflops: float) -> float:
    """Return the FLOPs by the paper's formula (footnote 5): 12 hours on 8 P100 are 3.3e18."""
    return seconds * devices * tflops * 1e12


def trained_positions(plan: Callable[[int], Sequence[Any]], steps: int) -> Positions:
    """Return the positions in a run's first `steps` batches, however often it was resumed.

    `bpe_dropout`, `misspelt_share` and `auxiliary_tasks` change the batches but not their size; the
    positions are those of the unchanged text.

    Args:
        plan: `Batching.plan`: epoch -> its batches (pairs, source length, target length). All
            epochs have batches of the same shapes, in another order.
        steps: Number of updates made.
    """

    def count(batches: Sequence[Any]) -> Positions:
        return positions((len(pairs), s, t) for pairs, s, t in batches)

    first = plan(0)
    epochs, rest = divmod(steps, len(first))
    whole, part = count(first), count(plan(epochs)[:rest])
    return Positions(*(epochs * n + m for n, m in zip(whole, part, strict=True)))


def run_cost(
    model: Model,
    rows: int,
    precision: str,
    positions: Positions,
    seconds: float,
    devices: Sequence[str],
) -> dict[str, Any]:
    """Return the cost of a training run, for results.json.

    Args:
        model: The run's model.
        rows: Rows of the shared embedding matrix.
        precision: "float32" or "mixed_bfloat16".
        positions: The positions that it was trained on.
        seconds: Training time.
        devices: The names of the GPUs that it was trained on, all of one model, or "CPU".

    Returns:
        `flops` by count, `formula_flops` by the paper's formula, and the numbers that both were
        computed from. Unknown values are None.
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
    """Return the result of `run_cost` as two lines of text."""
    share = cost["attention_flops"] / max(1, cost["flops"])
    text = (
        f"cost: {cost['flops']:.2e} FLOPs by count, {share:.1%} of them in attention's own "
        f"products; the same count gives for the paper's runs {_format_runs(cost['paper_flops'])}"
    )
    rate = cost["flops"] / max(1e-9, cost["seconds"]) / 1e12
    text += (
        f"\ncost: {cost['seconds']:,.0f} s on {cost['devices']} x {cost['device']}, {rate:.3g} "
        "TFLOPS by count"
    )
    if cost["formula_flops"] is None:
        return f"{text}; its sustained speed is unknown, so there is no cost by the paper's formula"
    return (
        f"{text}; x {cost['sustained_tflops']:g} TFLOPS ({cost['sustained_source']}) = "
        f"{cost['formula_flops']:.2e} by the paper's formula, which gives for its own runs "
        f"{_format_runs(PAPER)}"
    )


def _format_runs(runs: dict[str, float]) -> str:
    return ", ".join(f"{name} {flops:.1e}" for name, flops in runs.items())
