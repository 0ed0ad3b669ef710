"""The time that a call spends in each kind of operation."""

import keras
import pytest

from t2t_repro.bench.op_times import _kind, op_times

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's profiler"
)


def test_operations_are_counted_by_kind():
    import tensorflow as tf

    x = tf.random.normal((300, 300))

    @tf.function
    def call():
        return tf.nn.softmax(tf.linalg.matmul(tf.linalg.matmul(x, x), x))

    call()
    times = {op.kind: op for op in op_times(call)}
    assert (times["MatMul"].calls, times["Softmax"].calls) == (2, 1)
    assert all(0 < op.seconds < 10 for op in times.values())
    assert list(times) == sorted(times, key=lambda kind: -times[kind].seconds)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("decode/while/body/dense/MatMul:_MklNativeFusedMatMul", "MatMul"),
        ("x/BatchMatMul:_MklBatchMatMulV2", "BatchMatMul"),
        ("GatherV2:GatherV2#id=3", "Gather"),
        ("TopKV2:TopKV2", "TopK"),
        ("_Send:_Send", "Send"),
        (":__inference_decode_7825", None),
        ("ThreadpoolListener::StartRegion", None),
        ("EagerExecute", None),
    ],
)
def test_kinds_are_named_as_what_they_compute(name, kind):
    assert _kind(name) == kind
