"""Which of TensorFlow's operations the time of a call goes to."""

import re
import tempfile
import typing
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path


class OpTime(typing.NamedTuple):
    """All operations of one kind, over one call."""

    kind: str  # such as "MatMul"
    seconds: float  # on all threads together, so the sum may exceed the time on the clock
    calls: int


def op_times(call: Callable[[], object]) -> list[OpTime]:
    """Runs `call` once under TensorFlow's profiler; the kinds that take longest come first.

    Operations that contain others, such as a whole function, are left out. Those that TensorFlow
    runs in oneDNN or has fused keep the name of the product that they are: `_MklFusedMatMul` is
    told as `MatMul`. One compiled by XLA is a single operation.
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
    """The kind in an event's name, which for an operation is "<name in the graph>:<kind>"."""
    found = re.fullmatch(r"[^:]+:_?(?:Mkl)?(?:Native)?(?:Fused)?([A-Z]\w*?)(?:V\d)?(?:#.*)?", name)
    return found[1] if found else None
