"""The start of `train`: devices, workers that agree on a configuration, and clear endings."""

import contextlib
import os
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from pipelines.errors import BadInput, first_line
from pipelines.vocabulary import Vocabulary
from t2t_repro import config as configs
from t2t_repro import experiment, reports
from t2t_repro.config import Config
from t2t_repro.distributed.cluster import Cluster, WorkerGone
from t2t_repro.distributed.strategy import count_replicas, default_strategy, prepare_cpu
from t2t_repro.training.checkpoint_files import CheckpointFiles
from t2t_repro.training.early_epoch import EarlyEpoch
from t2t_repro.training.loop import Stopped
from t2t_repro.training.memory_fit import count_micro_batches
from t2t_repro.training.profile import Profile
from t2t_repro.workdir import Workdir

_VISIBLE_AFTER = 90.0  # seconds; by default an NFS client looks for changes at least once a minute


def train(
    problem: str | None,
    variant: str | None,
    workdir: Workdir,
    overrides: Mapping[str, Any],
    strict: bool = False,
    profile_steps: tuple[int, int] | None = None,
    early: EarlyEpoch | None = None,
) -> None:
    """Train a new run, or resume the run in the work directory, on all devices and workers.

    Args:
        problem: The problem's name, None for that of the run in the work directory.
        variant: The same for its variant.
        workdir: The work directory; the chief locks it.
        overrides: Settings given as flags.
        strict: Whether a damaged checkpoint is an error, and not only a warning.
        profile_steps: The first and the last step that the chief profiles for TensorBoard.
        early: The first epoch, if it is being made already.

    Raises:
        BadInput: the run cannot be trained with these settings.
        SystemExit: training was stopped by a signal; the state is saved.
    """
    try:
        micro_batches = _prepare_devices(problem, variant, workdir, overrides)
        cluster = Cluster(default_strategy())
        with cluster.watched(), _locked(workdir, cluster) as workdir:
            config = agree_on_config(problem, variant, workdir, overrides, cluster)
            most = int(cluster.share(micro_batches).numpy().max())
            run = experiment.build(config, workdir, cluster.strategy, strict)
            loop = experiment.make_loop(run, most, early)
            if cluster.is_chief:
                reports.print_model(run, loop.trainer.micro_batches)
            profiled = profile_steps if cluster.is_chief else None
            loop.run(strict, Profile(workdir.path, *profiled) if profiled else None)
            if cluster.is_chief:
                reports.record_cost(run, loop)
    except Stopped:
        print("stopped; the state is saved, the same command resumes from it", file=sys.stderr)
        sys.exit(1)
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        raise _no_memory(error) from None
    except WorkerGone as error:
        _end_without(error, workdir)
    if cluster.is_chief:
        done = f"trained; now: python -m t2t_repro.evaluate --workdir={workdir.path}"
        print(done, file=sys.stderr)


def _no_memory(error: Exception) -> BadInput:
    return BadInput(
        f"too little memory on a device ({first_line(error)}); the same command with "
        "--max_tokens_per_replica=auto, or a number of tokens that is small enough, resumes in "
        "micro-batches that fit"
    )


@contextlib.contextmanager
def _locked(workdir: Workdir, cluster: Cluster) -> Iterator[Workdir]:
    """Lock the work directory in the chief; the other workers use it under the chief's lock."""
    with contextlib.ExitStack() as held:
        yield cluster.by_chief(lambda: held.enter_context(workdir.locked())) or workdir


def agree_on_config(
    problem: str | None,
    variant: str | None,
    workdir: Workdir,
    overrides: Mapping[str, Any],
    cluster: Cluster,
) -> Config:
    """Return the configuration to train with, the same in every worker.

    With several workers, the chief reads and encodes all text first. The others then find a run in
    the work directory, which they share with the chief.

    Raises:
        BadInput: for the reasons of `experiment.config_to_train`; or this worker does not see the
            files that the chief wrote, or was started with other flags.
    """
    given = workdir, problem, variant, overrides
    if cluster.size == 1:
        return experiment.config_to_train(*given)

    def prepare() -> None:
        experiment.prepare(experiment.config_to_train(*given), workdir, is_read_here=True)

    cluster.by_chief(prepare)
    _wait_for_config(workdir.config_file, cluster)
    saved, config = workdir.config(), experiment.config_to_train(*given)
    old, new = configs.flat(saved), configs.flat(config)
    if changed := [name for name in new if new[name] != old[name]]:
        raise BadInput(
            f"{', '.join(changed)}: another value than {cluster.names[0]} was started with; give "
            "all workers the same flags"
        )
    return config


def _wait_for_config(path: Path, cluster: Cluster) -> None:
    """Wait until this worker sees the chief's file: a network file system may be slow."""
    (wanted, *_), *_ = cluster.share(_checksum(path)).numpy()
    until = time.monotonic() + _VISIBLE_AFTER
    while _checksum(path) != wanted:
        if time.monotonic() > until:
            raise BadInput(
                f"{path}: not the file that {cluster.names[0]} has written; --workdir must be one "
                "directory that all hosts share"
            )
        time.sleep(0.5)


def _checksum(path: Path) -> int:
    """Return the CRC-32 of the file at `path`, or -1 if it does not exist."""
    return zlib.crc32(path.read_bytes()) if path.exists() else -1


def _prepare_devices(
    problem: str | None, variant: str | None, workdir: Workdir, overrides: Mapping[str, Any]
) -> int:
    """Do what comes before TensorFlow initialises a device; return a replica's micro-batches.

    A CPU is prepared, unless XLA compiles the step, which is then made as a whole; and it is tried
    how many micro-batches a replica needs.
    """
    replicas = count_replicas()
    try:
        config = workdir.config_to_train(problem, variant, overrides)
        pieces = _vocabulary_size(config, workdir)
    except (BadInput, OSError):
        return 1  # all workers raise the error together later
    if not config.train.xla:
        prepare_cpu()
    return count_micro_batches(config, replicas, pieces)


def _vocabulary_size(config: Config, workdir: Workdir) -> int:
    """Return the pieces of the run's vocabulary, or how many it is going to learn."""
    given = config.data.vocabulary or config.train.init_from
    place = workdir.path if workdir.holds_run else given
    return Vocabulary.given(place).size if place else config.data.vocabulary_size


def _end_without(gone: WorkerGone, workdir: Workdir) -> NoReturn:
    """End this process: another worker is gone, and TensorFlow would wait for it at exit."""
    step = CheckpointFiles(workdir.checkpoints).last_step
    resume = f", to resume from step {step:,}" if step else ""
    print(
        f"{gone}; the messages of the other workers may say why. Start all workers again with the "
        f"same command{resume}",
        file=sys.stderr,
    )
    os._exit(1)
