"""The time that a call spends in each kind of TensorFlow operation."""

import re
import tempfile
import typing
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path


class OpTime(typing.NamedTuple):
    """The operations of one kind that ran during a call."""

    kind: str  # such as "MatMul"
    seconds: float  # summed over all threads, so it may exceed the time on the clock
    calls: int


def op_times(call: Callable[[], object]) -> list[OpTime]:
    """Run `call` once under TensorFlow's profiler and return its operations, slowest kind first.

    Operations that contain others, such as a whole function, are left out. An operation that
    TensorFlow fuses or runs in oneDNN counts under its plain name: `_MklFusedMatMul` is `MatMul`.
    A function compiled by XLA is a single operation.
    """
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            call()
        space = xplane_pb2.XSpace()
        for path in Path(folder).rglob("*.xplane.pb"):
            space.MergeFromString(path.read_bytes())
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                if kind := _kind(plane.event_metadata[event.metadata_id].name):
                    seconds[kind] += event.duration_ps / 1e12
                    counts[kind] += 1
    longest = sorted(seconds, key=lambda kind: -seconds[kind])
    return [OpTime(kind, seconds[kind], counts[kind]) for kind in longest]


def _kind(name: str) -> str | None:
    """Return the kind from an operation's event name, "<name in the graph>:<kind>", else None."""
    found = re.fullmatch(r"[^:]+:_?(?:Mkl)?(?:Native)?(?:Fused)?([A-Z]\w*?)(?:V\d)?(?:#.*)?", name)
    return found[1] if found else None
