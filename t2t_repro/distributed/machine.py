"""What this machine can do, for figures of speed to stand beside."""

import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

MATRIX = 4096  # width of the large product


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Seconds of one call, after two to warm up."""
    call(), call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def matmul_gflops(dtype: str, repeats: int, width: int | None = None) -> float:
    """Of a product of two square matrices, `width` or `MATRIX` wide: as fast as it gets."""
    import tensorflow as tf

    width = width or MATRIX
    matrix = tf.cast(tf.random.normal((width, width)), dtype)
    seconds = median_seconds(lambda: tf.linalg.matmul(matrix, matrix)[0, 0].numpy(), repeats)
    return 2 * width**3 / seconds / 1e9


def read_gb_per_s(repeats: int) -> float:
    """Of the maximum of 1 GB: as fast as weights can come from memory."""
    import tensorflow as tf

    numbers = tf.zeros((250_000, 1000))
    seconds = median_seconds(lambda: tf.reduce_max(numbers).numpy(), repeats)
    return 1.0 / seconds


def linux_bytes(path: str, name: str) -> int:
    """What a line "name: 123 kB" of a file below /proc says."""
    (kib,) = re.findall(rf"^{name}:\s+(\d+) kB", Path(path).read_text(), re.MULTILINE)
    return int(kib) * 1024
