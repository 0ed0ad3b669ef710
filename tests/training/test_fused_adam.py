"""TensorFlow's kernel makes the same updates as Keras's Adam."""

import keras
import numpy as np
import pytest

from t2t_repro.config import Model, Train
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.fused_adam import FusedAdam
from t2t_repro.training.optimizer import make_optimizer


def trained(adam: type[keras.optimizers.Adam], **settings: float) -> list[np.ndarray]:
    """Return two weights, their averages and moments after three updates, the same for all."""
    random = np.random.default_rng(0)
    weights = [
        keras.Variable(random.normal(size=shape).astype("float32"), name=name)
        for name, shape in (("kernel", (3, 4)), ("bias", (5,)))
    ]
    optimizer = make_optimizer(Train(warmup_steps=2, **settings), 512, adam)
    optimizer.build(weights)
    for _ in range(3):
        gradients = [random.normal(size=weight.shape).astype("float32") for weight in weights]
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], weights)
    assert optimizer.iterations == 3
    states = optimizer.variables[1:]  # all but the count
    return [np.array(variable) for variable in (*weights, *states)]


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 3.0}, {"weight_decay": 3.0, "ema": 0.5}])
def test_the_kernel_makes_the_updates_of_keras(settings):
    ours, theirs = (trained(adam, **settings) for adam in (FusedAdam, keras.optimizers.Adam))
    assert len(ours) == (8 if "ema" in settings else 6)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-8)


def test_weight_decay_shrinks_matrices_by_the_learning_rate_and_leaves_vectors():
    sizes = Model(num_layers=1, d_model=4, d_ff=8, num_heads=1, d_k=4, d_v=4)
    weights = Transformer(sizes, rows=9).trainable_variables
    optimizer = make_optimizer(Train(warmup_steps=1, weight_decay=0.5), 4, FusedAdam)
    optimizer.build(weights)
    for weight in weights:
        weight.assign(np.full(weight.shape, 8.0))
    optimizer.apply([keras.ops.zeros_like(weight) for weight in weights], weights)
    for weight in weights:
        # Equation 3 at step 1: 4^-0.5 = 0.5. Adam itself moves nothing where the gradient is 0.
        expected = 8 * (1 - 0.5 * 0.5) if len(weight.shape) > 1 else 8.0
        np.testing.assert_allclose(weight, np.full(weight.shape, expected), err_msg=weight.path)


def test_averages_begin_at_the_weights_even_where_the_first_step_is_skipped():
    weights = [keras.Variable(np.full(3, 8.0, "float32"))]
    optimizer = make_optimizer(Train(ema=0.9), 4, FusedAdam)
    optimizer.build(weights)
    optimizer.iterations.assign_add(1)  # as the trainer counts a step without its update
    optimizer.update([keras.ops.zeros(3)], weights)
    np.testing.assert_allclose(optimizer.averages[0], np.full(3, 8.0))
