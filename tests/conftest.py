"""What several test files share: tiny models whose every weight is random."""

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


@pytest.fixture(scope="session")
def build():
    """A function that makes a tiny Transformer; keyword arguments replace those of TINY."""
    from t2t_repro.config import Model
    from t2t_repro.transformer import Transformer

    def build(dtype="float32", seed=1, **changes):
        model = Transformer(Model(**TINY | changes), dtype=dtype)
        rng = np.random.default_rng(seed)
        for variable in model.trainable_variables:  # biases and norms too, which start trivial
            center = 1.0 if variable.path.endswith("gamma") else 0.0
            variable.assign(rng.normal(center, 0.3, variable.shape).astype("float32"))
        return model

    return build
