"""Table 1 measured: the cost of its layers over n and d, and the length of paths through them.

A measurement runs the forward and backward pass of one layer over one sentence as a TensorFlow
graph, with gradients of the input and of all weights. Memory is its peak, without weights and
input. On a GPU this is the memory that TensorFlow's allocator has handed out. On a CPU it is the
resident memory of a fresh process, because a process that has run before would reuse its pages
unseen. It varies by a megabyte or two, and sometimes by one n x n array. (TensorFlow's own
statistics of a CPU leave out allocations below 256 KiB, and a recurrent layer makes no larger
ones.)

Heads are 64 wide, as in the paper's base model, so there are d / 64; r is 128 and k is 7.
"""

import ctypes
import functools
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path as File
from typing import Any, NamedTuple

import numpy as np

from pipelines.errors import BadInput
from t2t_repro.distributed.machine import linux_bytes
from t2t_repro.model.attention import MultiHeadAttention
from t2t_repro.model.table1_layers import (
    Convolution,
    Recurrent,
    RestrictedSelfAttention,
    SeparableConvolution,
)

Row = dict[str, Any]

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
WIDTHS = (64, 128, 256)
R, K, HEAD = 128, 7, 64
PATH_LENGTH, PATH_R = 256, 32  # n and r of the layers that paths lead through
DILATIONS = (1, K, K**2)  # repeated over the layers; a dilation of 343 would exceed n
_STATUS = "/proc/self/status"
_MAX_SECONDS = 2.0  # no repeat begins after this time
_FULL, _RESTRICTED = "self-attention", "restricted self-attention"


class LayerType(NamedTuple):
    """A row of Table 1."""

    make: Callable[..., Any]  # (d, **keyword arguments of a Keras layer) -> layer
    complexity: str  # per layer, as Table 1 prints it


class Path(NamedTuple):
    """A stack of layers of one type."""

    make: Callable[..., Any]  # (index in the stack, d, **keyword arguments) -> layer
    length: str  # maximum path length by Table 1 and section 4
    steps: int  # sequential operations in each layer


