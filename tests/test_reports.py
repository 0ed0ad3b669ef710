"""What a run says of itself before it trains."""

import pytest

from t2t_repro import reports

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


@pytest.mark.parametrize(
    ("precision", "device", "has_it", "is_told"),
    [
        ("mixed_bfloat16", CPU, False, True),
        ("mixed_bfloat16", CPU, True, False),
        ("mixed_bfloat16", CPU, None, False),  # not known, as on a Mac
        ("mixed_bfloat16", CPU.replace("CPU", "GPU"), False, False),
        ("float32", CPU, False, False),
    ],
)
def test_who_emulates_bfloat16_is_told(monkeypatch, precision, device, has_it, is_told):
    monkeypatch.setattr(reports, "cpu_has", lambda *names: has_it)
    advice = reports.precision_advice(precision, device)
    assert bool(advice) == is_told
    assert not advice or "--precision=float32" in advice
