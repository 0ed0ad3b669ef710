"""Which GPUs have a sustained speed in the table, by their drivers' names."""

import pytest

from t2t_repro.distributed.data_sheets import sustained


@pytest.mark.parametrize(
    ("device", "float32", "bfloat16"),
    [
        ("Tesla K80", 2.8, 2.8),  # the four GPUs of the paper's footnote 5
        ("Tesla K40m", 3.7, 3.7),
        ("Tesla M40 24GB", 6.0, 6.0),
        ("Tesla P100-PCIE-16GB", 9.5, 9.5),
        ("Tesla V100-SXM2-32GB", 15.7, 125),
        ("NVIDIA A100-SXM4-80GB", 156, 312),
        ("NVIDIA H100 80GB HBM3", 494, 989),
        ("NVIDIA H200", 494, 989),
        ("NVIDIA L4", 60, 121),
        ("NVIDIA GeForce RTX 4090", 82.6, 165),
        # Similar names of slower GPUs, and names that are not in the table.
        ("Tesla V100-PCIE-16GB", None, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, None),
        ("NVIDIA H100 PCIe", None, None),
        ("NVIDIA H100 NVL", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA L40S", None, None),
        ("NVIDIA GeForce GTX 1080", None, None),
        ("CPU", None, None),
    ],
)
def test_sustained_speed_of_a_device(device, float32, bfloat16):
    found = [sustained(device, p) for p in ("float32", "mixed_bfloat16")]
    assert [f and f.tflops for f in found] == [float32, bfloat16]
    for known in filter(None, found):
        assert "footnote 5" in known.source or "assumed" in known.source
