"""Cost by count and by the paper's formula, against independent counts and printed numbers."""

import json

import numpy as np
import pytest

from t2t_repro import config
from t2t_repro.config import Model
from t2t_repro.distributed.data_sheets import sustained
from t2t_repro.model import flops
from t2t_repro.paper import cost, table3

ROWS = 23
# A different number for every size, so that no two can be swapped.
MODEL = Model(num_layers=2, d_model=12, d_ff=20, num_heads=3, d_k=5, d_v=7, embedding_rows=ROWS)
SHAPE = (4, 6, 9)


def test_positions_of_a_run_are_those_of_its_batches_one_after_the_other():
    shapes = [(2, 3, 5), (1, 7, 4), (3, 2, 2)]

    def plan(epoch):
        order = np.random.default_rng(epoch).permutation(3)
        return [(np.zeros(shapes[i][0]), *shapes[i][1:]) for i in order]

    seen = [(len(pairs), s, t) for epoch in range(3) for pairs, s, t in plan(epoch)]
    for steps in range(9):
        assert cost.trained_positions(plan, steps) == flops.positions(seen[:steps])


def test_parameters_of_table_3():
    """All rows but big (213, unresolved) agree with the paper for a matrix of 40,960 rows."""
    for name, printed in table3.printed().items():
        count = table3.parameters(config.resolve("wmt14_ende", name))
        millions = 65 if printed.millions is None else printed.millions
        assert round(count / 1e6) == (218 if name == "big" else millions), name


# By the paper's formula


@pytest.mark.parametrize(("hours", "name"), [(12, "base"), (3.5 * 24, "big")])
def test_the_papers_own_runs_on_eight_p100(hours, name):
    device = sustained("Tesla P100-SXM2-16GB", "float32")
    spent = cost.by_formula(hours * 3600, 8, device.tflops)
    assert f"{spent:.1e}" == f"{cost.PAPER[name]:.1e}"


def test_the_papers_formula_is_two_to_four_times_the_count():
    """100,000 and 300,000 steps of 25,000 + 25,000 tokens at 6 FLOPs a weight: 65.0M and 218M."""
    counts = cost.paper_counts()
    assert counts["base"] == pytest.approx(6 * 65.0e6 * 25_000 * 100_000, rel=0.01)
    assert counts["big"] == pytest.approx(6 * 218.1e6 * 25_000 * 300_000, rel=0.01)
    assert cost.PAPER["base"] / counts["base"] == pytest.approx(3.4, abs=0.05)
    assert cost.PAPER["big"] / counts["big"] == pytest.approx(2.3, abs=0.05)


# The cost of a run


def spent(seconds=100.0, devices=("NVIDIA H200",) * 2):
    where = flops.positions([SHAPE] * 5)
    return cost.run_cost(MODEL, ROWS, "mixed_bfloat16", where, seconds, devices)


def test_cost_of_a_run():
    result = json.loads(json.dumps(spent()))
    assert result["flops"] == 5 * flops.training_flops(MODEL, ROWS, flops.positions([SHAPE])).total
    assert result["flops"] == result["matrix_flops"] + result["attention_flops"]
    assert (result["source_positions"], result["target_positions"]) == (5 * 24, 5 * 36)
    assert result["formula_flops"] == pytest.approx(100 * 2 * 989e12)
    assert result["paper_formula_flops"] == {"base": 3.3e18, "big": 2.3e19}
    counted, formula = cost.lines(result).splitlines()
    assert f"{result['flops']:.2e} FLOPs by count" in counted
    assert "base 9.8e+17, big 9.9e+18" in counted
    assert "100 s on 2 x NVIDIA H200" in formula
    assert "x 989 TFLOPS (the data sheet's dense peak, assumed" in formula
    assert "= 1.98e+17 by the paper's formula" in formula
    assert "base 3.3e+18, big 2.3e+19" in formula


def test_nothing_is_guessed_for_a_cpu():
    result = spent(devices=["CPU"])
    assert result["sustained_tflops"] is result["sustained_source"] is None
    assert result["formula_flops"] is None
    assert "on 1 x CPU" in cost.lines(result)
    assert "989" not in cost.lines(result)
