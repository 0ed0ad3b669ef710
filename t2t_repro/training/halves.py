"""Two halves of a batch at the same time, each on one of two cores.

Many operations of a step are too small for two cores, so that one of them waits. Two halves that do
not wait for each other keep both busy: on two processors a step of a small model takes 0.7 to
0.9 times as long, one of base 0.9 to 1.0 times.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from t2t_repro.training.layer_functions import KEPT
from t2t_repro.training.rows import with_even_rows

_Sums = tuple[list[tf.Tensor], tf.Tensor]


class Halves:
    """Computes gradients of a batch as the sum of those of its halves.

    Axes: b batch, s source positions, t target positions.

    Args:
        gradients_of: A function of source [b, s], target [b, t] and the number that the loss is
            divided by. It returns gradients and other sums over the rows.
        random_states: The states of its random generators. If it changed any other variable, the
            halves would wait for each other.
    """

    def __init__(
        self,
        gradients_of: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], _Sums],
        random_states: list[keras.Variable],
    ):
        self._gradients_of, self._random_states = gradients_of, random_states

    def __call__(self, source: tf.Tensor, target: tf.Tensor, tokens: tf.Tensor) -> _Sums:
        """Return what the function does, of both halves, which use different random numbers."""
        source, target = with_even_rows(source, 2), with_even_rows(target, 2)
        results = []
        for half in range(2):
            # A state is a seed and the number of draws. The second half has the next seed.
            states = [
                state.value + tf.constant([half, 0], state.value.dtype)
                for state in self._random_states
            ]
            results.append(self._half(source[half::2], target[half::2], tokens, states))
        (gradients, sums, states), (others, other_sums, _) = results
        for variable, state in zip(self._random_states, states, strict=True):
            variable.assign(state)
        both = [one + other for one, other in zip(gradients, others, strict=True)]
        return both, sums + other_sums

    @tf.function(autograph=False, experimental_attributes=KEPT)
    def _half(
        self, source: tf.Tensor, target: tf.Tensor, tokens: tf.Tensor, states: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], tf.Tensor, list[tf.Tensor]]:
        """Return what the function does from given states, and the states after it."""
        pairs = zip(self._random_states, states, strict=True)
        with keras.StatelessScope(pairs) as scope:
            gradients, sums = self._gradients_of(source, target, tokens)
            after = [scope.get_current_value(variable) for variable in self._random_states]
        return gradients, sums, after
