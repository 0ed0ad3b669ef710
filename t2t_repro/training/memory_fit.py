"""How much memory a training step takes, by arithmetic and by trying one, and what fits.

A step is tried in a process of its own, so that one that does not fit takes nothing with it.
"""

import contextlib
import dataclasses
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from pipelines.errors import BadInput
from t2t_repro.config import AUTO, Config, Model, Train
from t2t_repro.distributed.machine import linux_bytes
from t2t_repro.model.flops import Shape, matrix_weights

# Tried with so many more tokens than are asked for: the process that trains also holds the text,
# and buffers to exchange gradients with other GPUs.
_MARGIN = 1.2
# Of the memory left, what a trial on a CPU may take: thousands of steps leave more gaps than two.
_SHARE = 0.7


def parts_of_batch(config: Config, replicas: int) -> int:
    """Into how many parts each replica divides its share of a batch: at least `accumulate`.

    With `max_tokens_per_replica` at `auto` 1, 2, 4, ... times as many are tried on one device. The
    batch is the worst that there can be: sentences of `max_length`, where attention's weights count
    most.

    Raises:
        BadInput: not even one sentence at a time fits.
    """
    train, data = config.train, config.data
    parts, share = train.accumulate, -(-data.tokens_per_batch // replicas)
    if train.max_tokens_per_replica is None:
        return parts
    if train.max_tokens_per_replica != AUTO:
        return max(parts, -(-share // train.max_tokens_per_replica))
    rows = config.model.embedding_rows or data.vocabulary_size
    length = min(data.max_length, share)
    while True:
        pairs = max(1, round(_MARGIN * share / parts / length))
        # And then sentences of another length: memory has gaps by then.
        shapes = (pairs, length, length), (2 * pairs, length // 2, length // 2)
        if try_step(config.model, rows, train, *shapes) is not None:
            return parts
        if pairs == 1:
            raise BadInput(
                f"max_tokens_per_replica: not even one pair of {length} pieces fits into the "
                "memory of this device; lower --max_length, or train a smaller model"
            )
        parts *= 2


def try_step(model: Model, rows: int, train: Train, *shapes: Shape) -> int | None:
    """The most bytes that training steps take on the first GPU, else the CPU; None: it fails.

    With weights, moments and gradients; on a CPU, where it is seen from the process's resident
    memory, without what Python and TensorFlow take themselves.

    Args:
        model: The model.
        rows: Of the shared matrix.
        train: For its precision, and whether the step is compiled.
        shapes: Of the batches of the steps, one after another.
    """
    context = multiprocessing.get_context("spawn")  # TensorFlow's threads do not survive a fork
    with ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(_steps, model, rows, train, *shapes).result()
        except BrokenProcessPool:  # ended by the system, or by a library that got no memory
            return None


def predicted(model: Model, rows: int, precision: str, shape: Shape) -> int:
    """What `try_step` should find, by arithmetic.

    The worst moment is the beginning of the backward pass. It finds the weights and Adam's two
    moments, what the forward pass has kept, and two arrays over the vocabulary, softmax and the
    gradient of the logits (with bfloat16 this one in both widths). Kept are, of each layer and
    position: queries, keys, values and heads of attentions; the hidden layer of the feed-forward;
    of an add and norm dropout's mask, a byte an element, the sum, what that is multiplied by, and
    the output. And for each two positions that attention compares, its weight.

    Measured on a CPU are 1.1 (base) to 1.4 times (tiny) that for a token.
    """
    pairs, source, target = shape
    width = 2 if precision.endswith("bfloat16") else 4  # bytes, of all but softmax and norms
    both = 4 + width % 4  # of an array that bfloat16 has in both widths
    heads = width * model.num_heads * (model.d_k + model.d_v)  # queries and heads; keys and values
    add_norm = model.d_model * (1 + 4 + 4 + width)
    feed_forward = width * model.d_ff + add_norm
    encoder = 2 * heads + add_norm + feed_forward + heads  # the last: for cross-attention
    decoder = 2 * heads + add_norm + heads + add_norm + feed_forward
    weights = (source**2 + target**2 + target * source) * model.num_heads * both
    layers = model.num_layers * (source * encoder + target * decoder + weights)
    vocabulary = target * rows * (4 + both)
    return 3 * 4 * sum(matrix_weights(model, rows)) + pairs * (layers + vocabulary)


def _steps(model: Model, rows: int, train: Train, *shapes: Shape) -> int | None:
    """In a process of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what it has to say of a lack of memory
    import tensorflow as tf

    from t2t_repro.model.transformer import Transformer
    from t2t_repro.training.trainer import Trainer

    gpus = tf.config.list_physical_devices("GPU")[:1]
    tf.config.set_visible_devices(gpus, "GPU")
    before = 0 if gpus else _most_resident()
    if not gpus:
        _limit_memory()
    strategy = tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")
    try:
        with strategy.scope():
            transformer = Transformer(model, rows, train.precision)
        trainer = Trainer(transformer, dataclasses.replace(train, accumulate=1), strategy)
        for pairs, *lengths in shapes:
            trainer.step(*(tf.fill((pairs, length), rows - 1) for length in lengths)).numpy()
    except (tf.errors.ResourceExhaustedError, MemoryError):
        return None
    if gpus:
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return _most_resident() - before


def _most_resident() -> int:
    """The most bytes of memory that this program has had; `getrusage` has its parent's in it."""
    return linux_bytes("/proc/self/status", "VmHWM")


def _limit_memory() -> None:
    """Makes allocations fail when memory is used up, instead of having the system kill someone."""
    import resource  # not on Windows

    used = linux_bytes("/proc/self/status", "VmData")
    limit, hard = resource.getrlimit(resource.RLIMIT_DATA)
    left = _available()
    if limit != resource.RLIM_INFINITY:
        left = min(left, max(0, limit - used))
    resource.setrlimit(resource.RLIMIT_DATA, (used + int(_SHARE * left), hard))


def _available() -> int:
    """Bytes that this machine, or the container, has left."""
    left = linux_bytes("/proc/meminfo", "MemAvailable")
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        left = min(left, limit - used)
    return left
