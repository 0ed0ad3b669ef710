"""The schedule at points computed by hand from equation 3."""

import keras
import pytest

from t2t_repro.config import Train
from t2t_repro.training.optimizer import make_optimizer
from t2t_repro.training.schedule import NoamSchedule


def rate(schedule, step):
    """Return the learning rate of update number `step`, counted from 1 as in the paper."""
    return float(schedule(step - 1))


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_peak_is_at_step_4000(d_model, peak):
    schedule = NoamSchedule(d_model)
    assert rate(schedule, 4000) == pytest.approx(peak, abs=0.005e-4)
    assert rate(schedule, 3999) < rate(schedule, 4000) > rate(schedule, 4001)


def test_first_update_is_step_1():
    assert float(NoamSchedule(512)(0)) == pytest.approx(512**-0.5 * 4000**-1.5, rel=1e-6)


def test_rises_linearly_and_falls_with_the_inverse_root():
    schedule = NoamSchedule(512)
    assert rate(schedule, 3000) == pytest.approx(3 * rate(schedule, 1000), rel=1e-6)
    assert rate(schedule, 100_000) == pytest.approx(rate(schedule, 4000) / 5, rel=1e-6)


def test_scale_multiplies():
    assert rate(NoamSchedule(512, 100, scale=3.0), 7) == pytest.approx(
        3 * rate(NoamSchedule(512, 100), 7), rel=1e-6
    )


def test_cooldown_falls_linearly_to_zero_after_the_last_step():
    plain = NoamSchedule(64, warmup_steps=10)
    cooled = NoamSchedule(64, warmup_steps=10, cooldown_steps=40, train_steps=100)
    shares = [rate(cooled, step) / rate(plain, step) for step in (1, 61, 81, 100, 101)]
    assert shares == pytest.approx([1, 1, 0.5, 1 / 40, 0])


def test_a_share_of_a_runs_updates_cools_down():
    config = Train(train_steps=20, warmup_steps=1, cooldown_share=0.5)
    plain = NoamSchedule(512, warmup_steps=1)
    for step, share in ((10, 1.0), (11, 1.0), (16, 0.5), (20, 0.1)):
        optimizer = make_optimizer(config, 512)
        optimizer.iterations.assign(step - 1)
        assert float(optimizer.learning_rate) == pytest.approx(share * rate(plain, step), rel=1e-5)


def test_serialisation_keeps_every_argument():
    arguments = {
        "d_model": 64,
        "warmup_steps": 30,
        "scale": 2.0,
        "cooldown_steps": 5,
        "train_steps": 90,
    }
    schedules = keras.optimizers.schedules
    saved = schedules.serialize(NoamSchedule(**arguments))
    loaded = schedules.deserialize(saved, custom_objects={"NoamSchedule": NoamSchedule})
    assert vars(loaded) == arguments


def test_optimizer_takes_the_rate_of_the_coming_update():
    optimizer = keras.optimizers.SGD(NoamSchedule(512, warmup_steps=10))
    weight = keras.Variable([0.0])
    for _ in range(2):
        optimizer.apply([keras.ops.ones(1)], [weight])
    first_two = 512**-0.5 * (1 + 2) * 10**-1.5
    assert float(weight[0]) == pytest.approx(-first_two, rel=1e-6)
