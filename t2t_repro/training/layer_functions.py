"""One TensorFlow function for all layers alike, so that a training step is traced sooner.

The six layers of base's encoder make the same graph six times, and so do those of its decoder. Here
each kind is traced once, as a function of its weights. TensorFlow (its Grappler) also rewrites that
function once, before it first runs, which makes steps faster. To rewrite what is left of a step,
more than 3,000 operations of base, takes 3 s and hardly makes it faster, so on a CPU it is left out
(`distributed.strategy.prepare_cpu`).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

# Otherwise TensorFlow copies the function to where it is called, and rewrites each copy.
KEPT = {"_noinline": True}


@contextlib.contextmanager
def rewritten(fused: bool) -> Iterator[None]:
    """Let TensorFlow rewrite the functions that are called in here, while another is traced.

    Args:
        fused: Whether a CPU computes a product, its bias and ReLU in one operation. That is faster
            in float32 and slower in bfloat16: on two cores with AMX 1.65 instead of 0.77 ms for
            1,024 x 512 numbers.
    """
    if not tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer"):
        yield  # not `prepare_cpu`'s CPU: all functions are rewritten
        return
    wanted = {"disable_meta_optimizer": False, "remapping": fused}
    tf.config.optimizer.set_experimental_options(wanted)
    try:
        yield
    finally:
        wanted = {"disable_meta_optimizer": True, "remapping": True}
        tf.config.optimizer.set_experimental_options(wanted)


class LayerFunctions:
    """Calls layers as `layer(*inputs, **given)` does, inside a function that is being traced.

    Layers with equal configurations share a function.
    """

    def __init__(self) -> None:
        self._functions: dict[Any, Callable[..., Any]] = {}

    def __call__(self, layer: keras.Layer, *inputs: Any, **given: Any) -> Any:
        """Call a layer.

        Args:
            layer: The layer. What its variables are, and what it computes from them, must follow
                from its configuration.
            *inputs: Its inputs.
            **given: Its other arguments.

        Returns:
            Its output. Changed variables, such as the states of random generators, are assigned.
        """
        if (kind := _kind(layer)) not in self._functions:
            self._functions[kind] = _function(layer)
        values = [tf.convert_to_tensor(variable.value) for variable in layer.variables]
        output, changed = self._functions[kind](values, *inputs, **given)
        for index, value in changed.items():
            layer.variables[index].assign(value)
        return output


def _kind(layer: keras.Layer) -> Any:
    """Return what layers with one function have in common: all but their names."""
    config = {name: value for name, value in layer.get_config().items() if name != "name"}
    return type(layer), repr(config), tuple(variable.trainable for variable in layer.variables)


def _function(layer: keras.Layer) -> Callable[..., Any]:
    """Return a function of the values of a layer's variables, its inputs and other arguments.

    It returns the layer's output, and the new values of variables that have changed, by their index
    in `layer.variables`.
    """

    @tf.function(autograph=False, experimental_attributes=KEPT)
    def call(
        values: list[tf.Tensor], *inputs: Any, **given: Any
    ) -> tuple[Any, dict[int, tf.Tensor]]:
        variables = layer.variables
        # The gradient of a frozen weight would be computed, though nothing reads it.
        known = [
            value if variable.trainable else tf.stop_gradient(value)
            for variable, value in zip(variables, values, strict=True)
        ]
        with keras.StatelessScope(zip(variables, known, strict=True)) as scope:
            before = [scope.get_current_value(variable) for variable in variables]
            output = layer(*inputs, **given)
        after = [scope.get_current_value(variable) for variable in variables]
        pairs = enumerate(zip(before, after, strict=True))
        return output, {index: new for index, (old, new) in pairs if new is not old}

    return call
