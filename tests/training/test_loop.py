"""Stop and resume: nothing is lost or repeated, whatever ends the process."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from pipelines import stream
from pipelines.batching import Batching
from pipelines.encode import encode_split
from pipelines.errors import BadInput
from pipelines.shards import EncodedSplit
from pipelines.stream import Stream, TabSeparatedFiles, choose, sample
from pipelines.toy import toy_ende
from pipelines.vocabulary import Vocabulary
from t2t_repro import config as configs
from t2t_repro import experiment, reports
from t2t_repro.distributed.data_sheets import sustained
from t2t_repro.distributed.strategy import default_strategy
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.checkpoint_files import CheckpointFiles
from t2t_repro.training.checkpoints import Checkpoints, average_last
from t2t_repro.training.divergence import Divergence
from t2t_repro.training.loop import Loop, Stopped, _stop_signals
from t2t_repro.training.profile import Profile
from t2t_repro.training.skipped_steps import SkippedSteps
from t2t_repro.training.trainer import Trainer
from t2t_repro.workdir import Workdir

# A user's environment: importing Keras sets the first of these, and conftest.py the second, without
# which a step on two cores computes two halves of its batch.
OURS = "TF_CPP_MIN_LOG_LEVEL", "TF_NUM_INTRAOP_THREADS"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in OURS}
STOPPED = "stopped; the state is saved, the same command resumes from it"

TINY = {
    "num_layers": 1,
    "d_model": 8,
    "d_ff": 16,
    "num_heads": 2,
    "d_k": 4,
    "d_v": 4,
    "vocabulary_size": 400,
    "tokens_per_batch": 400,
    "eval_sentences": 20,
    "beam_size": 1,
    "max_extra_length": 2,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a split of 60 pairs, which at 400 tokens per batch fill a few batches."""
    pairs = list(islice(toy_ende.examples("train"), 60))
    vocabulary = Vocabulary.learn((text for pair in pairs for text in pair.values()), 400)
    directory = tmp_path_factory.mktemp("data") / "train"
    encode_split(lambda: pairs, vocabulary, 256, directory)
    return EncodedSplit.load(directory)


def config_with(**changes):
    settings = {"dropout": 0.3, "checkpoint_steps": 1000, "log_steps": 1} | changes
    return configs.resolve("toy_ende", overrides=TINY | settings)


def batches_of(data):
    return Batching(data, tokens_per_batch=400, max_shapes=512, count_padding=True, seed=1)


@dataclasses.dataclass
class Run:
    """The record of one call of Loop.run."""

    batches: list  # the ids of every batch that was trained on
    weights: list
    reports: list  # (step, values)
    validated: list  # steps
    seconds: float = 0.0  # training time over all starts

    def report(self, step, values):
        if "loss" in values:  # skips the reports about checkpoints
            self.reports.append((step, values))


def new_trainer(config, seed):
    keras.utils.set_random_seed(seed)
    strategy = default_strategy()
    with strategy.scope():
        model = Transformer(config.model, rows=400)
    return Trainer(model, config.train, strategy)


# The settings that a trainer does not read; `train_steps` it does for a cool-down alone.
LOOP_SETTINGS = ("train_steps", "log_steps", "checkpoint_steps", "checkpoint_minutes")
LOOP_SETTINGS += ("keep_checkpoints", "keep_best", "early_stopping", "eval_share")
shared, starts = {}, {}  # trainers by their settings; states of new ones by settings and seed


def like_new(config, seed):
    """Return the trainer that all tests with its settings share, in the state of a new one.

    Its step is traced once, which takes longer than most tests. What it keeps outside its model's
    and its optimizer's variables stays, and so does what was patched when it was traced:
    `new_trainer` is for tests that need another.
    """
    assert not config.train.cooldown_share
    defaults = {name: getattr(configs.Train(), name) for name in LOOP_SETTINGS}
    settings = config.model, dataclasses.replace(config.train, **defaults)
    if (settings, seed) not in starts:
        new = new_trainer(config, seed)
        starts[settings, seed] = [variable.numpy() for variable in variables(new)]
        shared.setdefault(settings, new)
    trainer = shared[settings]
    for variable, start in zip(variables(trainer), starts[settings, seed], strict=True):
        variable.assign(start)
    return trainer


def variables(trainer):
    return [*trainer.model.variables, *trainer.optimizer.variables]