def _attention(d: int) -> dict[str, int]:
    return {"d_model": d, "num_heads": d // HEAD, "d_k": HEAD, "d_v": HEAD}


def _full(d: int, **kwargs: Any) -> Any:
    return MultiHeadAttention(**_attention(d), **kwargs)


def _restricted(d: int, r: int = R, **kwargs: Any) -> Any:
    return RestrictedSelfAttention(r, **_attention(d), **kwargs)


LAYERS = {
    _FULL: LayerType(_full, "O(n^2 d)"),
    _RESTRICTED: LayerType(_restricted, "O(r n d)"),
    "recurrent": LayerType(Recurrent, "O(n d^2)"),
    "convolutional": LayerType(functools.partial(Convolution, K), "O(k n d^2)"),
    "separable convolutional": LayerType(
        functools.partial(SeparableConvolution, K), "O(k n d + n d^2)"
    ),
}
PATHS = {
    _FULL: Path(lambda _, d, **kwargs: _full(d, **kwargs), "O(1)", 1),
    _RESTRICTED: Path(lambda _, d, **kwargs: _restricted(d, PATH_R, **kwargs), "O(n/r)", 1),
    "recurrent": Path(lambda _, d, **kwargs: Recurrent(d, **kwargs), "O(n)", PATH_LENGTH),
    "convolutional": Path(lambda _, d, **kwargs: Convolution(K, d, **kwargs), "O(n/k)", 1),
    "convolutional, dilated": Path(
        lambda index, d, **kwargs: Convolution(K, d, DILATIONS[index % 3], **kwargs),
        "O(log_k n)",
        1,
    ),
}


def rows(repeats: int) -> Iterator[Row]:
    """Yield each layer type's rows, one per n and d, and exponents; then the ratios and paths.

    Args:
        repeats: Number of measurements to take the median of; fewer if they take over two seconds.

    Yields:
        `ms`: median time in milliseconds. `mib`: peak memory in MiB. `time_n`, `time_d`,
        `memory_n`, `memory_d`: see `exponents`. `ms_ratio`, `mib_ratio`: see `_ratios`. `layers`,
        `steps`: see `_path`.
    """
    measured = []
    for name, layer_type in LAYERS.items():
        layer_rows = []
        for d, n in itertools.product(WIDTHS, LENGTHS):
            row = {"layer": name, "n": n, "d": d} | _in_own_process(name, n, d, repeats)
            layer_rows.append(row)
            yield row
        yield {"layer": name, "complexity": layer_type.complexity} | exponents(layer_rows)
        measured += layer_rows
    yield from _ratios(measured)
    for name, path in PATHS.items():
        yield {"path_through": name, "n": PATH_LENGTH} | _path(path)


def exponents(rows: list[Row]) -> Row:
    """Fit cost = c n^a d^b by least squares over logarithms, and return a and b.

    The fit uses the upper half of the lengths, because shorter ones mostly measure the constant
    overhead of a call.

    Returns:
        `time_n`, `time_d`: a and b of the time. `memory_n`, `memory_d`: a and b of the memory.
    """
    lengths = sorted({row["n"] for row in rows})
    long = [row for row in rows if row["n"] >= lengths[len(lengths) // 2]]
    powers = np.log([[np.e, row["n"], row["d"]] for row in long])

    def fitted(key: str) -> tuple[float, float]:
        (_, n, d), *_ = np.linalg.lstsq(powers, np.log([row[key] for row in long]), rcond=None)
        return float(n), float(d)

    time_n, time_d = fitted("ms")
    memory_n, memory_d = fitted("mib")
    return {"time_n": time_n, "time_d": time_d, "memory_n": memory_n, "memory_d": memory_d}


def _ratios(measured: list[Row]) -> Iterator[Row]:
    """Yield the cost of full over restricted self-attention, at the greatest n, for each d."""
    n = max(row["n"] for row in measured)
    at = {(row["layer"], row["d"]): row for row in measured if row["n"] == n}
    for d in WIDTHS:
        full, restricted = at[_FULL, d], at[_RESTRICTED, d]
        times = {f"{key}_ratio": full[key] / restricted[key] for key in ("ms", "mib")}
        yield {"layer": "full over restricted", "n": n, "d": d, "r": R} | times


def _in_own_process(name: str, n: int, d: int, repeats: int) -> Row:
    """Run `measure` in a fresh process."""
    # The server has imported TensorFlow but never run it; its forks save the seconds of the import.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    try:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(measure, name, n, d, repeats).result()
    except BrokenProcessPool:
        raise BadInput(
            f"{name}, n {n}, d {d}: the process was killed, most likely because it ran out of "
            "memory; wanted 5 GiB of free memory"
        ) from None


def measure(name: str, n: int, d: int, repeats: int) -> Row:
    """Return `ms` and `mib` of a layer, measured in this process."""
    import tensorflow as tf

    layer = LAYERS[name].make(d)
    layer.build((None, None, d))

    @tf.function(input_signature=[tf.TensorSpec([1, None, d])])
    def gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, tf.ones_like(x[:, None, None, :, 0], tf.bool))
        return tape.gradient(y, [x, *layer.trainable_variables], output_gradients=x)

    def run(x: Any) -> None:
        gradients(x)[0][0, 0, 0].numpy()

    # Drawn with NumPy, because TensorFlow's generators would leave memory in TensorFlow's pool.
    x = tf.constant(np.random.default_rng(0).standard_normal((1, n, d), np.float32))
    run(x[:, : LENGTHS[0]])  # traces the graph
    peak = _peak_bytes(lambda: run(x))
    seconds = _median_seconds(lambda: run(x), repeats)
    # The input's gradient is part of the peak, so the peak is at least as large.
    return {"ms": seconds * 1e3, "mib": max(peak, 4 * n * d) / 2**20}


def _peak_bytes(call: Callable[[], None]) -> int:
    """Return the peak growth of memory during a call, in bytes: the GPU's if there is one."""
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        memory = tf.config.experimental
        memory.reset_memory_stats("GPU:0")
        before = memory.get_memory_info("GPU:0")["current"]
        call()
        return memory.get_memory_info("GPU:0")["peak"] - before
    ctypes.CDLL(None).malloc_trim(0)  # returns free memory to the system
    File("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = linux_bytes(_STATUS, "VmRSS")  # resident memory
    call()
    return linux_bytes(_STATUS, "VmHWM") - before  # peak of the resident memory


def _median_seconds(call: Callable[[], None], repeats: int) -> float:
    """Return the median over `repeats` calls, or over those that begin within `_MAX_SECONDS`."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < _MAX_SECONDS:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _path(path: Path) -> Row:
    """Return the `layers` between the first input and the last output, and their total `steps`."""
    make = functools.partial(path.make, d=HEAD, dtype="float64")
    layers = layers_between_ends(make, PATH_LENGTH)
    return {"layers": layers, "steps": layers * path.steps, "path": path.length}


def layers_between_ends(make: Callable[[int], Any], n: int) -> int:
    """Return how many layers are needed until the first input affects the last output.

    The gradient of the last output is propagated back through one layer after another, each with
    random weights and a random input, until the gradient of the first input is not zero. An input
    that cannot affect the output has a gradient of exactly zero. float64 and a rescaling after each
    layer keep all other gradients from underflowing to zero.

    Args:
        make: (index of the layer, counted from the output) -> layer of width `HEAD`.
        n: Number of positions.
    """
    import tensorflow as tf

    def random() -> Any:
        return tf.random.normal((1, n, HEAD), dtype="float64")

    gradient, layers = random() * tf.one_hot([[n - 1]], n, dtype="float64")[0, :, :, None], 0
    while not np.any(gradient[0, 0]):
        layer, x = make(layers), random()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, tf.ones((1, 1, 1, n), tf.bool))
        gradient = tape.gradient(y, x, output_gradients=gradient)
        gradient /= tf.reduce_max(tf.abs(gradient))
        layers += 1
    return layers
