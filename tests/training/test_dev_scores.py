"""Dev scores that cannot be computed."""

import pytest
import tensorflow as tf

from pipelines.errors import BadInput
from t2t_repro import experiment
from t2t_repro.training.dev_scores import DevScores
from t2t_repro.training.trainer import Trainer
from t2t_repro.workdir import Workdir


def test_too_little_memory_to_translate_is_told_with_a_way_to_go_on(tiny_run, tmp_path):
    """Micro-batches, the way out for a step, would take nothing off the search."""

    def make_translator():
        raise tf.errors.ResourceExhaustedError(None, None, "failed to allocate 9 GB\nmore")

    run = experiment.restore(Workdir(tiny_run), {"eval_sentences": 3})
    trainer = Trainer(run.model, run.config.train, run.strategy)
    given = run.config, run.problem, trainer, make_translator, run.corpus.held_out("dev")
    scores = DevScores(*given, Workdir(tmp_path))
    with pytest.raises(BadInput, match=r"translate \(failed to allocate 9 GB\).*eval_sentences=0"):
        scores.validate(1)
