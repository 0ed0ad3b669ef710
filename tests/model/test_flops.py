"""FLOPs and parameters by count, against the operations of the real graph and numbers by hand."""

import math

import keras
import pytest

from t2t_repro.config import Model
from t2t_repro.model import fast_ops, flops

ROWS = 23
# A different number for every size, so that no two can be swapped.
MODEL = Model(num_layers=2, d_model=12, d_ff=20, num_heads=3, d_k=5, d_v=7, embedding_rows=ROWS)
SHAPE = (4, 6, 9)


def count(model=MODEL, rows=ROWS, shape=SHAPE):
    return flops.training_flops(model, rows, flops.positions([shape]))


def test_weights_are_those_of_the_papers_matrices():
    """Base, by hand: 4 projections of 512 x 512 and 2 of 512 x 2048 per layer, and so on (3.1)."""
    attention, feed_forward = 4 * 512**2, 2 * 512 * 2048
    weights = flops.matrix_weights(Model(), 40960)
    assert weights.source == 6 * (attention + feed_forward + attention / 2)
    assert weights.target == 6 * (attention + feed_forward + attention / 2) + 40960 * 512


def test_weights_are_all_of_the_model_that_have_two_axes(build):
    model = build()
    matrices = sum(math.prod(v.shape) for v in model.trainable_variables if len(v.shape) == 2)
    assert sum(flops.matrix_weights(model.config, ROWS)) == matrices


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="reads TensorFlow's graph")
@pytest.mark.parametrize("shape", [SHAPE, (4, 9, 6)])
def test_count_is_that_of_the_products_in_the_real_graph(build, shape, monkeypatch):
    import tensorflow as tf

    from t2t_repro.training.loss import output_cross_entropy

    # Sums that are computed as products do not count.
    monkeypatch.setattr(fast_ops, "column_sums", fast_ops.plain_column_sums)
    model = build(dropout=0.0)
    batch, s, t = shape
    specs = [tf.TensorSpec([batch, length], tf.int32) for length in (s, t)]

    def forward(source, target):
        return model(source, target)

    def gradients(source, target):
        with tf.GradientTape() as tape:
            vectors, matrix = model.vectors(source, target, training=True), model.embedding.matrix
            loss = output_cross_entropy(vectors, matrix.value, target, 0.1)[0]
        return tape.gradient(loss, model.trainable_variables)

    counted = flops.training_flops(model.config, ROWS, flops.positions([shape]))
    assert products(tf.function(forward, autograph=False), specs) == counted.total / 3
    assert products(tf.function(gradients, autograph=False), specs) == counted.total


def products(function, specs):
    """Return the FLOPs of all matrix products in the function's graph, from their static shapes."""
    total = 0
    for operation in function.get_concrete_function(*specs).graph.get_operations():
        if operation.type not in ("MatMul", "BatchMatMulV2", "BatchMatMulV3"):
            assert "MatMul" not in operation.type
            assert operation.type != "Einsum"
            continue
        name = "transpose_a" if operation.type == "MatMul" else "adj_x"
        rows_and_columns = operation.inputs[0].shape[-2:]
        inner = rows_and_columns[0 if operation.get_attr(name) else 1]
        total += 2 * math.prod(operation.outputs[0].shape) * inner
    return total


def test_attention_grows_with_the_square_of_the_length_the_rest_with_the_length():
    once, twice = count(shape=(4, 6, 6)), count(shape=(4, 12, 12))
    assert twice.matrices == 2 * once.matrices
    assert twice.attention == 4 * once.attention
    assert once.total == once.matrices + once.attention


def test_source_and_target_have_their_own_part():
    source, target = count(shape=(1, 1, 0)), count(shape=(1, 0, 1))
    weights = flops.matrix_weights(MODEL, ROWS)
    assert (source.matrices, target.matrices) == (6 * weights.source, 6 * weights.target)


def test_positions_of_batches():
    assert flops.positions([(2, 3, 5), (1, 7, 4)]) == (13, 14, 18 + 49, 50 + 16, 30 + 28)
    assert flops.positions([]) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("changes", [{}, {"learned_positions": 11}, {"num_layers": 1, "d_k": 2}])
def test_parameters_are_those_of_the_model(build, changes):
    model = build(**changes)
    assert flops.trainable_parameters(model.config, ROWS) == model.count_params()
