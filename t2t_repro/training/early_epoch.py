"""The first epoch of a prepared run, made by another process while this one imports TensorFlow.

Each of the two takes about 2 s of a core with Multi30k's captions. What the other process has kept
for later epochs is lost, so the second epoch takes 1.2 s longer. Configuration and epoch go through
pipes, pickled.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.batching import Batching
from pipelines.errors import BadInput
from pipelines.storage import is_address
from pipelines.workers import cores
from t2t_repro import run_text
from t2t_repro.config import Config
from t2t_repro.training.checkpoint_files import CheckpointFiles
from t2t_repro.workdir import Workdir

# Seven times Multi30k's, whose epoch takes 2 s and 6 MB. A longer one gains nothing by an earlier
# start, and would be in memory several times.
_MOST_PAIRS = 200_000


class EarlyEpoch:
    """The altered epoch 0 that another process makes.

    Args:
        config: The configuration that it is made with.
        process: Writes it to its standard output.
    """

    def __init__(self, config: Config, process: subprocess.Popen[bytes]):
        self.config, self.process = config, process

    def take(self, config: Config) -> Batching | None:
        """Wait for the epoch and return it; call once.

        Args:
            config: The configuration of the run that needs it.

        Returns:
            The epoch; None if it was made with another configuration, or could not be made for
            whatever reason. The caller then makes it, and reports what it finds.
        """
        if config != self.config or not self.process.stdout:
            return None
        try:
            epoch = pickle.load(self.process.stdout)  # written by this very program
        except (EOFError, OSError, MemoryError, pickle.UnpicklingError):
            return None
        self.process.wait()
        return epoch


@contextlib.contextmanager
def begun(
    problem: str | None, variant: str | None, workdir: Workdir, overrides: Mapping[str, Any]
) -> Iterator[EarlyEpoch | None]:
    """Let another process make the first epoch of a run that is prepared but not yet trained.

    That process reads the work directory without its lock. It ends with the context, and after its
    work if this process is killed.

    Args:
        problem: The problem's name, None for that of the run in the work directory.
        variant: The same for its variant.
        workdir: The work directory.
        overrides: Settings given as flags.

    Yields:
        The epoch; None if there is no such run, or nothing to gain.
    """
    config = _config(problem, variant, workdir, overrides)
    process = config and _start(config, workdir.path)
    if not (config and process):
        yield None
        return
    with process:
        try:
            yield EarlyEpoch(config, process)
        finally:
            process.kill()


def _config(
    problem: str | None, variant: str | None, workdir: Workdir, overrides: Mapping[str, Any]
) -> Config | None:
    """Return the configuration of a run whose first epoch should be made; None if it should not."""
    if not workdir.holds_run or CheckpointFiles(workdir.checkpoints).listing().steps:
        return None
    try:
        config = workdir.config_to_train(problem, variant, overrides)
    except (BadInput, OSError):
        return None  # `launch.train` reports it
    train, data = config.train, config.data
    alterations = train.bpe_dropout, train.misspelt_share, train.auxiliary_tasks
    is_altered = any(alterations) and train.altered_updates
    is_local = not (data.stream or is_address(data.prepared_dir or ""))
    return config if is_altered and is_local and cores() > 1 else None


def _start(config: Config, workdir: Path) -> subprocess.Popen[bytes] | None:
    """Start the process, with the code of this one; return None if the system allows no more."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import answer; answer()"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # a Ctrl-C is for this process alone
        )
    except OSError:
        return None
    assert process.stdin
    with contextlib.suppress(OSError), process.stdin:  # it may have ended already
        pickle.dump((config, workdir), process.stdin)
    return process


def answer() -> None:
    """Write the first epoch to standard output, for what comes on standard input."""
    config, workdir = pickle.load(sys.stdin.buffer)
    pickle.dump(first_epoch(config, workdir), sys.stdout.buffer)


def first_epoch(config: Config, workdir: Path) -> Batching | None:
    """Return the epoch, with its buckets; None if a file for it is missing or it is large."""
    corpus = run_text.corpus_of(config, Workdir(workdir), read_only=True)
    is_aligned = corpus.links_file.exists() or not config.train.auxiliary_tasks
    if not (corpus.is_prepared and is_aligned):
        return None
    batching = run_text.training_batches(config, corpus)
    if not isinstance(batching, Batching) or batching.pairs > _MOST_PAIRS:
        return None
    epoch = batching.for_epoch(0, 0)
    _ = epoch.buckets  # are pickled with it
    return epoch
