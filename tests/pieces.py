"""Encoded splits: their ids read back, and the batches that a run makes of them."""

import numpy as np


def pieces(split):
    """Return (source, target) of every pair of a split, in order, without padding."""
    sides = split.padded(np.arange(len(split)), *split.lengths.max(0))
    return [
        tuple([i for i in row if i != 0] for row in pair)
        for pair in zip(*(side.tolist() for side in sides), strict=True)
    ]


def toy_batches(workdir, settings):
    """Return the training batches of a new run of toy_ende with these settings."""
    from t2t_repro import config, run_text
    from t2t_repro.workdir import Workdir

    resolved = config.resolve("toy_ende", overrides=settings)
    corpus = run_text.corpus_of(resolved, Workdir(workdir))
    return run_text.training_batches(resolved, corpus)
