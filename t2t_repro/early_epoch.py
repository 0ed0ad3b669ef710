"""The first epoch of a prepared run, made by another process while this one imports TensorFlow.

Each of the two takes about 2.5 s of a core with Multi30k's captions.
"""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pipelines.batching import Batching
from pipelines.errors import BadInput
from pipelines.storage import is_address
from pipelines.workers import in_background
from t2t_repro import run_text
from t2t_repro.config import Config
from t2t_repro.training.checkpoint_files import CheckpointFiles
from t2t_repro.workdir import Workdir


class EarlyEpoch:
    """The altered epoch 0 that another process makes.

    Args:
        config: The configuration that it is made with.
        made: Receives it from that process, or None if it cannot be made.
    """

    def __init__(self, config: Config, made: Connection):
        self.config, self._made = config, made

    def take(self) -> Batching | None:
        """Wait for the epoch and return it, the first time; otherwise None.

        Also None if the process failed, for whatever reason: the caller then makes the epoch
        itself, and reports what it finds.
        """
        try:
            with self._made:
                return self._made.recv()
        except (EOFError, OSError):  # OSError the second time
            return None


def begin(
    problem: str | None, variant: str | None, workdir: Workdir, overrides: Mapping[str, Any]
) -> EarlyEpoch | None:
    """Let another process make the first epoch of a run that is prepared but not yet trained.

    That process only reads the work directory, which may be locked by another command.

    Args:
        problem: The problem's name, None for that of the run in the work directory.
        variant: The same for its variant.
        workdir: The work directory.
        overrides: Settings given as flags.

    Returns:
        The epoch; None if there is no such run, if its epochs are not altered, so that there is
        nothing to do, or if the system allows no further process.
    """
    if not workdir.holds_run or CheckpointFiles(workdir.checkpoints).listing().steps:
        return None
    try:
        config = workdir.config_to_train(problem, variant, overrides)
    except (BadInput, OSError):
        return None  # `launch.train` reports it
    train, data = config.train, config.data
    is_altered = train.bpe_dropout or train.auxiliary_tasks
    if data.stream or not is_altered or is_address(data.prepared_dir or ""):
        return None
    try:
        return EarlyEpoch(config, in_background(_first_epoch, config, workdir.path))
    except (OSError, RuntimeError):
        return None  # the system allows no further process, or has no semaphores


def _first_epoch(config: Config, workdir: Path) -> Batching | None:
    corpus = run_text.corpus_of(config, Workdir(workdir), read_only=True)
    if not corpus.is_prepared:
        return None
    batching = run_text.training_batches(config, corpus)
    assert isinstance(batching, Batching)  # not a stream
    epoch = batching.for_epoch(0, 0)
    _ = epoch.buckets  # are pickled with it
    return epoch
