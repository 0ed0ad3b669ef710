"""The JAX step without TensorFlow gives the Trainer's update; its benchmark runs."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT

from t2t_repro.config import Model, Train
from t2t_repro.model import flops
from t2t_repro.training.trainer import Trainer

pytest.importorskip("jax", reason="a dev extra")

pytestmark = pytest.mark.slow
ROWS = 23
PARTS = ("after-1", "after-2")
MODEL = {"num_layers": 1, "d_model": 12, "d_ff": 20, "num_heads": 3, "d_k": 5, "d_v": 7}
# A large epsilon makes an update nearly proportional to the gradient, see test_trainer.
TRAIN = {"epsilon": 1.0, "warmup_steps": 1, "learning_rate_scale": 10.0, "label_smoothing": 0.3}
# Rows have unequal lengths, and the two micro-batches have different numbers of tokens.
BATCHES = [
    ([[5, 6, 7, 1], [8, 9, 1, 0], [4, 1, 0, 0], [5, 5, 1, 0]],
     [[12, 13, 1], [14, 15, 1], [7, 1, 0], [1, 0, 0]]),
    ([[9, 1, 0], [8, 9, 1], [4, 3, 1], [1, 0, 0]],
     [[12, 1], [14, 1], [1, 0], [9, 1]]),
]  # fmt: skip

# The start of the child processes' code: no TensorFlow module can be imported or even found.
WITHOUT_TENSORFLOW = """
import json, os, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0].startswith("tensorflow"):
            raise ModuleNotFoundError(f"{name} is hidden", name=name)

sys.meta_path.insert(0, Nowhere())
"""

STEPS = """
os.environ["KERAS_BACKEND"] = "jax"
import jax
import numpy as np

from t2t_repro.bench import jax as bench_jax
from t2t_repro.config import Model, Train
from t2t_repro.model.transformer import Transformer

given = json.loads(sys.argv[1])
weights = np.load(given["weights"])
batches = [[np.array(side, np.int32) for side in batch] for batch in given["batches"]]
for parts in (1, 2):
    model = Transformer(Model(**given["model"], dropout=0.0), given["rows"])
    for index, variable in enumerate(model.trainable_variables):
        variable.assign(weights[f"arr_{index}"])
    step = bench_jax.Step(model, Train(**given["train"]), parts)
    sums = [step(*batch) for batch in batches]
    step.store()
    after = [np.asarray(variable) for variable in model.trainable_variables]
    np.savez(f"{given['folder']}/after-{parts}.npz", *sums, *after)

model = Transformer(Model(**given["model"], dropout=0.5), given["rows"])
step = bench_jax.Step(model, Train(learning_rate_scale=0.0), 2)
dropped = {float(step(*batches[0])[1]) for _ in range(3)}

model = Transformer(Model(num_layers=1), 32_000)
step = bench_jax.Step(model, Train())
ids = jax.ShapeDtypeStruct((32, 64), "int32")
xla = jax.jit(step.update).lower(step.state, ids, ids).cost_analysis()["flops"]
loaded = [name for name in sys.modules if name.startswith("tensorflow")]
print(json.dumps({"dropped": len(dropped), "xla_flops": xla, "loaded": loaded}))
"""

BENCH = """
import runpy
from t2t_repro.bench import train as bench_train
from t2t_repro.distributed import machine
from t2t_repro.config import Model

tiny = Model(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4)
bench_train.WORKLOADS["base"] = bench_train.Workload(tiny, 64, 3, 5)
del bench_train.WORKLOADS["tiny"]
machine.MATRIX = 256
runpy.run_module("t2t_repro.bench", run_name="__main__")
"""


def python(code, *arguments):
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW + code, *arguments],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def model(build):
    return build(num_layers=1, dropout=0.0)


@pytest.fixture(scope="module")
def before(model):
    """Return the initial weights of both models."""
    return [variable.numpy() for variable in model.trainable_variables]


@pytest.fixture(scope="module")
def on_jax(before, tmp_path_factory):
    """Return what STEPS prints and saves: sums and weights after two updates, for each of PARTS."""
    folder = tmp_path_factory.mktemp("jax")
    np.savez(folder / "weights.npz", *before)
    given = {"folder": str(folder), "weights": str(folder / "weights.npz"), "batches": BATCHES}
    given |= {"model": MODEL, "rows": ROWS, "train": TRAIN}
    result = python(STEPS, json.dumps(given))
    return result | {name: list(np.load(folder / f"{name}.npz").values()) for name in PARTS}


@pytest.fixture(scope="module")
def on_tensorflow(model, before):
    """Return the sums and weights after the same two updates of the Trainer."""
    trainer = Trainer(model, Train(**TRAIN), tf.distribute.get_strategy())
    sums = [trainer.step(*(np.array(s, np.int32) for s in batch)).numpy()[:3] for batch in BATCHES]
    return [*sums, *(variable.numpy() for variable in model.trainable_variables)]


@pytest.mark.parametrize("parts", PARTS)
def test_updates_are_those_of_the_trainer(before, on_tensorflow, on_jax, parts):
    expected = on_tensorflow
    assert len(on_jax[parts]) == len(expected) == len(before) + len(BATCHES)
    assert [sums[2] for sums in on_jax[parts][:2]] == [9, 7]  # target tokens
    for there, here in zip(on_jax[parts], expected, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-4)
    moved = [np.abs(new - old).max() for new, old in zip(expected[2:], before, strict=True)]
    assert np.median(moved) > 0.01  # a hundred times the tolerance above


def test_dropout_acts_and_is_another_one_at_each_step(on_jax):
    assert on_jax["dropped"] == 3


def test_count_is_most_of_what_xla_counts(on_jax):
    """XLA's count includes more than matrix products: softmax, loss, norms, dropout, Adam."""
    ours = flops.training_flops(Model(num_layers=1), 32_000, flops.positions([(32, 64, 64)])).total
    assert 0.95 < ours / on_jax["xla_flops"] < 1


def test_bench_prints_a_row_for_each_precision_without_tensorflow(on_jax):
    assert on_jax["loaded"] == []
    rows = python(BENCH, "train", "--backend=jax", "--repeats=1", "--json")["rows"]
    sizes = [(row["size"], row["precision"]) for row in rows]
    assert sizes == [("base", "float32"), ("base", "bfloat16")]
    for row in rows:
        assert row["backend"] == "jax"
        assert row["parts"] == 1
        assert "peak_share" not in row  # a CPU is not in the table
        assert row["target_tokens_per_s"] == pytest.approx(15e3 / row["step_ms"])
        assert row["matmul_share"] == pytest.approx(row["gflops"] / row["matmul_gflops"])
