"""The arithmetic of the values that TensorBoard shows."""

import types

import keras
import pytest

from t2t_repro.config import Model
from t2t_repro.model import flops

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="batches are TensorFlow's"
)


@pytest.fixture
def stats(monkeypatch):
    """Return two steps of batches of 2 x 3 source and 2 x 4 target cells; the clock is at 100 s."""
    import tensorflow as tf

    from t2t_repro.training import step_stats

    ours = types.SimpleNamespace(monotonic=lambda: 102.5)
    monkeypatch.setattr(step_stats, "time", ours)
    source = tf.constant([[5, 6, 1], [7, 1, 0]])
    target = tf.constant([[5, 6, 7, 1], [1, 0, 0, 0]])
    stats = step_stats.StepStats(began=100.0)
    for _ in range(2):
        stats.add_batch(source, target, waited=0.5)
    stats.add_step(tf.constant([20.0, 10.0, 5.0, 0.5]))  # 5 target tokens, padding left out
    stats.add_step(tf.constant([20.0, 10.0, 5.0, 1.5]))
    return stats


def test_values_are_means_and_rates(stats):
    model = Model(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4)
    values = stats.values(model, rows=60, peak_tflops=1e-6)
    seconds = 2.5
    assert values["loss"] == pytest.approx(40 / 10)
    assert values["perplexity"] == pytest.approx(2.718281828**2)
    assert (values["gradient_norm"], values["gradient_norm_max"]) == (1.0, 1.5)
    assert values["skipped_steps"] == 0
    assert values["target_tokens_per_s"] == pytest.approx(10 / seconds)
    assert values["padding_share"] == pytest.approx(1 - (5 + 5) / (6 + 8))
    assert values["input_share"] == pytest.approx(2 * 0.5 / seconds)
    total = flops.training_flops(model, 60, flops.positions([(2, 3, 4)] * 2)).total
    assert values["tflops"] == pytest.approx(total / seconds / 1e12)
    assert values["peak_share"] == pytest.approx(values["tflops"] / 1e-6)


def test_skipped_steps_count_for_no_mean(stats):
    import tensorflow as tf

    model = Model(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4)
    before = stats.values(model, rows=60, peak_tflops=1e-6)
    stats.add_step(tf.constant([0.0, 0.0, 0.0, float("inf")]))
    after = stats.values(model, rows=60, peak_tflops=1e-6)
    assert after == before | {"skipped_steps": 1}
