"""TensorFlow's kernel makes the same updates as Keras's Adam."""

import keras
import numpy as np

from t2t_repro.config import Train
from t2t_repro.training.fused_adam import FusedAdam
from t2t_repro.training.optimizer import make_optimizer


def trained(adam: type[keras.optimizers.Adam]) -> list[np.ndarray]:
    """Return two weights and their moments after three updates with the same gradients."""
    random = np.random.default_rng(0)
    weights = [
        keras.Variable(random.normal(size=shape).astype("float32")) for shape in ((3, 4), (5,))
    ]
    optimizer = make_optimizer(Train(warmup_steps=2), 512, adam)
    optimizer.build(weights)
    for _ in range(3):
        gradients = [random.normal(size=weight.shape).astype("float32") for weight in weights]
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], weights)
    assert optimizer.iterations == 3
    moments = optimizer.variables[-4:]
    return [np.array(variable) for variable in (*weights, *moments)]


def test_the_kernel_makes_the_updates_of_keras():
    for one, other in zip(trained(FusedAdam), trained(keras.optimizers.Adam), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-8)
