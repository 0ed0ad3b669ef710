"""Two halves of a batch at the same time make the update of the whole batch."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT

from t2t_repro.config import Model, Train
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.halves import Halves
from t2t_repro.training.trainer import Trainer

SIZES = {"num_layers": 1, "d_model": 12, "d_ff": 20, "num_heads": 3, "d_k": 5, "d_v": 7}
# Three pairs, the longest ones last.
SOURCE = np.int32([[5, 1, 0, 0], [6, 7, 1, 0], [8, 9, 10, 1]])
TARGET = np.int32([[11, 12, 1], [13, 1, 0], [14, 15, 1]])


def trainer_of(in_halves, dropout=0.0, **settings):
    keras.utils.set_random_seed(1)
    model = Transformer(Model(**SIZES, dropout=dropout), rows=23)
    # A large epsilon makes Adam's first update nearly proportional to the gradient.
    settings = {"epsilon": 1.0, "warmup_steps": 1, "learning_rate_scale": 10.0} | settings
    trainer = Trainer(model, Train(**settings), tf.distribute.get_strategy())
    if in_halves:
        trainer._gradients = Halves(trainer._gradients, model.random_states)
    return trainer


def weights(trainer):
    return [weight.numpy() for weight in trainer.model.trainable_variables]


def states(trainer):
    return [state.numpy() for state in trainer.model.random_states]


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}], ids=str)
def test_updates_are_those_of_the_whole_batch(whole, settings):
    """Of three rows, of one and of two, so that a half is padded, empty or neither."""
    before, expected, ended = whole
    halves = trainer_of(True, **settings)
    for rows, sums in expected.items():
        np.testing.assert_allclose(halves.step(SOURCE[:rows], TARGET[:rows]), sums, rtol=1e-4)
    for start, one, two in zip(before, ended, weights(halves), strict=True):
        np.testing.assert_allclose(two, one, atol=1e-5)
        assert np.abs(one - start).max() > 1e-4 or start.ndim == 1  # key biases have no gradient


@pytest.fixture(scope="module")
def whole():
    """Return weights, the numbers of a step on so many rows each, and the weights after them."""
    trainer = trainer_of(False)
    before = weights(trainer)
    sums = {rows: trainer.step(SOURCE[:rows], TARGET[:rows]).numpy() for rows in (3, 1, 2)}
    return before, sums, weights(trainer)


def test_the_first_half_drops_what_a_whole_batch_would_and_the_second_something_else():
    """The second of the three pairs, which is the second half, has no target tokens at first."""
    whole, halves = (trainer_of(in_halves, 0.5, learning_rate_scale=0.0) for in_halves in (0, 1))
    target = TARGET.copy()
    target[1] = 0
    expected = [whole.step(SOURCE[::2], TARGET[::2])[1].numpy() for _ in range(2)]
    seen = [halves.step(SOURCE, target)[1].numpy() for _ in range(2)]
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    assert seen[0] != pytest.approx(seen[1], rel=1e-3)  # each step drops something else
    for state, other in zip(states(halves), states(whole), strict=True):
        np.testing.assert_array_equal(state, other)
    # Equal sentences in both halves would have equal losses with the same random numbers.
    alone = whole.step(SOURCE[2:], TARGET[2:])[1].numpy()
    both = halves.step(*(np.tile(side[2:], (2, 1)) for side in (SOURCE, TARGET)))[1].numpy()
    assert both != pytest.approx(2 * alone, rel=1e-3)


PREPARED = """
import json, sys
from pathlib import Path
import tensorflow as tf
from t2t_repro import launch
from t2t_repro.config import Model, Train
from t2t_repro.distributed import strategy
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.trainer import Trainer
from t2t_repro.workdir import Workdir

def options(nodes):
    attributes = [node.attr["config_proto"].s for node in nodes if "PartitionedCall" in node.op]
    protos = [tf.compat.v1.ConfigProto.FromString(each).graph_options for each in attributes]
    return [each.rewrite_options for each in protos]

def rewritten(nodes):
    return sorted({not each.disable_meta_optimizer for each in options(nodes)})

workdir, xla, cores, *precisions = sys.argv[1:]
strategy.cores = lambda: int(cores)
launch._prepare_devices("toy_ende", None, Workdir(Path(workdir)), {"xla": xla == "xla"})
one = strategy.default_strategy()
all_found = []
for precision in precisions:
    with one.scope():
        model = Transformer(Model(1, 12, 20, 3, 5, 7), rows=23, dtype=precision)
    trainer = Trainer(model, Train(precision=precision), one)
    graph = trainer.step.get_concrete_function().graph.as_graph_def()
    inner = [node for function in graph.library.function for node in function.node_def]
    nodes = [*graph.node, *inner]
    layers = [each for each in options(nodes) if not each.disable_meta_optimizer]
    all_found.append({
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "gradients": type(trainer._gradients).__name__,
        "step": not tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"],
        "called by the step": rewritten(graph.node),
        "called by them": rewritten(inner),
        "fused": sorted({each.remapping != each.OFF for each in layers}),
        "lookups in a variable": sum(node.op == "ResourceGather" for node in nodes),
    })
print(json.dumps(all_found))
"""
BOTH = {"fused": [True], "lookups in a variable": 0}
HALVES = BOTH | {
    "threads": 1,
    "gradients": "Halves",
    "step": False,
    "called by the step": [False],  # the halves
    "called by them": [True],  # layers, loss, and their gradients
}
# The step calls the layers and the loss.
WHOLE = BOTH | {
    "gradients": "method",
    "step": False,
    "called by the step": [True],
    "called by them": [],
}


@pytest.mark.parametrize(
    ("cores", "given", "xla", "expected"),
    [
        (2, None, "", {"float32": HALVES, "mixed_bfloat16": HALVES | {"fused": [False]}}),
        (4, None, "", {"float32": WHOLE | {"threads": 0}}),
        pytest.param(2, "3", "", {"float32": WHOLE | {"threads": 0}}, marks=pytest.mark.slow),
        pytest.param(
            *(2, None, "xla", {"float32": WHOLE | {"threads": 0, "step": True}}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["halves", "more cores", "threads given", "XLA"],
)
def test_train_divides_cores_and_has_only_layers_and_loss_rewritten(
    tmp_path, cores, given, xla, expected
):
    """Divided cores are left to the user who gives the threads, and all of it is to XLA."""
    env = {name: value for name, value in os.environ.items() if name != "TF_NUM_INTRAOP_THREADS"}
    if given:
        env["TF_NUM_INTRAOP_THREADS"] = given
    command = [sys.executable, "-c", PREPARED, str(tmp_path), xla, str(cores), *expected]
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [*expected.values()]
