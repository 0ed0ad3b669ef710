"""Shared fixtures, such as tiny random and trained models, and the order of the test files."""

import fcntl
import gc
import os
import platform
import shutil
from itertools import islice

import commands
import numpy as np
import pytest

# One thread per operation, because two test processes share two cores. TensorFlow reads its
# variable on import, and child processes inherit it.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for PyTorch, CTranslate2 and NumPy
# What JAX compiles in tests runs for less time than it is compiled: many_seeds.py takes 49 s in
# place of 92.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ["COLUMNS"] = "80"  # else argparse breaks help where a test does not expect it
# As `tensorflow_import` does: most tests import TensorFlow without it.
if platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# No two sizes are equal, and d_k, d_v and d_model / h differ, so that a swap cannot pass.
TINY = {
    "num_layers": 2,
    "d_model": 12,
    "d_ff": 20,
    "num_heads": 3,
    "d_k": 5,
    "d_v": 7,
    "dropout": 0.1,
    "embedding_rows": 23,
}

# The longest files of each tier run first: pytest-xdist keeps a file on one worker, and a long file
# at the end would leave the other worker idle. test_end_to_end.py comes before the other files that
# use `tiny_run`, so that no worker waits for the other one to train it.
FIRST = (
    *("test_end_to_end.py", "training/test_trainer.py", "training/test_loop.py"),
    *("distributed/test_workers.py", "test_jax_backend.py", "training/test_memory_fit.py"),
    "bench/test_table3.py",
)


def pytest_collection_modifyitems(items):
    """Sort the files of FIRST to the front, in that order."""
    place = {name: number for number, name in enumerate(FIRST)}

    def key(item):
        path = item.path.as_posix()
        return next((place[name] for name in FIRST if path.endswith(f"tests/{name}")), len(FIRST))

    items.sort(key=key)


def pytest_collection_finish():
    """Exempt what the imports made, a million objects, from garbage collection.

    Collections took 4.6 % of the time of tests/training with them.
    """
    gc.freeze()


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Return a function that returns the folder `name`, filled with `make` by the first caller.

    The folder is in the directory that all workers of a session share; a lock on a file makes the
    other workers wait until the folder is complete.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def once(name, make):
        made, done = folder / name, folder / f"{name}.done"
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(made, ignore_errors=True)
                made.mkdir()
                make(made)
                done.touch()
        return made

    return once


@pytest.fixture(scope="session")
def build():
    """Return a function that makes a tiny Transformer; its arguments replace those of TINY."""
    from t2t_repro.config import Model
    from t2t_repro.model.transformer import Transformer

    def build(dtype="float32", seed=1, **changes):
        model = Transformer(Model(**TINY | changes), dtype=dtype)
        rng = np.random.default_rng(seed)
        for variable in model.trainable_variables:  # biases and norms too, which start at 0 and 1
            center = 1.0 if variable.path.endswith("gamma") else 0.0
            variable.assign(rng.normal(center, 0.3, variable.shape).astype("float32"))
        return model

    return build


@pytest.fixture(scope="session")
def toy_pairs():
    """Return 300 pairs of toy_ende."""
    from pipelines.toy import toy_ende

    return list(islice(toy_ende.examples("train"), 300))


@pytest.fixture(scope="session")
def toy_vocabulary(toy_pairs):
    """Return a vocabulary of 600 pieces learnt on `toy_pairs`."""
    from pipelines.vocabulary import Vocabulary

    return Vocabulary.learn((text for pair in toy_pairs for text in pair.values()), 600)


@pytest.fixture(scope="session")
def toy_split(toy_pairs, toy_vocabulary, tmp_path_factory):
    """Return `toy_pairs` as an encoded split."""
    from pipelines.encode import encode_split
    from pipelines.shards import EncodedSplit

    directory = tmp_path_factory.mktemp("toy")
    encode_split(lambda: toy_pairs, toy_vocabulary, 256, directory)
    return EncodedSplit.load(directory)


@pytest.fixture(scope="session")
def tiny_run(once):
    """Return the work directory of a run of toy_ende that has learnt to end sentences.

    `python -m t2t_repro.train` trains the run, in a process of its own, once for all workers; the
    file `stderr` beside the directory holds the command's output. Tests copy the run before they
    change it.
    """
    flags = {"num_layers": 1, "d_model": 48, "d_ff": 96, "num_heads": 3, "d_k": 12, "d_v": 20}
    flags |= {"vocabulary_size": 500, "dropout": 0, "warmup_steps": 100, "train_steps": 500}
    flags |= {"checkpoint_steps": 490, "eval_sentences": 0, "average_last": 2}
    flags |= {"max_extra_length": 20}

    def train(folder):
        given = (f"--{name}={value}" for name, value in flags.items())
        done = commands.python("-m", "t2t_repro.train", f"--workdir={folder / 'run'}", *given)
        assert done.stdout == b""
        (folder / "stderr").write_bytes(done.stderr)

    return once("tiny", train) / "run"
