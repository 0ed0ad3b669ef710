"""Which steps a profile records; `test_loop` looks at what is written."""

import pytest
import tensorflow as tf

from t2t_repro.training.profile import Profile


@pytest.fixture
def calls(monkeypatch):
    """Return the calls of TensorFlow's profiler, which does nothing else."""
    calls = []
    profiler = tf.profiler.experimental
    monkeypatch.setattr(profiler, "start", lambda directory: calls.append("start"))
    monkeypatch.setattr(profiler, "stop", lambda: calls.append("stop"))
    return calls


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (range(1, 7), [2, "start", 3, 4, "stop", 5, 6]),
        (range(4, 7), ["start", 4, "stop", 5, 6]),  # resumed between the first and the last
        (range(5, 7), [5, 6]),
    ],
)
def test_all_steps_between_the_first_and_the_last_that_are_made(tmp_path, calls, made, expected):
    profile = Profile(tmp_path, 3, 4)
    for number in made:
        with profile.of_step(number):
            calls.append(number)
    assert [call for call in calls if call != 1] == expected
    assert profile.has_any(made[0], made[-1]) == ("start" in expected)
