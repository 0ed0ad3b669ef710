"""The memory of a training step, by arithmetic and by trial, and the micro-batches that fit.

Each step is tried in a process of its own, so a step that does not fit ends only that process.
"""

import contextlib
import dataclasses
import math
import multiprocessing
import os
import re
import resource
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np

from pipelines.buckets import WORST_ROWS
from pipelines.errors import BadInput
from t2t_repro.config import Config, Model, Train
from t2t_repro.distributed.machine import linux_bytes
from t2t_repro.model.flops import Shape, matrix_weights

# Trials use this many times the tokens asked for, because the training process also holds the text
# and buffers to exchange gradients with other GPUs.
_MARGIN = 1.2
# Share of the free memory that a trial on a CPU may take: thousands of steps fragment memory more
# than two steps do.
_SHARE = 0.7
_GROUP = Path("/sys/fs/cgroup")  # of a container


def count_micro_batches(config: Config, replicas: int, vocabulary_size: int) -> int:
    """Return into how many micro-batches each replica divides its share, at least `accumulate`.

    With `max_tokens_per_replica` at `auto`, 1, 2, 4, ... times as many are tried on one device. The
    tried batch is the worst case: sentences of `max_length`, where attention weights count most. If
    it is a number, no micro-batch has more tokens on a side, whatever the lengths are, unless one
    sentence alone has more. In both cases padding that `count_padding` leaves uncounted is extra.

    Args:
        config: The run's configuration.
        replicas: How many replicas share a batch.
        vocabulary_size: Rows of the shared matrix, if `embedding_rows` does not say.

    Raises:
        BadInput: not even one sentence at a time fits.
    """
    train, data, count = config.train, config.data, config.train.accumulate
    share = -(-data.tokens_per_batch // replicas)
    # So many of the longest sentences may be in a batch, and in each worker's part of a stream's.
    longest = -(-WORST_ROWS // (1 if data.stream else replicas))
    if train.max_tokens_per_replica is None:
        return count
    if limit := train.max_tokens_per_replica:  # AUTO is 0
        lengths = np.arange(1, data.max_length + 1)
        most = np.maximum(longest, -(-(data.tokens_per_batch // lengths) // replicas))  # rows
        return max(count, int((-(-most // np.maximum(1, limit // lengths))).max()))
    rows = config.model.embedding_rows or vocabulary_size
    length = data.max_length
    while True:
        pairs = max(-(-longest // count), math.ceil(_MARGIN * share / count / length))
        # The gradients of the first micro-batch are kept while the others are computed.
        parts = min(count, 2)
        tried = dataclasses.replace(train, accumulate=parts)
        # The second step has sentences of another length, when memory is already fragmented.
        shapes = (parts * pairs, length, length), (2 * parts * pairs, length // 2, length // 2)
        if try_step(config.model, rows, tried, *shapes) is not None:
            return count
        if pairs == 1:
            raise BadInput(
                f"max_tokens_per_replica: not even one pair of {length} pieces fits into the "
                "memory of this device; lower --max_length, or train a smaller model"
            )
        count *= 2


def try_step(model: Model, rows: int, train: Train, *shapes: Shape) -> int | None:
    """Return the peak bytes of training steps on the first GPU, else the CPU; None if they fail.

    The peak includes weights, moments and gradients. On a CPU it is read from the process's
    resident memory, without the share of Python and TensorFlow themselves.

    Args:
        model: The model's settings.
        rows: Rows of the shared matrix.
        train: Gives the precision, the micro-batches, and whether the step is compiled.
        shapes: Shapes of the batches, one step each.
    """
    context = multiprocessing.get_context("spawn")  # TensorFlow's threads do not survive a fork
    with ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(_steps, model, rows, train, *shapes).result()
        except BrokenProcessPool:  # ended by the system, or by a library that got no memory
            return None


def predicted(model: Model, rows: int, precision: str, shape: Shape) -> int:
    """Predict the bytes that `try_step` measures, by arithmetic.

    The peak is at the end of the forward pass. Memory then holds the weights and Adam's two
    moments, the arrays that the forward pass keeps, and two arrays over the vocabulary: the logits
    and their softmax (in bfloat16 where such a softmax is exact, see `softmax_is_exact`). For each
    layer and position the forward pass keeps the queries, keys, values and heads of attentions; the
    hidden layer of the feed-forward; and for each add and norm the dropout mask at one byte per
    element, the sum, its scale factors, and the output. For each pair of positions that attention
    compares it keeps the weight.

    On a CPU the measured bytes per token are 1.1 (base) to 1.4 times (tiny) the prediction.
    """
    pairs, source, target = shape
    width = 2 if precision.endswith("bfloat16") else 4  # bytes, except in softmax and norms
    both = 4 + width % 4  # bytes in an array that bfloat16 keeps in both widths
    heads = width * model.num_heads * (model.d_k + model.d_v)  # queries and heads; keys and values
    add_norm = model.d_model * (1 + 4 + 4 + width)
    feed_forward = width * model.d_ff + add_norm
    encoder = 2 * heads + add_norm + feed_forward + heads  # the last term: cross-attention
    decoder = 2 * heads + add_norm + heads + add_norm + feed_forward
    weights = (source**2 + target**2 + target * source) * model.num_heads * both
    layers = model.num_layers * (source * encoder + target * decoder + weights)
    vocabulary = target * rows * 2 * width
    return 3 * 4 * sum(matrix_weights(model, rows)) + pairs * (layers + vocabulary)


def _steps(model: Model, rows: int, train: Train, *shapes: Shape) -> int | None:
    """Run the steps of `try_step`; called in a process of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # silences complaints about lack of memory
    import tensorflow as tf

    from t2t_repro.distributed.strategy import prepare_cpu
    from t2t_repro.model.transformer import Transformer
    from t2t_repro.training.freezing import freeze
    from t2t_repro.training.trainer import Trainer

    gpus = tf.config.list_physical_devices("GPU")[:1]
    tf.config.set_visible_devices(gpus, "GPU")
    before = 0 if gpus else _most_resident()
    if not gpus:
        _limit_memory()
        if not train.xla:
            prepare_cpu()
    strategy = tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")
    try:
        with strategy.scope():
            transformer = Transformer(model, rows, train.precision)
        freeze(transformer, train.freeze)
        trainer = Trainer(transformer, train, strategy)
        for pairs, *lengths in shapes:
            trainer.step(*(tf.fill((pairs, length), rows - 1) for length in lengths)).numpy()
    except (tf.errors.ResourceExhaustedError, MemoryError):
        return None
    if gpus:
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return _most_resident() - before


def _most_resident() -> int:
    """Return this process's peak resident bytes; `getrusage` would include the parent's."""
    return linux_bytes("/proc/self/status", "VmHWM")


def _limit_memory() -> None:
    """Make allocations fail when memory is used up, before the system kills some process."""
    used = linux_bytes("/proc/self/status", "VmData")
    limit, hard = resource.getrlimit(resource.RLIMIT_DATA)
    left = _available()
    if limit != resource.RLIM_INFINITY:
        left = min(left, max(0, limit - used))
    resource.setrlimit(resource.RLIMIT_DATA, (used + int(_SHARE * left), hard))


def _available() -> int:
    """Return the free bytes of this machine, or of its container."""
    left = linux_bytes("/proc/meminfo", "MemAvailable")
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        limit, used = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        # Files that were read: the system drops them when a program wants their memory.
        files = re.search(r"^inactive_file (\d+)$", (_GROUP / "memory.stat").read_text(), re.M)
        left = min(left, limit - used + (int(files[1]) if files else 0))
    return left
