"""What several test files share: tiny models, one kind random and one trained."""

from itertools import islice

import numpy as np
import pytest

# No two of these are equal, and d_k, d_v and d_model / h differ, so that a swap cannot pass.
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

# Minutes each, and one after another if they came last: each file runs on one core.
LONGEST = (
    *("distributed/test_workers.py", "test_jax_backend.py"),
    *("training/test_trainer.py", "bench/test_table3.py"),
)


def pytest_collection_modifyitems(items):
    """The longest files first."""
    items.sort(key=lambda item: not str(item.path).endswith(LONGEST))


@pytest.fixture(scope="session")
def build():
    """A function that makes a tiny Transformer; keyword arguments replace those of TINY."""
    from t2t_repro.config import Model
    from t2t_repro.model.transformer import Transformer

    def build(dtype="float32", seed=1, **changes):
        model = Transformer(Model(**TINY | changes), dtype=dtype)
        rng = np.random.default_rng(seed)
        for variable in model.trainable_variables:  # biases and norms too, which start trivial
            center = 1.0 if variable.path.endswith("gamma") else 0.0
            variable.assign(rng.normal(center, 0.3, variable.shape).astype("float32"))
        return model

    return build


@pytest.fixture(scope="session")
def toy_pairs():
    """300 pairs of toy_ende."""
    from pipelines.toy import toy_ende

    return list(islice(toy_ende.examples("train"), 300))


@pytest.fixture(scope="session")
def toy_vocabulary(toy_pairs):
    """Learnt from them."""
    from pipelines.vocabulary import Vocabulary

    return Vocabulary.learn((text for pair in toy_pairs for text in pair.values()), 600)


@pytest.fixture(scope="session")
def toy_split(toy_pairs, toy_vocabulary, tmp_path_factory):
    """The pairs, prepared."""
    from pipelines.encode import encode_split
    from pipelines.shards import EncodedSplit

    directory = tmp_path_factory.mktemp("toy")
    encode_split(lambda: toy_pairs, toy_vocabulary, 256, directory)
    return EncodedSplit.load(directory)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """The work directory of a run of toy_ende that has learnt to end sentences; takes 20 s."""
    import tensorflow as tf

    from t2t_repro import config, experiment
    from t2t_repro.workdir import Workdir

    workdir = tmp_path_factory.mktemp("tiny") / "run"
    size = {"num_layers": 1, "d_model": 48, "d_ff": 96, "num_heads": 3, "d_k": 12, "d_v": 20}
    short = {"vocabulary_size": 500, "dropout": 0.0, "warmup_steps": 100, "train_steps": 500}
    ends = {"checkpoint_steps": 490, "eval_sentences": 0, "average_last": 2, "max_extra_length": 20}
    settings = config.resolve("toy_ende", overrides=size | short | ends)
    experiment.train(
        experiment.build(settings, Workdir(workdir), tf.distribute.OneDeviceStrategy("CPU:0"))
    )
    return workdir
