"""What this machine can do: its baseline speeds, and the instructions of its processor."""

import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

MATRIX = 4096  # width of the large product


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of `repeats` calls, after two calls to warm up."""
    call(), call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def matmul_gflops(dtype: str, repeats: int, width: int | None = None) -> float:
    """Return the GFLOP/s of products of two square matrices, `width` or `MATRIX` wide.

    Two are made at the same time, because a product may have one of two cores (`prepare_cpu`).
    """
    import tensorflow as tf

    width = width or MATRIX
    matrices = [tf.cast(tf.random.normal((width, width)), dtype) for _ in range(2)]

    @tf.function(autograph=False)
    def corners() -> list[tf.Tensor]:
        return [tf.linalg.matmul(matrix, matrix)[0, 0] for matrix in matrices]

    seconds = median_seconds(lambda: tf.stack(corners()).numpy(), repeats)
    return 2 * 2 * width**3 / seconds / 1e9


def read_gb_per_s(repeats: int) -> float:
    """Return the GB/s at which the maximum of a 1 GB tensor is computed, the speed of memory."""
    import tensorflow as tf

    numbers = tf.zeros((250_000, 1000))
    seconds = median_seconds(lambda: tf.reduce_max(numbers).numpy(), repeats)
    return 1.0 / seconds


def softmax_is_exact(dtype: str) -> bool:
    """Return whether a softmax in a floating-point type is rounded only where it is written.

    In bfloat16 it is with oneDNN, on a processor that oneDNN knows how to compute bfloat16 on.
    TensorFlow's own code rounds each step, and over 32,000 numbers is wrong by up to 7.6 %.
    """
    import tensorflow as tf

    logits = tf.cast(tf.linspace(-8.0, 8.0, 1000)[None], dtype)
    exact = tf.nn.softmax(tf.cast(logits, tf.float32))
    error = tf.reduce_max(tf.abs(tf.cast(tf.nn.softmax(logits), tf.float32) / exact - 1))
    return bool(error < 0.005)  # bfloat16 itself is exact to 0.4 %


def linux_bytes(path: str, name: str) -> int:
    """Return the bytes that a line "<name>: 123 kB" of a file in /proc says."""
    (kib,) = re.findall(rf"^{name}:\s+(\d+) kB", Path(path).read_text(), re.MULTILINE)
    return int(kib) * 1024


def cpu_has(*names: str) -> bool | None:
    """Return whether the processor has one of some kinds of instructions; None if unknown.

    Args:
        names: Their names in Linux's /proc/cpuinfo, such as "avx512_vnni"; ARM has others than x86.
    """
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return None
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return None if found is None else not set(names).isdisjoint(found[1].split())
