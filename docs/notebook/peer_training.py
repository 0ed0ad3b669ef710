r"""Measure other toolkits' training steps on the workloads of `t2t_repro.bench train`.

    echo 'int mkl_serv_intel_cpu_true(void) { return 1; }' | cc -shared -fPIC -x c - -o intel.so
    LD_PRELOAD=./intel.so OMP_NUM_THREADS=2 GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
        MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 \
        MALLOC_TOP_PAD_=268435456 python docs/notebook/peer_training.py marian base

The variables tune PyTorch: the library makes MKL use its best code on processors of other makers,
and glibc keeps large blocks and uses huge pages. For OpenNMT-tf the script sets
TF_ENABLE_ONEDNN_OPTS=1, as the project's own commands do. Each toolkit needs an environment of its
own, without this project:

    marian, marian_eager  Python 3.11; pip install torch==2.13.0 transformers
    torch                 Python 3.11; pip install torch==2.13.0 numpy
    fairseq               Python 3.10; pip install 'pip<24.1' 'setuptools<70', then
                          torch==2.13.0 'numpy<1.24', then fairseq==0.12.2
    opennmt_tf            Python 3.11; pip install tensorflow==2.13.1 'numpy<1.25'
                          'setuptools<70', then OpenNMT-tf==2.32.0

A step is forward pass, loss with label smoothing 0.1, backward pass and Adam, on one batch of
random pieces without padding. All models have one embedding matrix for source, target and output,
and dropout 0.1 where the paper has it, so not on attention weights or inside feed-forward.
PyTorch's Adam is its fused one.
"""

import argparse
import os
import statistics
import time
from typing import NamedTuple

PAD, BOS, FIRST = 1, 2, 4  # ids; pieces of text have the ids from FIRST on


class Workload(NamedTuple):
    """A model and its batch: `batch` pairs of `length` pieces per side."""

    layers: int  # of the encoder, and of the decoder
    d_model: int
    d_ff: int
    heads: int
    rows: int  # of the embedding matrix
    batch: int
    length: int


# Those of `t2t_repro.bench train`.
WORKLOADS = {
    "base": Workload(6, 512, 2048, 8, rows=32_000, batch=32, length=64),
    "tiny": Workload(4, 128, 256, 4, rows=10_000, batch=128, length=24),
}
PEERS = "marian", "marian_eager", "torch", "fairseq", "opennmt_tf"


def main() -> None:
    """Print target tokens per second, from the median of the steps after the third."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("peer", choices=PEERS)
    flags.add_argument("size", choices=list(WORKLOADS))
    flags.add_argument("--bfloat16", action="store_true", help="mixed precision")
    flags.add_argument("--compile", action="store_true", help="torch.compile, or XLA")
    flags.add_argument("--repeats", type=int, default=10)
    given = flags.parse_args()
    if given.peer == "opennmt_tf":
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
        from opennmt_tf_peer import step_of
    else:
        from pytorch_peers import step_of
    workload, seconds = WORKLOADS[given.size], []
    step = step_of(given.peer, workload, given.bfloat16, given.compile)
    for _ in range(3 + given.repeats):
        began = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds[3:])
    precision = ("bfloat16" if given.bfloat16 else "float32") + ", compiled" * given.compile
    tokens = workload.batch * workload.length
    print(
        f"{given.peer} {given.size} {precision}: {tokens / median:,.0f} target tokens per "
        f"second, {median * 1e3:,.0f} ms a step, loss {loss:.2f}"
    )


if __name__ == "__main__":
    main()
