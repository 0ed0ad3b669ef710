"""The training loop: steps, TensorBoard points, checkpoints, dev scores, and a clean stop."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from pipelines.batching import Batching
from pipelines.errors import BadInput
from pipelines.prepared import Prepared
from t2t_repro.checkpoints import Checkpoints
from t2t_repro.config import Config
from t2t_repro.trainer import Trainer

Report = Callable[[int, dict[str, float]], None]  # (step, {name: value})


class Stopped(Exception):
    """Training was stopped by Ctrl-C or SIGTERM, after a checkpoint."""


@dataclass
class Interval:
    """What happened since the last TensorBoard point."""

    sums: list[tf.Tensor] = field(default_factory=list)  # of Trainer.step; not waited for
    began: float = field(default_factory=time.monotonic)

    def values(self) -> dict[str, float]:
        """Means per target token, target tokens a second."""
        smoothed, unsmoothed, tokens = np.sum([s.numpy() for s in self.sums], axis=0)
        return {
            "loss": float(smoothed / tokens),
            "perplexity": float(np.exp(unsmoothed / tokens)),
            "target_tokens_per_s": float(tokens / (time.monotonic() - self.began)),
        }


class Loop:
    """Training up to `train_steps` updates.

    Args:
        trainer: The step.
        config: The run's configuration.
        data: The training pairs.
        checkpoint_dir: <work directory>/checkpoints.
        report: Called every `log_steps` with loss, perplexity, learning rate, tokens a second.
        validate: Called with the step after each checkpoint.
    """

    def __init__(
        self,
        trainer: Trainer,
        config: Config,
        data: Prepared,
        checkpoint_dir: Path,
        report: Report,
        validate: Callable[[int], None],
    ):
        self.trainer, self.config = trainer, config
        self.batching = Batching(
            data,
            tokens_per_batch=config.data.tokens_per_batch,
            max_shapes=config.data.max_shapes,
            count_padding=config.data.count_padding,
            seed=config.train.seed,
        )
        self.report, self.validate = report, validate
        # The place in the data: (epoch, batches of it already seen).
        self.position = tf.Variable([0, 0], dtype=tf.int64, trainable=False)
        self.checkpoints = Checkpoints(
            checkpoint_dir,
            config.train.keep_checkpoints,
            trainer.model,
            trainer.optimizer,
            self.position,
        )

    def run(self) -> None:
        """Trains, going on from the newest checkpoint if there is one.

        Raises:
            Stopped: by Ctrl-C or SIGTERM; the state is saved.
            BadInput: a checkpoint cannot be read or written, or the loss is not a number.
        """
        self.checkpoints.restore_latest()
        self.trainer.part_dropout()
        step, last = int(self.trainer.optimizer.iterations), self.config.train.train_steps
        if step >= last:
            print(f"step {step:,} is done already; go on with --train_steps=N", file=sys.stderr)
            return
        if step:
            print(f"going on from step {step:,} of {last:,}", file=sys.stderr)
        # Drawn ten times a second for a person, twice a minute for a log file.
        interval = 0.1 if sys.stderr.isatty() else 30
        bar = tqdm(total=last, initial=step, unit="step", desc="train", mininterval=interval)
        with bar, _stop_signals() as stopped:
            self._train(step, bar, stopped)

    def _train(self, step: int, bar: tqdm, stopped: list[int]) -> None:
        train, interval, saved = self.config.train, Interval(), time.monotonic()
        batches = self._batches()
        while step < train.train_steps:
            source, target = next(batches)
            interval.sums.append(self.trainer.step(source, target))
            step += 1
            bar.update()
            due = step == train.train_steps or bool(stopped) or self._due(step, saved)
            if due or step % train.log_steps == 0:  # also, so that no state with NaN is saved
                self._log(step, interval, bar)
                interval = Interval()
            if due:
                self.checkpoints.save(step)
                if stopped and step < train.train_steps:
                    raise Stopped
                self.validate(step)
                saved, interval = time.monotonic(), Interval()

    def _due(self, step: int, saved: float) -> bool:
        """Whether it is time for a checkpoint, by steps if they are given, else by minutes.

        A run that was stopped between two checkpoints has one more, and then the same as others.
        """
        train = self.config.train
        if train.checkpoint_steps:
            return step % train.checkpoint_steps == 0
        return time.monotonic() - saved >= 60 * train.checkpoint_minutes

    def _log(self, step: int, interval: Interval, bar: tqdm) -> None:
        values = interval.values()
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
            for index, batch in enumerate(self.batching.batches(epoch, first), first + 1):
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
