"""Section 5.3, equation 3: the learning rate, and a cool-down that the paper does not have."""

from typing import Any

import keras
from keras import ops

from t2t_repro.config import Train


def make_schedule(config: Train, d_model: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """Make the learning-rate schedule of a run, for a model of width `d_model`."""
    return NoamSchedule(
        d_model,
        config.warmup_steps,
        config.learning_rate_scale,
        config.cooldown_share * config.train_steps,
        config.train_steps,
    )


@keras.saving.register_keras_serializable("t2t_repro")
class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), times `scale`.

    Rises linearly for `warmup_steps` steps, then falls with the inverse square root of the step. At
    its peak, step 4,000, base has 6.99e-4 and big 4.94e-4. The paper counts steps from 1; Keras
    hands over the number of updates already made, from 0.

    Not in the paper: during the last `cooldown_steps` steps up to `train_steps`, the rate is
    multiplied by a factor that falls linearly and reaches 0 at step train_steps + 1.

    Args:
        d_model: width of the model.
        warmup_steps: 4,000 in the paper.
        scale: 1 in the paper.
        cooldown_steps: 0 in the paper.
        train_steps: the last step; it matters only with a cool-down.

    Examples:
        >>> schedule = NoamSchedule(d_model=512)
        >>> round(float(schedule(3999)), 6)  # step 4,000
        0.000699
    """

    def __init__(
        self,
        d_model: int,
        warmup_steps: int = 4000,
        scale: float = 1.0,
        cooldown_steps: float = 0,
        train_steps: int = 0,
    ):
        super().__init__()
        self.d_model, self.warmup_steps, self.scale = d_model, warmup_steps, scale
        self.cooldown_steps, self.train_steps = cooldown_steps, train_steps

    def __call__(self, iterations: Any) -> Any:
        """Compute the rate of the update that follows `iterations` updates: float32 scalar."""
        step = ops.cast(iterations, "float32") + 1.0
        rising = step * self.warmup_steps**-1.5
        rate = self.scale * self.d_model**-0.5 * ops.minimum(ops.rsqrt(step), rising)
        if not self.cooldown_steps:
            return rate
        return rate * ops.clip((self.train_steps + 1 - step) / self.cooldown_steps, 0.0, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, for Keras's serialisation."""
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
            "cooldown_steps": self.cooldown_steps,
            "train_steps": self.train_steps,
        }
