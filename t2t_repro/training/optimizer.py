"""Section 5.3: Adam with the paper's constants and schedule, and what the paper does not have."""

import keras

from t2t_repro.config import Train
from t2t_repro.training.schedule import make_schedule


def make_optimizer(
    config: Train, d_model: int, adam: type[keras.optimizers.Adam] = keras.optimizers.Adam
) -> keras.optimizers.Optimizer:
    """Make Adam with the paper's constants and schedule (5.3).

    Weight decay, which is not in the paper, leaves out biases and the vectors of LayerNorm.

    Args:
        config: The training settings.
        d_model: Width of the model, which the learning rate depends on.
        adam: The implementation of Adam.
    """
    optimizer = adam(
        make_schedule(config, d_model),
        beta_1=config.beta_1,
        beta_2=config.beta_2,
        epsilon=config.epsilon,
        use_ema=config.ema > 0,
        ema_momentum=config.ema,
        weight_decay=config.weight_decay or None,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer
