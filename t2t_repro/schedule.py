"""Section 5.3, equation 3: the learning rate."""

from typing import Any

import keras
from keras import ops


class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), times `scale`.

    Rises linearly for `warmup_steps` steps, then falls with the inverse square root of the step. At
    its peak, step 4,000, base has 6.99e-4 and big 4.94e-4. The paper counts steps from 1; Keras
    hands over the number of updates already made, from 0.

    Args:
        d_model: width of the model.
        warmup_steps: 4,000 in the paper.
        scale: 1 in the paper.
    """

    def __init__(self, d_model: int, warmup_steps: int = 4000, scale: float = 1.0):
        super().__init__()
        self.d_model, self.warmup_steps, self.scale = d_model, warmup_steps, scale

    def __call__(self, iterations: Any) -> Any:
        """Rate of the update that follows `iterations` updates: float32 scalar."""
        step = ops.cast(iterations, "float32") + 1.0
        rising = step * self.warmup_steps**-1.5
        return self.scale * self.d_model**-0.5 * ops.minimum(ops.rsqrt(step), rising)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, for Keras's serialisation."""
        return {"d_model": self.d_model, "warmup_steps": self.warmup_steps, "scale": self.scale}
