"""Section 5.3: Adam with the paper's constants and schedule."""

import keras

from t2t_repro.config import Train
from t2t_repro.training.schedule import NoamSchedule


def make_optimizer(
    config: Train, d_model: int, adam: type[keras.optimizers.Adam] = keras.optimizers.Adam
) -> keras.optimizers.Optimizer:
    """Adam with the paper's constants and schedule (5.3); `adam` is how it computes."""
    schedule = NoamSchedule(
        d_model,
        config.warmup_steps,
        config.learning_rate_scale,
        config.cooldown_share * config.train_steps,
        config.train_steps,
    )
    return adam(schedule, beta_1=config.beta_1, beta_2=config.beta_2, epsilon=config.epsilon)
