"""Adam by TensorFlow's own kernel, for training steps."""

from collections.abc import Sequence

import keras
import tensorflow as tf


class FusedAdam(keras.optimizers.Adam):
    """Keras's Adam, by the same formula, in one operation per variable instead of ten.

    On two CPU cores a step of base in bfloat16 takes 2.72 s with it and 2.88 s without; in float32
    it makes no difference there.
    """

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Make the moments of all variables; call it in the scope of their strategy."""
        super().build(variables)
        # Keras's last variables: the first and second moment of each variable in turn.
        moments = iter(self.variables[-2 * len(variables) :])
        copies = tf.distribute.get_strategy().experimental_local_results  # one per replica
        self.moments = {
            copy.ref(): pair
            for variable, pair in zip(variables, zip(moments, moments, strict=True), strict=True)
            for copy in copies(variable.value)
        }

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        """Change one variable and its moments in place; Keras calls this on each replica."""
        first, second = self.moments[variable.ref()]
        step = tf.cast(self.iterations + 1, tf.float32)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=first.value.handle,
            v=second.value.handle,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )
