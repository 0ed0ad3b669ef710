"""The training loop: steps, TensorBoard points, checkpoints, dev scores, and a clean stop."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from types import FrameType

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from pipelines import progress
from pipelines.batching import Batching
from pipelines.errors import BadInput
from pipelines.stream import Stream
from t2t_repro.config import Config
from t2t_repro.distributed.cluster import Agreement, Cluster
from t2t_repro.distributed.data_sheets import sustained
from t2t_repro.distributed.machine import matmul_gflops
from t2t_repro.distributed.strategy import device_names
from t2t_repro.training.checkpoints import Checkpoints
from t2t_repro.training.divergence import Divergence
from t2t_repro.training.profile import Profile
from t2t_repro.training.score_history import ScoreHistory
from t2t_repro.training.skipped_steps import SkippedSteps
from t2t_repro.training.step_stats import StepStats
from t2t_repro.training.trainer import Trainer

# (step, {name: value, or an array of which TensorBoard shows the histogram})
Report = Callable[[int, Mapping[str, float | np.ndarray]], None]


class Stopped(Exception):
    """Raised when Ctrl-C or SIGTERM has stopped training, after a checkpoint."""


class Loop:
    """Training up to `train_steps` updates, in this process or together with other workers.

    Every worker makes every step; only the chief saves checkpoints and prints progress.

    Args:
        trainer: The training step.
        config: The run's configuration.
        batching: The batches of the training text, planned or streamed.
        checkpoint_dir: <work directory>/checkpoints.
        report: Called every `log_steps` with the step statistics and the learning rate, and after
            each checkpoint with the seconds that it and its dev scores took.
        validate: Called after a checkpoint, with its step, if such calls have taken less than
            `eval_share` of the time since the start; always after the last checkpoint. Returns the
            dev scores by name, the main one last, or none.
        check_in_place: Called before each save; raises BadInput if the work directory has vanished,
            because TensorFlow would make a new one.
    """

    def __init__(
        self,
        trainer: Trainer,
        config: Config,
        batching: Batching | Stream,
        checkpoint_dir: Path,
        report: Report,
        validate: Callable[[int], Mapping[str, float] | None],
        check_in_place: Callable[[], None],
    ):
        self.trainer, self.config = trainer, config
        self.cluster = Cluster(trainer.strategy)
        self.batching, self.report, self.validate = batching, report, validate
        self.check_in_place = check_in_place
        # The place in the data: (epoch, batches of this epoch that were handed out).
        self.position = tf.Variable([0, 0], dtype=tf.int64, trainable=False)
        # Seconds of training, over all starts, without those of checkpoints, of dev scores, and of
        # steps that a kill has undone.
        self.seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self.began = time.monotonic()  # when this process started to train
        self.made = 0  # steps that it made
        self.validating = 0.0  # seconds since then, spent on dev scores
        self.divergence = Divergence(trainer.model.rows)
        self.skipped = SkippedSteps(
            config.train.skip_nonfinite, checkpoint_dir.parent / "nonfinite", self.cluster.is_chief
        )
        self.scores = ScoreHistory(checkpoint_dir)  # the chief's; empty in other workers
        self.checkpoints = Checkpoints(
            checkpoint_dir,
            config.train.keep_checkpoints,
            trainer.model,
            trainer.optimizer,
            self.position,
            self.seconds,
            trainer.averages,
            batching.place,
            self.cluster.index,
            self.cluster.size,
        )

    def run(self, strict: bool = False, profile: Profile | None = None) -> None:
        """Train, from the newest good checkpoint if there is one.

        Args:
            strict: Whether a damaged checkpoint is an error, and not only a warning.
            profile: Records some of the steps.

        Raises:
            Stopped: any worker received Ctrl-C or SIGTERM; the state is saved.
            BadInput: a checkpoint cannot be read or written, the work directory has vanished, or
                training has diverged.
        """
        for warning in self.checkpoints.restore_latest(strict):
            self._say(warning)
        self.trainer.seed_replicas()
        step, last = int(self.trainer.optimizer.iterations.numpy()), self.config.train.train_steps
        self._check_place(step)
        self.cluster.by_chief(partial(self._tidy, step))
        if step >= last:
            self._say(f"step {step:,} is done already; to train further, give --train_steps=N")
            return
        if self._gains_no_more():
            return
        if step:
            self._say(f"resuming from step {step:,} of {last:,}")
        if profile and not profile.has_any(step + 1, last):
            self._say(f"profile: none, because only steps {step + 1:,} to {last:,} are made now")
        bar = tqdm(
            total=last,
            initial=step,
            unit="step",
            desc="train",
            mininterval=progress.interval(),
            disable=not self.cluster.is_chief,
        )
        with bar, closing(profile) if profile else nullcontext(), _stop_signals() as received:
            self._train(step, bar, received, profile)
        self.cluster.wait()  # for the chief's last dev scores

    @cached_property
    def peak_tflops(self) -> float:
        """TFLOPS of all devices: from the data sheet of a known GPU, otherwise measured here.

        The measurement multiplies two matrices of width 1,024 on one device.
        """
        precision, devices = self.config.train.precision, device_names(self.trainer.strategy)
        if known := sustained(devices[0], precision):
            each = known.tflops
        else:
            each = matmul_gflops(precision.removeprefix("mixed_"), 1, 1024) / 1e3
        return each * len(devices) * self.cluster.size

    def _check_place(self, step: int) -> None:
        """Raise BadInput unless all workers resume from one step and train on the same pairs.

        In a stream each worker has a place of its own.
        """
        place = [0, 0] if self.batching.place else self.position.numpy()
        mine = [step, *place, self.batching.pairs]
        every = self.cluster.share(*mine).numpy()
        for index, worker in enumerate(every):
            if list(worker) != list(every[0]):
                raise BadInput(
                    f"{self.cluster.names[index]} resumes from step {worker[0]} with {worker[-1]} "
                    f"pairs, {self.cluster.names[0]} from step {every[0][0]} with {every[0][-1]}; "
                    "--workdir must be one directory that all hosts share"
                )

    def _say(self, message: str) -> None:
        if self.cluster.is_chief:
            print(message, file=sys.stderr)

    def _train(self, step: int, bar: tqdm, received: list[int], profile: Profile | None) -> None:
        train, stats, saved = self.config.train, StepStats(), time.monotonic()
        batches, agreed = self._batches(), Agreement(self.cluster)
        # Traced now, while another process may still be making the first epoch: 2 s for base.
        self.trainer.step.get_concrete_function()
        while step < train.train_steps:
            asked = time.monotonic()
            source, target = next(batches)
            stats.add_batch(source, target, waited=time.monotonic() - asked)
            step += 1
            numbers = self._step(step, source, target, profile)
            self.made += 1
            stats.add_step(numbers)
            self.skipped.add(step, source, target, numbers)
            bar.update()
            stopped, late = agreed(bool(received), self._is_late(saved))
            ends = step == train.train_steps or stopped
            late = late and not self.divergence.lost  # put off, until a report finds no lost step
            due = ends or late or self._is_counted(step)
            if due or step % train.log_steps == 0:  # before a save too: a NaN must not be saved
                self._log(step, stats, bar)
                stats = StepStats()
            if due and (ends or not self.divergence.lost):
                self.divergence.check_weights(step, self.trainer.model)
                self._save(step, stopped)
                agreed.forget()
                saved, stats = time.monotonic(), StepStats()
                if not ends and self._gains_no_more():
                    return

    def _step(
        self, number: int, source: tf.Tensor, target: tf.Tensor, profile: Profile | None
    ) -> tf.Tensor:
        if not profile:
            return self.trainer.step(source, target)
        with profile.of_step(number):
            numbers = self.trainer.step(source, target)
            if profile.is_on:
                numbers.numpy()  # waits: the profile would otherwise end before the step
            return numbers

    def _save(self, step: int, stopped: bool) -> None:
        """Save a checkpoint and, as time allows, score it; raise Stopped after the save."""
        began = time.monotonic()
        if self.batching.place:
            self.check_in_place()
            self.checkpoints.save_place(step)
            self.cluster.wait()  # for the places of all workers
        self.cluster.by_chief(partial(self._write, step))
        written = time.monotonic()
        if stopped and step < self.config.train.train_steps:
            raise Stopped
        if self._affords_scores(step):
            with self.trainer.averaged_weights():
                scores = self.validate(step)
            self.cluster.by_chief(partial(self._add_scores, step, scores))
        scored = time.monotonic()
        self.validating += scored - written
        self.report(step, {"checkpoint_s": written - began, "dev_scores_s": scored - written})

    def _write(self, step: int) -> None:
        self.check_in_place()
        self.checkpoints.save(step)

    def _tidy(self, step: int) -> None:
        self.checkpoints.tidy()
        self.scores.recall(step)
        self.checkpoints.best = self._best()
        self.checkpoints.drop_old()  # those that a save did not come to delete before it was killed

    def _add_scores(self, step: int, scores: Mapping[str, float] | None) -> None:
        if scores:
            self.check_in_place()
            self.scores.add(step, scores)
            self.checkpoints.best = self._best()
            self.checkpoints.drop_old()

    def _best(self) -> list[int]:
        return self.scores.best(self.config.train.keep_best, self.checkpoints.steps)

    def _gains_no_more(self) -> bool:
        """Return whether the chief's dev scores are a reason for an early end, which it prints."""
        patience = self.config.train.early_stopping
        if not patience:
            return False
        (count, *_), *_ = self.cluster.share(self.scores.without_gain()).numpy()
        if count < patience:
            return False
        if self.cluster.is_chief:
            best = self.scores.shown(self.scores.ranking()[0])
            self._say(
                f"stopped early: no gain in the last {count} dev scores over {best}; to train "
                "further, give a greater --early_stopping, or 0"
            )
        return True

    def _affords_scores(self, step: int) -> bool:
        """Return whether there is time for dev scores, by the chief's clock."""
        train, elapsed = self.config.train, time.monotonic() - self.began
        affords = step == train.train_steps or self.validating < train.eval_share * elapsed
        (chiefs, *_), *_ = self.cluster.share(affords).numpy()
        return bool(chiefs)

    def _is_counted(self, step: int) -> bool:
        """Return whether it is time for a checkpoint, by the number of steps.

        A run that was stopped between two checkpoints has one more checkpoint there, and later the
        same checkpoints as an uninterrupted run.
        """
        every = self.config.train.checkpoint_steps
        return bool(every) and step % every == 0

    def _is_late(self, saved: float) -> bool:
        """Return whether it is time for a checkpoint, by minutes, by the chief's clock."""
        train = self.config.train
        if train.checkpoint_steps or not self.cluster.is_chief:
            return False
        return time.monotonic() - saved >= 60 * train.checkpoint_minutes

    def _log(self, step: int, stats: StepStats, bar: tqdm) -> None:
        """Report the statistics of the steps up to `step`; raise BadInput if they diverge."""
        model = self.trainer.model
        # This waits for the steps.
        values = stats.values(model.config, model.rows, self.peak_tflops, self.trainer.parts)
        self.seconds.assign_add(time.monotonic() - stats.began)
        self.skipped.settle()
        self.divergence.check(step, stats.numbers(), values["perplexity"])
        others: dict[str, float | np.ndarray] = {
            "learning_rate": float(self.trainer.optimizer.learning_rate),  # of the next step
            "weight_norm": float(tf.linalg.global_norm(model.trainable_variables)),
        }
        self.report(step, others | values | stats.batch_shapes())
        bar.set_postfix_str(
            f"perplexity {values['perplexity']:.2f}, "
            f"{values['target_tokens_per_s']:,.0f} target tokens/s"
        )

    def _batches(self) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yield batches from `position` on, forever; `position` counts a batch as it is yielded."""
        epoch, first = self.position.numpy()
        while True:
            begun = int(self.trainer.optimizer.iterations.numpy()) - first
            own = self.batching.for_epoch(epoch, begun)
            for index, batch in enumerate(own.batches(epoch, first), first + 1):
                self.position.assign([epoch, index])
                yield batch
            epoch, first = epoch + 1, 0


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, so that every step completes; a second signal ends at once."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
