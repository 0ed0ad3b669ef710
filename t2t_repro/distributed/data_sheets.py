"""The speed that GPUs are assumed to sustain, from their data sheets and the paper's footnote 5."""

import re
from typing import NamedTuple


class Sustained(NamedTuple):
    """The speed that a GPU is assumed to sustain."""

    tflops: float
    source: str


class _Gpu(NamedTuple):
    float32: float  # TFLOPS; TF32 where the GPU has it, since TensorFlow and JAX use it
    bfloat16: float
    source: str


_FOOTNOTE = "sustained in single precision, by the paper's footnote 5"
# The paper assumes 90 % of the data sheet's 10.6 for P100, and 86 % of 7.0 for M40.
_PEAK = "the data sheet's dense peak, assumed to be sustained: an upper bound"
_FP16 = f"{_PEAK}; the 16-bit figure is for float16, since the hardware has no bfloat16"
# {pattern for words of the GPU's name: its speeds}. `_SLOWER` names variants that are slower.
_GPUS = {
    "K80": _Gpu(2.8, 2.8, _FOOTNOTE),
    "K40m?": _Gpu(3.7, 3.7, _FOOTNOTE),
    "M40": _Gpu(6.0, 6.0, _FOOTNOTE),
    "P100": _Gpu(9.5, 9.5, _FOOTNOTE),
    "V100": _Gpu(15.7, 125, _FP16),
    "T4": _Gpu(8.1, 65, _FP16),
    "A100": _Gpu(156, 312, _PEAK),
    "L4": _Gpu(60, 121, _PEAK),
    "RTX 4090": _Gpu(82.6, 165, _PEAK),
    "H100": _Gpu(494, 989, _PEAK),  # SXM
    "H200": _Gpu(494, 989, _PEAK),
    "B200": _Gpu(1125, 2250, _PEAK),
}
_SLOWER = re.compile(r"MIG|NVL|Laptop|4090 D|H100 PCIe|V100-PCIE")


def sustained(device: str, precision: str) -> Sustained | None:
    """Return the speed that a device is assumed to sustain, or None if it is not in the table.

    Args:
        device: The driver's name for it, such as "NVIDIA H100 80GB HBM3".
        precision: "float32", or "mixed_bfloat16" or "bfloat16".
    """
    for name, gpu in _GPUS.items():
        if re.search(rf"\b{name}\b", device) and not _SLOWER.search(device):
            return Sustained(
                gpu.bfloat16 if precision.endswith("bfloat16") else gpu.float32, gpu.source
            )
    return None