def train(
    data,
    directory,
    seed=1,
    stop_at=None,
    check_in_place=lambda: None,
    alter=lambda trainer, numbers: numbers,
    score=lambda step: None,
    batches_of=batches_of,
    trainer_of=like_new,
    **changes,
):
    """Run a Loop on a model in its first state and return its record; SIGINT arrives in `stop_at`.

    `seed` determines only the weights and dropout; the configuration determines the order of the
    data. A resumed run gets another seed, so that its state can only come from the checkpoint.
    `alter(trainer, numbers)` returns other numbers for a step that has been made, `score(step)` the
    dev scores of a checkpoint, and `trainer_of(config, seed)` the trainer.
    """
    config = config_with(**changes)
    run = Run([], [], [], [])
    trainer = trainer_of(config, seed)
    step = trainer.step

    def recording(source, target):
        run.batches.append((source.numpy().tolist(), target.numpy().tolist()))
        if len(run.batches) == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        return alter(trainer, step(source, target))

    recording.get_concrete_function = step.get_concrete_function
    loop = Loop(
        *(trainer, config, batches_of(data), directory, run.report),
        lambda step: run.validated.append(step) or score(step),
        check_in_place,
    )
    loop.peak_tflops = 1.0  # else it would be measured
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "step", recording)
        try:
            loop.run()
        except Stopped:
            assert stop_at == len(run.batches)
    run.seconds = float(loop.seconds)
    run.weights = [variable.numpy() for variable in trainer.model.trainable_variables]
    return run


def saved_steps(directory):
    return sorted(int(path.stem.removeprefix("step-")) for path in directory.glob("step-*.index"))


# In this process


@pytest.fixture(scope="module")
def epoch(data):
    """Return the number of batches in an epoch."""
    batching = batches_of(data)
    plans = [batching.plan(epoch) for epoch in range(3)]
    assert len({len(plan) for plan in plans}) == 1
    return len(plans[0])


@pytest.fixture(scope="module")
def uninterrupted(data, epoch, tmp_path_factory):
    return train(data, tmp_path_factory.mktemp("whole"), train_steps=2 * epoch + 2)


def test_the_step_is_traced_while_another_process_makes_the_first_epoch(data, tmp_path):
    config, traced = config_with(train_steps=1), []
    strategy, batching = default_strategy(), batches_of(data)
    with strategy.scope():
        model = Transformer(config.model, rows=400)
    trainer = Trainer(model, config.train, strategy)

    def for_epoch(epoch, begun):
        traced.append(trainer.step.experimental_get_tracing_count())
        return batching

    waiting = SimpleNamespace(for_epoch=for_epoch, pairs=batching.pairs, place=None)
    Loop(trainer, config, waiting, tmp_path, *[lambda *_: None] * 2, lambda: None).run()
    assert traced == [1]
    assert trainer.step.experimental_get_tracing_count() == 1


def test_a_start_that_makes_no_step_leaves_the_cost_as_it_is(tmp_path):
    """It may be on another machine than the one that trained."""
    known = {"device": "eight GPUs"}
    workdir = Workdir(tmp_path)
    workdir.save_config(config_with())
    workdir.add_result("cost", known)
    reports.record_cost(SimpleNamespace(workdir=workdir), SimpleNamespace(made=0))
    assert workdir.results() == {"cost": known}


@pytest.mark.parametrize(("device", "one"), [("NVIDIA A10", 3.0), ("NVIDIA H100 80GB HBM3", None)])
def test_peak_is_that_of_all_devices(device, one, monkeypatch):
    """Where the data sheet is not known, one device is measured."""
    monkeypatch.setattr("t2t_repro.training.loop.device_names", lambda strategy: [device] * 4)
    monkeypatch.setattr("t2t_repro.training.loop.matmul_gflops", lambda *_: 3_000.0)
    one = one or sustained(device, "float32").tflops
    worker = SimpleNamespace(
        config=config_with(),
        cluster=SimpleNamespace(size=2),
        trainer=SimpleNamespace(strategy=None),
    )
    assert Loop.peak_tflops.func(worker) == pytest.approx(8 * one)


SLOW = ("inside an epoch", "at its edge")


