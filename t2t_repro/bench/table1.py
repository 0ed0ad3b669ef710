"""Table 1 measured: what its layers cost over n and d, and how long the paths through them are.

Time is that of the forward and the backward pass of one layer over one sentence, as a graph of
TensorFlow: gradients of the input and of all weights. Memory is what the same takes at its peak,
beside weights and input. On a GPU that is what TensorFlow's allocator has handed out. On a CPU it
is resident memory, of a process that has done nothing else, since what is touched once may be used
again unseen; a megabyte or two is chance, and now and then one n x n array. (TensorFlow's
statistics of a CPU leave out what is smaller than 256 KiB, which is all that a recurrent layer
keeps.)

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
PATH_LENGTH, PATH_R = 256, 32  # positions between which paths are sought, and r for them
DILATIONS = (1, K, K**2)  # then again from 1; further positions than these are not there
_STATUS = "/proc/self/status"
_ENOUGH = 2.0  # seconds of measuring, after which no repeat begins
_FULL, _RESTRICTED = "self-attention", "restricted self-attention"


class Kind(NamedTuple):
    """A row of Table 1."""

    make: Callable[..., Any]  # from d, and a Keras layer's own arguments
    complexity: str  # per layer


class Path(NamedTuple):
    """A stack of layers of one kind."""

    make: Callable[..., Any]  # from index in the stack and d, and a Keras layer's own arguments
    length: str  # by Table 1 and section 4
    steps: int  # one after another in each of its layers


def _attention(d: int) -> dict[str, int]:
    return {"d_model": d, "num_heads": d // HEAD, "d_k": HEAD, "d_v": HEAD}


def _full(d: int, **kwargs: Any) -> Any:
    return MultiHeadAttention(**_attention(d), **kwargs)


def _restricted(d: int, r: int = R, **kwargs: Any) -> Any:
    return RestrictedSelfAttention(r, **_attention(d), **kwargs)


LAYERS = {
    _FULL: Kind(_full, "O(n^2 d)"),
    _RESTRICTED: Kind(_restricted, "O(r n d)"),
    "recurrent": Kind(Recurrent, "O(n d^2)"),
    "convolutional": Kind(functools.partial(Convolution, K), "O(k n d^2)"),
    "separable convolutional": Kind(functools.partial(SeparableConvolution, K), "O(k n d + n d^2)"),
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
    """Of each layer a row for every n and d, then its exponents; then ratios and paths.

    `ms`: the median of `repeats`, or of as many as begin within two seconds. `mib`: the peak.
    `time_n`, `time_d`, `memory_n`, `memory_d`: the exponents, see `exponents`.
    """
    measured = []
    for name, kind in LAYERS.items():
        mine = []
        for d, n in itertools.product(WIDTHS, LENGTHS):
            mine.append({"layer": name, "n": n, "d": d} | _in_own_process(name, n, d, repeats))
            yield mine[-1]
        yield {"layer": name, "complexity": kind.complexity} | exponents(mine)
        measured += mine
    yield from _ratios(measured)
    for name, path in PATHS.items():
        yield {"path_through": name, "n": PATH_LENGTH} | _path(path)


def exponents(rows: list[Row]) -> Row:
    """a and b of cost = c n^a d^b, by least squares over logarithms, of time and of memory.

    Over the upper half of the lengths alone: below it a layer takes what it takes to begin.
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
    """How many times more full attention takes than restricted, at the greatest n."""
    n = max(row["n"] for row in measured)
    at = {(row["layer"], row["d"]): row for row in measured if row["n"] == n}
    for d in WIDTHS:
        full, restricted = at[_FULL, d], at[_RESTRICTED, d]
        times = {f"{key}_ratio": full[key] / restricted[key] for key in ("ms", "mib")}
        yield {"layer": "full over restricted", "n": n, "d": d, "r": R} | times


def _in_own_process(name: str, n: int, d: int, repeats: int) -> Row:
    """`measure` in a process that has done nothing before."""
    # Forked from one that has imported TensorFlow and never run it: no seconds of import.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    try:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(measure, name, n, d, repeats).result()
    except BrokenProcessPool:
        raise BadInput(
            f"{name}, n {n}, d {d}: its process was ended, most likely for want of memory; wanted "
            "5 GiB that nothing else uses"
        ) from None


def measure(name: str, n: int, d: int, repeats: int) -> Row:
    """`ms` and `mib` of a layer, in this process."""
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

    # By numpy, since what TensorFlow needs for random numbers would stay in its pool.
    x = tf.constant(np.random.default_rng(0).standard_normal((1, n, d), np.float32))
    run(x[:, : LENGTHS[0]])  # makes the graph
    peak = _peak_bytes(lambda: run(x))
    seconds = _median_seconds(lambda: run(x), repeats)
    # No less than the input's gradient, which is in it.
    return {"ms": seconds * 1e3, "mib": max(peak, 4 * n * d) / 2**20}


def _peak_bytes(call: Callable[[], None]) -> int:
    """What a call adds to the memory in use, at its peak: a GPU's if there is one."""
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        memory = tf.config.experimental
        memory.reset_memory_stats("GPU:0")
        before = memory.get_memory_info("GPU:0")["current"]
        call()
        return memory.get_memory_info("GPU:0")["peak"] - before
    ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the system
    File("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = linux_bytes(_STATUS, "VmRSS")  # what is resident
    call()
    return linux_bytes(_STATUS, "VmHWM") - before  # the most that ever was


def _median_seconds(call: Callable[[], None], repeats: int) -> float:
    """Of so many calls, or of as many as begin within `_ENOUGH` seconds."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < _ENOUGH:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _path(path: Path) -> Row:
    """`layers` from the first input to the last output, and the steps that they make in all."""
    make = functools.partial(path.make, d=HEAD, dtype="float64")
    layers = layers_between_ends(make, PATH_LENGTH)
    return {"layers": layers, "steps": layers * path.steps, "path": path.length}


def layers_between_ends(make: Callable[[int], Any], n: int) -> int:
    """After how many layers a change of the first input reaches the last output.

    The gradient of the last output goes back through one layer after another, each with random
    weights and at a random input, until that of the first input is not zero. What a layer hides has
    a gradient of exactly zero; the rest is scaled on the way, and in float64, so that none is lost.

    Args:
        make: From a layer's index, counted from the output, to the layer; d is `HEAD`.
        n: Positions.
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
