"""The training loop: steps, TensorBoard points, checkpoints, dev scores, and a clean stop."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import FrameType

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from pipelines.batching import Batching
from pipelines.errors import BadInput
from t2t_repro.config import Config
from t2t_repro.distributed.cluster import Agreement, Cluster
from t2t_repro.distributed.machine import matmul_gflops
from t2t_repro.distributed.strategy import device_names
from t2t_repro.paper import cost
from t2t_repro.training.checkpoints import Checkpoints
from t2t_repro.training.step_stats import Interval
from t2t_repro.training.trainer import Trainer

Report = Callable[[int, dict[str, float]], None]  # (step, {name: value})


class Stopped(Exception):
    """Training was stopped by Ctrl-C or SIGTERM, after a checkpoint."""


class Loop:
    """Training up to `train_steps` updates, by this process or together with other workers.

    Every worker makes every step; the chief alone saves, and says what it does.

    Args:
        trainer: The step.
        config: The run's configuration.
        batching: The training pairs.
        checkpoint_dir: <work directory>/checkpoints.
        report: Called every `log_steps` with what `Interval.values` gives and the learning rate,
            and after each checkpoint with the seconds that it took, and its dev scores.
        validate: Called with the step after a checkpoint, if these calls have taken less than
            `eval_share` of the time since the start, and after the last one.
    """

    def __init__(
        self,
        trainer: Trainer,
        config: Config,
        batching: Batching,
        checkpoint_dir: Path,
        report: Report,
        validate: Callable[[int], None],
    ):
        self.trainer, self.config = trainer, config
        self.cluster = Cluster(trainer.strategy)
        self.batching, self.report, self.validate = batching, report, validate
        # The place in the data: (epoch, batches of it already seen).
        self.position = tf.Variable([0, 0], dtype=tf.int64, trainable=False)
        # Of training, over all starts; without checkpoints, dev scores and what a kill has undone.
        self.seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self.began = time.monotonic()  # of this start
        self.validating = 0.0  # seconds of it
        self.checkpoints = Checkpoints(
            checkpoint_dir,
            config.train.keep_checkpoints,
            trainer.model,
            trainer.optimizer,
            self.position,
            self.seconds,
        )

    def run(self) -> None:
        """Trains, going on from the newest checkpoint if there is one.

        Raises:
            Stopped: by Ctrl-C or SIGTERM to any worker; the state is saved.
            BadInput: a checkpoint cannot be read or written, or the loss is not a number.
        """
        self.checkpoints.restore_latest()
        self.trainer.part_dropout()
        step, last = int(self.trainer.optimizer.iterations.numpy()), self.config.train.train_steps
        self._check_place(step)
        if step >= last:
            self._say(f"step {step:,} is done already; go on with --train_steps=N")
            return
        if step:
            self._say(f"going on from step {step:,} of {last:,}")
        # Drawn ten times a second for a person, twice a minute for a log file.
        interval = 0.1 if sys.stderr.isatty() else 30
        bar = tqdm(
            total=last,
            initial=step,
            unit="step",
            desc="train",
            mininterval=interval,
            disable=not self.cluster.is_chief,
        )
        with bar, _stop_signals() as received:
            self._train(step, bar, received)
        self.cluster.wait()  # for the chief's last dev scores

    @cached_property
    def peak_tflops(self) -> float:
        """Of all devices: by the data sheet of a known GPU, else of a product 1,024 wide here."""
        precision, devices = self.config.train.precision, device_names(self.trainer.strategy)
        if known := cost.sustained(devices[0], precision):
            return known.tflops * len(devices) * self.cluster.size
        return matmul_gflops(precision.removeprefix("mixed_"), 1, 1024) / 1e3 * self.cluster.size

    def _check_place(self, step: int) -> None:
        """Raises BadInput unless all workers go on from one step and train on the same pairs."""
        mine = [step, *self.position.numpy(), len(self.batching.split)]
        every = self.cluster.share(*mine).numpy()
        for index, worker in enumerate(every):
            if list(worker) != list(every[0]):
                raise BadInput(
                    f"{self.cluster.names[index]} goes on from step {worker[0]} with {worker[-1]} "
                    f"pairs, {self.cluster.names[0]} from step {every[0][0]} with {every[0][-1]}; "
                    "--workdir must be one directory that all hosts share"
                )

    def _say(self, message: str) -> None:
        if self.cluster.is_chief:
            print(message, file=sys.stderr)

    def _train(self, step: int, bar: tqdm, received: list[int]) -> None:
        train, interval, saved = self.config.train, Interval(), time.monotonic()
        batches, agreed = self._batches(), Agreement(self.cluster)
        while step < train.train_steps:
            interval.sums.append(self.trainer.step(*interval.fetch(batches)))
            step += 1
            bar.update()
            stopped, late = agreed(bool(received), self._is_late(saved))
            due = step == train.train_steps or stopped or late or self._is_counted(step)
            if due or step % train.log_steps == 0:  # also, so that no state with NaN is saved
                self._log(step, interval, bar)
                interval = Interval()
            if due:
                began = time.monotonic()
                self.cluster.by_chief(partial(self.checkpoints.save, step))
                written = time.monotonic()
                if stopped and step < train.train_steps:
                    raise Stopped
                if self._affords_scores(step):
                    self.validate(step)
                saved, interval = time.monotonic(), Interval()
                self.validating += saved - written
                spent = {"checkpoint_s": written - began, "dev_scores_s": saved - written}
                self.report(step, spent)
                agreed.forget()

    def _affords_scores(self, step: int) -> bool:
        """Whether the time allows for dev scores: by the chief's clock."""
        train, elapsed = self.config.train, time.monotonic() - self.began
        affords = step == train.train_steps or self.validating < train.eval_share * elapsed
        (chiefs, *_), *_ = self.cluster.share(affords).numpy()
        return bool(chiefs)

    def _is_counted(self, step: int) -> bool:
        """Whether it is time for a checkpoint, by steps.

        A run that was stopped between two checkpoints has one more, and then the same as others.
        """
        every = self.config.train.checkpoint_steps
        return bool(every) and step % every == 0

    def _is_late(self, saved: float) -> bool:
        """Whether it is time for a checkpoint, by minutes: by the chief's clock."""
        train = self.config.train
        if train.checkpoint_steps or not self.cluster.is_chief:
            return False
        return time.monotonic() - saved >= 60 * train.checkpoint_minutes

    def _log(self, step: int, interval: Interval, bar: tqdm) -> None:
        model = self.trainer.model
        rows = model.embedding.matrix.shape[0]
        values = interval.values(model.config, rows, self.peak_tflops)  # waits for the steps
        self.seconds.assign_add(time.monotonic() - interval.began)
        if not np.isfinite(values["loss"]):
            raise BadInput(
                f"the loss at step {step} is not a number; train in another --workdir with a lower "
                "--learning_rate_scale or more --warmup_steps"
            )
        rate = self.trainer.optimizer.learning_rate  # of the coming step
        self.report(step, values | {"learning_rate": float(rate)})
        bar.set_postfix_str(
            f"perplexity {values['perplexity']:.2f}, "
            f"{values['target_tokens_per_s']:,.0f} target tokens/s"
        )

    def _batches(self) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Batches from `position` on, for ever; `position` counts a batch when it is handed out."""
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
    """Collects SIGINT and SIGTERM, so that a step is never torn; a second one ends at once."""
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