@pytest.mark.parametrize(
    "where",
    ["twice inside an epoch", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def test_stopped_and_resumed_run_ends_like_an_uninterrupted_one(
    data, epoch, uninterrupted, tmp_path, where
):
    stops = {
        "inside an epoch": [epoch + 2],
        "at its edge": [epoch],
        "twice inside an epoch": [2, 1],
    }
    last, seen = 2 * epoch + 2, []
    for seed, stop_at in enumerate(stops[where], start=1):
        seen += train(data, tmp_path, seed, stop_at, train_steps=last).batches
        assert saved_steps(tmp_path)[-1] == len(seen)
    resumed = train(data, tmp_path, seed=9, trainer_of=new_trainer, train_steps=last)
    assert seen + resumed.batches == uninterrupted.batches
    for resumed_weight, weight in zip(resumed.weights, uninterrupted.weights, strict=True):
        np.testing.assert_allclose(resumed_weight, weight, atol=1e-6)


@pytest.mark.slow
def test_run_that_falls_back_ends_like_an_uninterrupted_one(data, uninterrupted, tmp_path, capsys):
    """Bit for bit: what the damaged checkpoint held was not used, and is not counted later."""
    last = len(uninterrupted.batches)
    train(data, tmp_path, stop_at=5, train_steps=last, checkpoint_steps=3)
    os.truncate(tmp_path / "step-5.data-00000-of-00001", 100)
    capsys.readouterr()
    resumed = train(data, tmp_path, seed=9, train_steps=last, checkpoint_steps=3)
    assert f"warning: {tmp_path / 'step-5'}: damaged (" in capsys.readouterr().err
    assert resumed.batches == uninterrupted.batches[3:]
    for resumed_weight, weight in zip(resumed.weights, uninterrupted.weights, strict=True):
        np.testing.assert_array_equal(resumed_weight, weight)
    assert saved_steps(tmp_path) == [*range(3, last, 3), last]
    assert (tmp_path / "damaged-step-5.index").exists()


@pytest.mark.slow
def test_old_checkpoints_that_a_killed_save_has_left_are_deleted(data, tmp_path, monkeypatch):
    every = {"train_steps": 2, "checkpoint_steps": 1, "keep_checkpoints": 1}
    with monkeypatch.context() as killed:
        killed.setattr(Checkpoints, "drop_old", lambda self: None)
        train(data, tmp_path, **every)
    assert saved_steps(tmp_path) == [1, 2]
    assert train(data, tmp_path, **every).batches == []
    assert saved_steps(tmp_path) == [2]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return 1,000 pairs in two files, their vocabulary, and the same pairs encoded."""
    folder, pairs = tmp_path_factory.mktemp("text"), list(islice(toy_ende.examples("train"), 1000))
    for number in range(2):
        lines = (f"{p['source']}\t{p['target']}\n" for p in pairs[number::2])
        (folder / f"{number}.tsv").write_text("".join(lines), encoding="utf-8")
    vocabulary = Vocabulary.learn((text for pair in pairs for text in pair.values()), 400)
    encode_split(lambda: pairs, vocabulary, 256, folder / "train")
    files = TabSeparatedFiles(tuple((str(path),) for path in sorted(folder.glob("*.tsv"))))
    return files, vocabulary, EncodedSplit.load(folder / "train")


BUDGET = {"tokens_per_batch": 8000, "max_shapes": 8, "count_padding": True}


def planned(text, seed=1):
    """Return the batches of `text` from a plan."""
    return Batching(text[2], seed=seed, **BUDGET)


def streamed(text, seed=1):
    """Return the batches of `text` from its files."""
    files, vocabulary, _ = text
    lengths = sample(files, vocabulary.graph_encoder(), seed, 256)
    buckets = choose(lengths, max_length=256, **BUDGET)
    return Stream(files, buckets, vocabulary.graph_encoder(), max_length=256, seed=seed)


@pytest.mark.slow
def test_resumed_stream_repeats_and_loses_nothing(text, tmp_path, monkeypatch):
    """Bit for bit, when killed in the second epoch: the checkpoint of step 10 is a good one.

    The files are longer than what is read ahead of the shuffle, so it resumes in mid-file.
    """
    monkeypatch.setattr(stream, "_SHUFFLED", 50)
    how = {"batches_of": streamed, "train_steps": 16, "checkpoint_steps": 10}
    whole = train(text, tmp_path / "whole", **how)
    shutil.rmtree(tmp_path / "whole")
    train(text, tmp_path, stop_at=12, **how)
    last = tmp_path / "step-12.data-00000-of-00001"
    os.truncate(last, last.stat().st_size // 3)
    resumed = train(text, tmp_path, **how)
    assert resumed.batches == whole.batches[10:]
    seen = [row for source, _ in whole.batches for row in source]
    assert 1000 < len(seen) < 3000  # the second epoch has begun
    for resumed_weight, weight in zip(resumed.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(resumed_weight, weight)


@pytest.mark.slow
def test_a_stream_is_learnt_like_a_plan(text, tmp_path):
    """The loss after 60 updates is that of other seeds; untrained it is 6.0."""

    def loss(batches_of, seed):
        how = {"batches_of": partial(batches_of, seed=seed), "train_steps": 60, "warmup_steps": 30}
        run = train(text, tmp_path / f"{batches_of.__name__}-{seed}", seed, **how)
        return np.mean([values["loss"] for _, values in run.reports[-20:]])

    mean = np.mean([loss(planned, seed) for seed in (1, 2, 3)])  # they differ by 1 %
    assert loss(streamed, 1) == pytest.approx(mean, rel=0.03)


@pytest.mark.slow
def test_nothing_is_saved_where_the_work_directory_has_vanished(data, tmp_path):
    def vanished():
        raise BadInput("gone")

    with pytest.raises(BadInput, match="gone"):
        train(data, tmp_path / "checkpoints", check_in_place=vanished, train_steps=2)
    assert not [*tmp_path.iterdir()]


def test_batches_are_asked_for_with_the_update_at_which_their_epoch_began(
    data, epoch, tmp_path, monkeypatch
):
    begun = []
    monkeypatch.setattr(Batching, "for_epoch", lambda self, *place: begun.append(place) or self)
    last = 2 * epoch + 2
    train(data, tmp_path, stop_at=epoch + 2, train_steps=last)
    train(data, tmp_path, train_steps=last)
    assert begun == [(0, 0), (1, epoch), (1, epoch), (2, 2 * epoch)]


@pytest.mark.slow
def test_dropout_is_on_in_these_runs(data, uninterrupted, tmp_path):
    """Otherwise the test above would not notice if the state of dropout were lost."""
    steps = len(uninterrupted.batches)
    without = train(data, tmp_path, train_steps=steps, dropout=0.0)
    assert np.abs(without.weights[0] - uninterrupted.weights[0]).max() > 1e-4


def test_every_pair_is_seen_once_an_epoch(data, epoch, uninterrupted):
    for first in (0, epoch):
        rows = [row for source, _ in uninterrupted.batches[first:][:epoch] for row in source]
        seen = sorted([piece for piece in row if piece] for row in rows if any(row))
        sources, _ = data.padded(np.arange(len(data)), *data.lengths.max(axis=0))
        assert seen == sorted([piece for piece in row if piece] for row in sources.tolist())


# The first dev scores take more than a share of 1e-9, however little they do here.
@pytest.mark.parametrize(
    ("share", "scored"),
    [
        pytest.param(1.0, [3, 6, 7], marks=pytest.mark.slow),
        (1e-9, [3, 7]),
        pytest.param(0.0, [7], marks=pytest.mark.slow),
    ],
)
def test_checkpoints_by_steps_are_validated_while_there_is_time(data, tmp_path, share, scored):
    run = train(data, tmp_path, train_steps=7, checkpoint_steps=3, eval_share=share)
    assert saved_steps(tmp_path) == [3, 6, 7]
    assert run.validated == scored


@pytest.mark.slow
def test_stopped_and_resumed_run_goes_back_to_the_same_steps(data, tmp_path):
    train(data, tmp_path, stop_at=4, train_steps=9, checkpoint_steps=3)
    train(data, tmp_path, train_steps=9, checkpoint_steps=3)
    assert saved_steps(tmp_path) == [3, 4, 6, 9]


@pytest.mark.parametrize(
    ("minutes", "steps"),
    [pytest.param(1000.0, [4], marks=pytest.mark.slow), (0.0, [1, 2, 3, 4])],
)
def test_checkpoints_by_minutes(data, tmp_path, minutes, steps):
    train(data, tmp_path, train_steps=4, checkpoint_steps=0, checkpoint_minutes=minutes)
    assert saved_steps(tmp_path) == steps


@pytest.mark.slow
def test_the_best_and_the_early_end_survive_a_stop(data, tmp_path, capsys):
    flags = {"train_steps": 20, "checkpoint_steps": 1, "keep_checkpoints": 1, "eval_share": 1.0}
    flags |= {"keep_best": 2, "early_stopping": 3}

    def score(step):
        return {"sacrebleu": {1: 5.0, 2: 9.0, 4: 7.0, 5: 8.0, 6: 6.0}[step]}

    train(data, tmp_path, stop_at=3, score=score, **flags)
    assert saved_steps(tmp_path) == [1, 2, 3]
    run = train(data, tmp_path, score=score, **flags)
    assert run.validated == [4, 5, 6]
    assert saved_steps(tmp_path) == [2, 5, 6]
    assert (
        "no gain in the last 3 dev scores over sacrebleu 9.00 at step 2" in capsys.readouterr().err
    )
    assert not train(data, tmp_path, score=score, **flags).batches


@pytest.mark.slow
def test_moving_averages_are_what_is_scored_saved_and_resumed(data, tmp_path):
    flags, scored = {"train_steps": 5, "ema": 0.75}, []
    history = []

    def watch(trainer, numbers):
        history.append([weight.numpy() for weight in trainer.model.weights])
        scored[:] = [trainer.model, trainer]
        return numbers

    def score(step):
        history.append([weight.numpy() for weight in scored[0].weights])

    whole = train(data, tmp_path / "whole", alter=watch, score=score, **flags)
    assert scored[1]._exchange.experimental_get_tracing_count() == 1  # base takes 3 to 5 s for one
    *updates, at_score = history
    average = updates[0]
    for weights in updates[1:]:
        average = [0.75 * old + 0.25 * new for old, new in zip(average, weights, strict=True)]
    train(data, tmp_path / "parts", stop_at=2, **flags)
    parts = train(data, tmp_path / "parts", seed=9, **flags)
    saved = []
    for name in ("whole", "parts"):
        average_last(scored[0], tmp_path / name, 1)
        saved.append([weight.numpy() for weight in scored[0].weights])
    for expected, *same in zip(average, at_score, *saved, strict=True):
        np.testing.assert_allclose(same[0], expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(same[1], same[0])
        np.testing.assert_array_equal(same[2], same[0])
    for one, other, last in zip(whole.weights, parts.weights, updates[-1], strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, last)


@pytest.mark.slow
def test_seconds_of_training_add_up_over_starts(data, tmp_path):
    began = time.monotonic()
    stopped = train(data, tmp_path, stop_at=2, train_steps=4)
    between = time.monotonic()
    resumed = train(data, tmp_path, train_steps=4)
    assert 0 < stopped.seconds < between - began
    assert 0 < resumed.seconds - stopped.seconds < time.monotonic() - between
    assert train(data, tmp_path, train_steps=4).seconds == resumed.seconds


@pytest.mark.slow
def test_finished_run_does_nothing_more(data, tmp_path):
    first = train(data, tmp_path, train_steps=2)
    again = train(data, tmp_path, seed=2, train_steps=2)
    assert (again.batches, again.validated) == ([], [])
    np.testing.assert_array_equal(again.weights[0], first.weights[0])


def test_reports_are_means_per_token_since_the_one_before(data, tmp_path):
    single = train(data, tmp_path / "single", train_steps=4, log_steps=1)
    double = train(data, tmp_path / "double", train_steps=4, log_steps=2)
    assert [step for step, _ in double.reports] == [2, 4]
    tokens = [np.count_nonzero(target) for _, target in single.batches]
    for index, (_, values) in enumerate(double.reports):
        two = slice(2 * index, 2 * index + 2)
        losses = [values["loss"] for _, values in single.reports[two]]
        logs = [np.log(values["perplexity"]) for _, values in single.reports[two]]
        loss, log = np.average([losses, logs], axis=1, weights=tokens[two])
        assert (values["loss"], np.log(values["perplexity"])) == pytest.approx(
            (loss, log), rel=1e-4
        )


@pytest.mark.slow
def test_loss_that_is_no_number_ends_the_run(data, tmp_path):
    with pytest.raises(BadInput, match="the loss at step 2 is not a number"):
        train(data, tmp_path, train_steps=5, learning_rate_scale=1e30)
    assert saved_steps(tmp_path) == []


@pytest.mark.slow
def test_loss_that_is_no_number_is_not_saved_between_two_logs(data, tmp_path):
    with pytest.raises(BadInput, match="is not a number"):
        train(data, tmp_path, train_steps=3, log_steps=100, learning_rate_scale=1e30)
    assert saved_steps(tmp_path) == []


@pytest.mark.slow
def test_weights_that_the_last_update_has_made_infinite_are_not_saved(data, tmp_path):
    def broken(trainer, numbers):
        if trainer.optimizer.iterations == 3:
            weight = trainer.model.trainable_variables[0]
            weight.assign(np.full(weight.shape, np.inf))
        return numbers

    with pytest.raises(BadInput, match="after step 3 is not finite"):
        train(data, tmp_path, alter=broken, train_steps=5, checkpoint_steps=1)
    assert saved_steps(tmp_path) == [1, 2]


def costing(nats, steps):
    """Return an `alter` with which some steps cost so many nats a token."""

    def costly(trainer, numbers):
        smoothed, _, tokens, norm = numbers.numpy()
        is_lost = int(trainer.optimizer.iterations) in steps
        return tf.constant([smoothed, nats * tokens, tokens, norm]) if is_lost else numbers

    return costly


@pytest.mark.slow
def test_infinite_perplexity_ends_the_run_before_a_checkpoint(data, tmp_path):
    with pytest.raises(BadInput, match="the perplexity at step 4 is infinite"):
        train(data, tmp_path, alter=costing(200, {3, 4}), train_steps=5, log_steps=4)
    assert saved_steps(tmp_path) == []


def test_no_checkpoint_pushes_out_a_good_one_while_steps_are_lost(data, tmp_path):
    every = {"train_steps": 9, "checkpoint_steps": 1, "keep_checkpoints": 3}
    train(data, tmp_path, alter=costing(60, range(4, 8)), **every)
    assert saved_steps(tmp_path) == [3, 8, 9]


def test_lost_steps_are_reported_no_more_often_than_others(data, tmp_path):
    """By minutes, a checkpoint is due at every step here, and put off by those that are lost."""
    settings = {"train_steps": 9, "checkpoint_steps": 0, "checkpoint_minutes": 0.0, "log_steps": 4}
    run = train(data, tmp_path, alter=costing(60, range(4, 8)), **settings)
    assert [step for step, values in run.reports if "loss" in values] == [1, 2, 3, 4, 8, 9]
    assert saved_steps(tmp_path) == [1, 2, 3, 9]


def test_a_thousand_lost_steps_in_a_row_are_a_divergence():
    lost = np.tile(np.float32([70, 60, 1, 1]), (600, 1))
    fine = lost * [0.1, 0.1, 1, 1]
    divergence = Divergence(rows=400)
    for numbers in (lost, fine, lost):
        divergence.check(600, numbers, 1.0)
    with pytest.raises(BadInput, match="each of the 1,000 steps up to 1000 costs more"):
        divergence.check(1200, lost, 1.0)


def skipping(data, directory, bad, stop_at=None, limit=2):
    """Train 6 steps like `train`; the gradients of the steps `bad` are infinite."""
    gradients_of = Trainer._gradients_of

    def poisoned(self, *batch):
        gradients, sums = gradients_of(self, *batch)
        is_bad = tf.reduce_any(tf.equal(self.optimizer.iterations.value + 1, bad))
        return [gradient * tf.where(is_bad, np.inf, 1.0) for gradient in gradients], sums

    how = {"trainer_of": new_trainer, "train_steps": 6, "skip_nonfinite": limit}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_gradients_of", poisoned)
        return train(data, directory / "checkpoints", 1, stop_at, **how)


def test_skipped_steps_are_counted_and_their_batches_kept(data, tmp_path, capsys):
    run = skipping(data, tmp_path, [2, 3, 5])
    counts = [values["skipped_steps"] for _, values in run.reports if "skipped_steps" in values]
    assert counts == [0, 1, 1, 0, 1, 0]
    assert "step 3 skipped: the norm of its gradient is " in capsys.readouterr().err
    kept = tmp_path / "nonfinite"
    assert sorted(path.name for path in kept.iterdir()) == [f"step-{n}.npz" for n in (2, 3, 5)]
    with np.load(kept / "step-3.npz") as batch:
        assert (batch["source"].tolist(), batch["target"].tolist()) == run.batches[2]
    np.testing.assert_array_equal(np.isfinite(run.weights[0]), True)


@pytest.mark.slow
def test_stopped_run_skips_the_same_steps_after_it_resumes(data, tmp_path):
    whole = skipping(data, tmp_path / "whole", [2, 3, 5])
    skipping(data, tmp_path / "parts", [2, 3, 5], stop_at=3)
    resumed = skipping(data, tmp_path / "parts", [2, 3, 5])
    for one, other in zip(whole.weights, resumed.weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_more_skipped_steps_in_a_row_than_allowed_end_the_run(data, tmp_path):
    with pytest.raises(BadInput, match="steps 3 to 5 have gradients that are not finite"):
        skipping(data, tmp_path, [1, 3, 4, 5])
    with pytest.raises(BadInput, match="the norm of the gradient at step 3 is"):
        skipping(data, tmp_path / "off", [3], limit=0)


def test_only_the_last_20_batches_are_kept(tmp_path):
    skipped, ids = SkippedSteps(99, tmp_path, is_chief=True), tf.constant([[5, 1]])
    for step in range(90, 115):
        skipped.add(step, ids, ids, tf.constant([0, 0, 0, np.nan]))
    skipped.settle()
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {f"step-{step}.npz" for step in range(95, 115)}


def skip(skipped, *steps):
    """Let steps be skipped, and look at the last of them too."""
    for step in steps:
        skipped.add(step, *[tf.constant([[5, 1]])] * 2, tf.constant([0, 0, 0, np.nan]))
    skipped.settle()


def test_a_skipped_batch_that_cannot_be_written_ends_no_training(tmp_path, capsys):
    (tmp_path / "file").touch()
    skip(SkippedSteps(9, tmp_path / "file" / "nonfinite", is_chief=True), 1)
    assert "its batch could not be written to " in capsys.readouterr().err


def test_only_the_chief_writes_and_tells_of_skipped_steps(tmp_path, capsys):
    skipped = SkippedSteps(1, tmp_path / "nonfinite", is_chief=False)
    skip(skipped, 1)
    assert (list(tmp_path.iterdir()), capsys.readouterr().err) == ([], "")
    with pytest.raises(BadInput):
        skip(skipped, 2)


def test_skipped_steps_are_neither_a_divergence_nor_the_end_of_lost_steps():
    divergence = Divergence(rows=400)
    made, skipped = np.float32([[70, 60, 1, 1]] * 400), np.float32([[0, 0, 0, np.nan]] * 100)
    divergence.check(400, made, 1.0)
    divergence.check(500, skipped, np.nan)
    assert divergence.lost == 400


def test_a_weight_with_one_infinite_number_is_not_finite(build):
    model, divergence = build(num_layers=1), Divergence(rows=23)
    divergence.check_weights(3, model)
    bias = model.trainable_variables[-1]
    bias.assign(np.where(np.arange(bias.shape[0]) == 1, np.inf, 0.0))
    with pytest.raises(BadInput, match="after step 3 is not finite"):
        divergence.check_weights(3, model)


def test_second_signal_ends_at_once_and_the_handlers_come_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with _stop_signals() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# The command in a process of its own


class Child:
    """A running `train`; what it writes to stderr goes to a file."""

    def __init__(self, workdir, *flags):
        self.log = workdir.parent / "stderr"
        command = [sys.executable, "-m", "t2t_repro.train", f"--workdir={workdir}", *flags]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, cwd=ROOT, env=ENVIRONMENT)

    @property
    def stderr(self):
        return self.log.read_text(encoding="utf-8")

    def wait_until(self, condition):
        deadline = time.monotonic() + 300
        try:
            while not condition():
                assert self.process.poll() is None, self.stderr
                assert time.monotonic() < deadline, self.stderr
                time.sleep(0.05)
        except BaseException:
            self.process.kill()
            raise

    def end(self, number=None):
        """Send the signal, if one is given, and return the exit status."""
        if number is not None:
            self.process.send_signal(number)
        try:
            return self.process.wait(300)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the work directory of a run of 3 steps, of which the last two are profiled."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    config = config_with(train_steps=3, checkpoint_steps=2, dropout=0.1)
    loop = experiment.make_loop(experiment.build(config, Workdir(workdir), default_strategy()))
    loop.run(profile=Profile(workdir, 2, 100))
    return workdir


@pytest.fixture
def workdir(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.slow
def test_signals_stop_with_a_checkpoint_and_one_line(workdir):
    """The run gets SIGINT, and after it resumes SIGTERM."""
    steps = saved_steps(workdir / "checkpoints")
    for number in (signal.SIGINT, signal.SIGTERM):
        child = Child(workdir, "--train_steps=1000000", "--log_steps=1", "--checkpoint_steps=0")
        child.wait_until(lambda child=child: "perplexity" in child.stderr)
        assert child.end(number) == 1
        assert f"resuming from step {steps[-1]:,} of 1,000,000" in child.stderr
        assert child.stderr.splitlines()[-1] == STOPPED
        assert "Traceback" not in child.stderr
        before, steps = steps, saved_steps(workdir / "checkpoints")
        assert steps[:-1] == before


@pytest.mark.slow
def test_killed_run_goes_on_from_its_last_whole_checkpoint(workdir):
    checkpoints = workdir / "checkpoints"
    flags = "--checkpoint_steps=1", "--keep_checkpoints=2", "--eval_sentences=0"
    child = Child(workdir, "--train_steps=1000000", *flags)
    child.wait_until(lambda: max(saved_steps(checkpoints)) > 6)
    assert child.end(signal.SIGKILL) == -signal.SIGKILL
    last = int(tf.train.latest_checkpoint(checkpoints).rpartition("-")[2])
    child = Child(workdir, f"--train_steps={last + 1}", *flags)
    assert child.end() == 0, child.stderr
    assert f"resuming from step {last} of {last + 1}" in child.stderr
    assert saved_steps(checkpoints)[-1] == last + 1


@pytest.mark.slow
def test_altered_text_is_the_same_in_another_process(text, tmp_path):
    """A run that ended inside an epoch reads on in the pieces and the pairs of that epoch."""
    ((file,), _), sizes = text[0].files, ("d_model", "d_ff", "num_heads", "vocabulary_size")
    flags = (
        *("--problem=parallel_text", f"--tsv_files={file}", "--tokens_per_batch=400"),
        *("--num_layers=1", *(f"--{name}={TINY[name]}" for name in sizes)),
        *("--train_steps=100", "--eval_sentences=0", "--log_steps=1", "--seed=3"),
        *("--bpe_dropout=0.1", "--auxiliary_tasks=true"),
    )
    assert Child(tmp_path / "whole", *flags).end() == 0
    assert Child(tmp_path / "stopped", *flags, "--train_steps=20").end() == 0
    ended = tf.train.load_checkpoint(str(tmp_path / "stopped" / "checkpoints"))
    (position,) = (name for name in ended.get_variable_to_shape_map() if "position/" in name)
    assert ended.get_tensor(position).tolist() == [0, 20]  # epoch 0 is longer
    assert Child(tmp_path / "stopped", "--train_steps=100").end() == 0
    readers = [
        tf.train.load_checkpoint(str(tmp_path / name / "checkpoints" / "step-100"))
        for name in ("whole", "stopped")
    ]
    names = [name for name in readers[0].get_variable_to_shape_map() if "OBJECT" not in name]
    differ = [
        name
        for name in names
        if not np.array_equal(*(reader.get_tensor(name) for reader in readers))
    ]
    assert [name.partition("/")[0] for name in differ] == ["seconds"]
    assert len(names) > 50


@pytest.mark.slow
def test_second_run_leaves_until_the_first_is_killed(workdir):
    first = Child(workdir, "--train_steps=1000000", "--log_steps=1", "--eval_sentences=0")
    first.wait_until(lambda: "perplexity" in first.stderr)
    command = [sys.executable, "-m", "t2t_repro.train", f"--workdir={workdir}"]
    run = partial(subprocess.run, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    second = run(command)
    assert second.returncode == 2
    (line,) = second.stderr.splitlines()
    assert line.startswith(f"error: {workdir}: another command trains or prepares a run there")
    assert f"process {first.process.pid} on" in line
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    steps = CheckpointFiles(workdir / "checkpoints").last_step + 1
    third = run([*command, f"--train_steps={steps}"])
    assert third.returncode == 0, third.stderr


@pytest.fixture(scope="module")
def events(finished):
    """Return {tag: [(step, value), ...]} from the event files."""
    accumulator = EventAccumulator(str(finished))
    accumulator.Reload()
    return {
        tag: [(e.step, tf.make_ndarray(e.tensor_proto)) for e in accumulator.Tensors(tag)]
        for tag in accumulator.Tags()["tensors"]
    }


@pytest.mark.parametrize(
    ("tag", "steps", "low", "high"),
    [
        ("train/loss", [1, 2, 3], 4, 8),  # untrained: ln 400 is 6.0
        ("train/perplexity", [1, 2, 3], 50, 3000),
        ("train/learning_rate", [1, 2, 3], 1e-6, 1e-2),
        ("train/target_tokens_per_s", [1, 2, 3], 1, 1e7),
        ("train/tflops", [1, 2, 3], 1e-9, 10),
        ("train/peak_share", [1, 2, 3], 1e-9, 1),
        ("train/gradient_norm", [1, 2, 3], 1e-3, 100),
        ("train/gradient_norm_max", [1, 2, 3], 1e-3, 100),
        ("train/weight_norm", [1, 2, 3], 1, 1000),
        ("train/skipped_steps", [1, 2, 3], 0, 0),
        ("train/padding_share", [1, 2, 3], 0, 0.5),
        ("train/input_share", [1, 2, 3], 0, 1),
        ("train/checkpoint_s", [2, 3], 1e-3, 60),
        ("train/dev_scores_s", [2, 3], 1e-2, 60),
        ("dev/perplexity", [2, 3], 50, 3000),
        ("dev/sacrebleu", [2, 3], 0, 100),
    ],
)
def test_tensorboard_has_the_numbers(events, tag, steps, low, high):
    assert [step for step, _ in events[tag]] == steps
    assert all(low <= value <= high for _, value in events[tag])


def test_learning_rate_in_tensorboard_rises_during_warmup(events):
    first, second, _ = (value for _, value in events["train/learning_rate"])
    assert second > first


def test_tensorboard_has_the_shapes_of_the_batches(events):
    _, buckets = events["train/batch_rows"][0]  # [bins, (low, high, count)]
    assert buckets[:, 2].sum() == 1
    assert buckets[0, 0] >= 9  # a batch has at least 9 rows


def test_tensorboard_compares_runs_by_their_settings(finished):
    accumulator = EventAccumulator(str(finished)).Reload()
    plugin = accumulator.SummaryMetadata("_hparams_/session_start_info").plugin_data
    values = plugin_data_pb2.HParamsPluginData.FromString(plugin.content).session_start_info.hparams
    assert values["problem"].string_value == "toy_ende"
    assert values["dropout"].number_value == 0.1
    (text,) = accumulator.Tensors("config")[0].tensor_proto.string_val
    assert b"    dropout: 0.1\n" in text


def test_steps_are_profiled_for_tensorboard(finished):
    (profile,) = finished.glob("plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size > 0


def test_tensorboard_has_translations_to_read(events):
    (_, text), *_ = events["dev/samples"]
    rows = text.item().decode().splitlines()
    assert rows[0] == "| source | reference | translation |"
    for row, pair in zip(rows[2:], toy_ende.examples("dev"), strict=False):
        assert row.startswith(f"| {pair['source']} | {pair['target']} | ")
    assert len(rows) == 2 + 5


def clocked(monkeypatch):
    """Return an `alter` and a `score` that take a minute each, by the loop's clock."""
    now = [1000.0]

    def minute_later(trainer, numbers):
        now[0] += 60
        return numbers

    def score(step):
        now[0] += 60

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("t2t_repro.training.loop.time", clock)
    return minute_later, score


@pytest.mark.slow
def test_minutes_count_from_the_checkpoint_before(data, tmp_path, monkeypatch):
    alter, _ = clocked(monkeypatch)
    minutes = {"checkpoint_steps": 0, "checkpoint_minutes": 3.0}
    train(data, tmp_path, alter=alter, train_steps=7, **minutes)
    assert saved_steps(tmp_path) == [3, 6, 7]


def test_all_dev_scores_so_far_count_for_their_share_of_the_time(data, tmp_path, monkeypatch):
    alter, score = clocked(monkeypatch)
    run = train(
        *(data, tmp_path),
        alter=alter,
        score=score,
        train_steps=7,
        checkpoint_steps=1,
        eval_share=0.39,
    )
    assert run.validated == [1, 2, 4, 5, 7]


@pytest.mark.slow
def test_the_last_step_is_looked_at_too(data, tmp_path):
    skipping(data, tmp_path, [6])
    assert (tmp_path / "nonfinite" / "step-6.npz").exists()
