"""The loss against numbers from the formulas of section 5.4."""

import keras
import numpy as np
import pytest

from t2t_repro.training.loss import cross_entropy, output_cross_entropy


def sums(logits, target, label_smoothing=0.0):
    smoothed, unsmoothed, tokens = cross_entropy(
        np.asarray(logits, "float32"), np.asarray(target, "int32"), label_smoothing
    )
    return float(smoothed), float(unsmoothed), float(tokens)


def test_smoothing_spreads_eps_over_all_classes():
    # P = (1/2, 1/4, 1/4, tiny); 0.8 on the token and 0.2 / 4 on each class, the token included.
    p = np.array([1 / 2, 1 / 4, 1 / 8, 1 / 8])
    smoothed, unsmoothed, tokens = sums([[np.log(p) + 3]], [[1]], label_smoothing=0.2)
    assert smoothed == pytest.approx(-np.dot([0.05, 0.85, 0.05, 0.05], np.log(p)), rel=1e-6)
    assert unsmoothed == pytest.approx(np.log(4), rel=1e-6)
    assert tokens == 1


def test_no_smoothing_is_the_plain_cross_entropy():
    logits = np.random.default_rng(0).normal(size=(2, 3, 5))
    smoothed, unsmoothed, _ = sums(logits, [[3, 2, 1], [4, 1, 1]])
    assert smoothed == pytest.approx(unsmoothed, rel=1e-6)


def test_losses_are_sums_over_the_tokens():
    logits = np.random.default_rng(0).normal(size=(1, 3, 5))
    each = [sums(logits[:, i : i + 1], [[token]], 0.1) for i, token in enumerate((3, 2, 1))]
    assert sums(logits, [[3, 2, 1]], 0.1) == pytest.approx(np.sum(each, axis=0), rel=1e-6)


def test_padding_counts_nothing():
    logits = np.random.default_rng(0).normal(size=(2, 3, 5))
    padded = sums(logits, [[3, 1, 0], [0, 0, 0]], 0.1)
    assert padded == pytest.approx(sums(logits[:1, :2], [[3, 1]], 0.1), rel=1e-6)


def test_a_batch_without_sentences_costs_nothing():
    target = np.zeros((0, 3), "int32")
    assert sums(np.zeros((0, 3, 5)), target, 0.1) == (0, 0, 0)
    matrix = keras.Variable(np.ones((5, 4)), dtype="float32")
    sums_of_vectors = output_cross_entropy(np.zeros((0, 3, 4), "float32"), matrix, target, 0.1)
    assert [float(each) for each in sums_of_vectors] == [0, 0, 0]


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary():
    target = [[1, 2, 3], [4, 1, 0]]
    smoothed, unsmoothed, tokens = sums(np.full((2, 3, 7), 2.5), target, 0.1)
    assert smoothed == pytest.approx(5 * np.log(7), rel=1e-6)
    assert np.exp(unsmoothed / tokens) == pytest.approx(7, rel=1e-6)


def test_large_logits_do_not_overflow():
    smoothed, unsmoothed, _ = sums([[[500, -500]]], [[1]], 0.5)
    assert unsmoothed == 1000
    assert smoothed == 0.5 * 1000 + 0.5 * (1000 / 2)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="differentiates with TensorFlow"
)
@pytest.mark.parametrize("which", [0, 1])
def test_gradients_are_those_of_the_formula(which):
    """Both sums are compared with TensorFlow's gradients for one-hot targets and log-softmax."""
    import tensorflow as tf

    logits = tf.constant(np.random.default_rng(0).normal(size=(2, 3, 5)), tf.float32)
    target = np.array([[3, 1, 0], [4, 2, 1]], "int32")
    smooth = 0.2 if which == 0 else 0.0
    labels = (1 - smooth) * tf.one_hot(target, 5) + smooth / 5
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        ours = 3.0 * cross_entropy(logits, target, 0.2)[which]
        costs = -tf.reduce_sum(labels * tf.nn.log_softmax(logits), axis=-1)
        expected = 3.0 * tf.reduce_sum(tf.where(target != 0, costs, 0.0))
    assert float(ours) == pytest.approx(float(expected), rel=1e-6)
    gradient = tape.gradient(ours, logits).numpy()
    np.testing.assert_allclose(gradient, tape.gradient(expected, logits), atol=1e-6)
    assert not gradient[0, 2].any()


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="differentiates with TensorFlow"
)
def test_gradient_of_an_impossible_target_is_finite():
    import tensorflow as tf

    logits = tf.constant([[[0.0, 200.0, -200.0]]])  # softmax gives the target 0 exactly
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = cross_entropy(logits, np.array([[2]], "int32"), 0.0)[0]
    assert float(loss) == 400
    np.testing.assert_array_equal(tape.gradient(loss, logits).numpy(), [[[0, 1, -1]]])
