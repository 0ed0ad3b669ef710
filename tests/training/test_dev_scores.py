"""Dev scores that cannot be computed or written."""

import dataclasses
import shutil
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow.python.summary.summary_iterator import summary_iterator

from pipelines.errors import BadInput
from pipelines.vocabulary import Vocabulary
from t2t_repro import experiment
from t2t_repro.training import dev_scores
from t2t_repro.training.dev_scores import DevScores
from t2t_repro.training.trainer import Trainer
from t2t_repro.workdir import Workdir


@pytest.fixture
def scores_of(tiny_run, tmp_path):
    """Return a function that makes the DevScores of a run, given its translator."""

    def scores_of(make_translator, sentences, parts=1):
        run = experiment.restore(Workdir(tiny_run), {"eval_sentences": sentences})
        trainer = Trainer(run.model, run.config.train, run.strategy)
        trainer.micro_batches = parts
        given = run.config, run.problem, trainer, make_translator, run.corpus.held_out("dev")
        (workdir := Workdir(tmp_path)).save_config(run.config)
        return DevScores(*given, workdir)

    return scores_of


def test_a_batch_of_dev_perplexity_keeps_to_the_budget_or_has_one_pair(scores_of, monkeypatch):
    scores = scores_of(lambda: None, 0)
    budget = int(scores.dev.lengths.max()) + 5
    data = dataclasses.replace(scores.config.data, tokens_per_batch=budget)
    scores.config = dataclasses.replace(scores.config, data=data)
    shapes = []

    def of(batches):
        shapes.extend(side.shape for batch in batches for side in batch)
        return 2.0

    monkeypatch.setattr(scores.perplexity, "of", of)
    assert scores.validate(1) == {"perplexity": 2.0}
    assert sum(rows for rows, _ in shapes[::2]) == len(scores.dev)
    assert max(rows * length for rows, length in shapes) <= budget


def test_dev_perplexity_is_computed_in_the_micro_batches_of_a_step(scores_of):
    one, four = (scores_of(lambda: None, 0, parts).perplexity.micro_batches for parts in (1, 4))
    assert four == 4 * one


def test_the_pair_that_is_drawn_is_short_on_both_sides(scores_of, tiny_run):
    vocabulary = Vocabulary.load(tiny_run)
    scores = scores_of(lambda: SimpleNamespace(vocabulary=vocabulary), 0)
    short, long = "The house.", "house " * 50
    pairs = (long, short), (short, long), (short, short)
    scores.pairs = [{"source": source, "target": target} for source, target in pairs]
    assert scores.drawn == vocabulary.encode([short, short])


def test_nothing_is_drawn_of_a_model_without_attention_weights(scores_of, tiny_run):
    scores = scores_of(lambda: SimpleNamespace(vocabulary=Vocabulary.load(tiny_run)), 0)
    scores.pairs = [{"source": "The house.", "target": "The house."}]
    scores.model = SimpleNamespace(has_attention_weights=False)
    assert scores.drawn is None


def test_translations_are_scored_against_the_references(monkeypatch):
    lines = [SimpleNamespace(translation="A"), SimpleNamespace(translation="B")]
    monkeypatch.setattr(dev_scores, "translate_lines", lambda translator, sources: iter(lines))
    problem = SimpleNamespace(score=lambda *given: given)
    pairs = [{"source": "a", "target": "1"}, {"source": "b", "target": "2"}]
    given, hypotheses = dev_scores.score_pairs(None, problem, "config", pairs)
    assert given == (["A", "B"], ["1", "2"], "config", ["a", "b"])
    assert hypotheses == ["A", "B"]


def test_a_bar_in_a_sentence_divides_no_cell():
    *_, row = dev_scores._table(["a | b"], ["c"], ["d"]).splitlines()
    assert row == "| a \\| b | c | d |"


def points(directory):
    """Return {(name, step): value} of all scalars in the event files of a directory."""
    files = sorted(directory.glob("events*"))
    events = [event for file in files for event in summary_iterator(str(file))]
    values = [(event.step, value) for event in events for value in event.summary.value]
    return {(value.tag, step): tf.make_ndarray(value.tensor) for step, value in values}


def test_a_full_disk_ends_no_training(scores_of, tmp_path, monkeypatch, capsys):
    """TensorBoard's points go on with the next dev scores, in another file."""
    scores = scores_of(lambda: None, 0)
    scores.report(1, {"loss": 4.0})
    capsys.readouterr()

    def full(writer):
        raise tf.errors.ResourceExhaustedError(None, None, "events.v2; No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(scores.writer), "flush", full)
        scores.report(2, {"loss": 3.0})
        scores.report(3, {"loss": 2.0})
    assert capsys.readouterr().err == (
        f"warning: {tmp_path}: TensorBoard's file cannot be written (events.v2; No space left on "
        "device); it goes on with the next dev scores\n"
    )
    scores.validate(4)
    scores.report(5, {"loss": 1.0})
    found = points(tmp_path)
    assert {step for name, step in found if name == "train/loss"} >= {1, 5}
    assert ("train/loss", 3) not in found
    assert ("dev/perplexity", 4) in found
    assert len(list(tmp_path.glob("events*"))) == 2  # the first may end inside a summary


def test_an_event_file_that_cannot_be_begun_ends_no_training(scores_of, monkeypatch, capsys):
    def full(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr("t2t_repro.training.dev_scores.hparams.hparams", full)
    scores_of(lambda: None, 0).report(1, {"loss": 4.0})
    assert "cannot be written (No space left on device)" in capsys.readouterr().err


def test_too_little_memory_to_translate_is_told_with_a_way_to_go_on(scores_of):
    """Micro-batches, the way out for a step, would take nothing off the search."""

    def make_translator():
        raise tf.errors.ResourceExhaustedError(None, None, "failed to allocate 9 GB\nmore")

    with pytest.raises(BadInput, match=r"translate \(failed to allocate 9 GB\).*eval_sentences=0"):
        scores_of(make_translator, 3).validate(1)


def test_nothing_is_written_where_the_work_directory_has_vanished(scores_of, tmp_path):
    scores = scores_of(lambda: None, 0)
    shutil.rmtree(tmp_path)
    scores.report(1, {"loss": 4.0})
    assert not tmp_path.exists()
