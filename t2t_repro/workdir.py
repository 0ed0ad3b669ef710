"""A run's work directory, and the files in it that no other part of the project owns.

    config.yaml         the resolved configuration; every later command reads it there
    vocabulary.model    the sentencepiece model, and vocabulary.vocab, its pieces for people to read
    corpus.json         what the vocabulary was learnt from, see `pipelines.corpus`
    prepared/           the splits as ids, see `pipelines.corpus`
    checkpoints/        weights, optimizer and place in the data
    nonfinite/          batches of skipped steps, see `training.skipped_steps`
    events.out.*        TensorBoard
    results.json        scores by split, and under "cost" the cost of training
    .lock               locked while a command trains or prepares the run, see `lock`

A directory with a config.yaml holds a run. The file is written once all text has been read, so a
start that fails leaves no run.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines import json_object, regular_file, storage
from pipelines.errors import BadInput
from t2t_repro import config as configs
from t2t_repro.config import Config
from t2t_repro.lock import Lock


@dataclass(frozen=True)
class Workdir:
    """The work directory at `path`, which need not exist yet."""

    path: Path
    lock: Lock | None = None  # of a command that trains or prepares, see `locked`

    @property
    def config_file(self) -> Path:
        """The path of config.yaml."""
        return self.path / "config.yaml"

    @property
    def results_file(self) -> Path:
        """The path of results.json."""
        return self.path / "results.json"

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def holds_run(self) -> bool:
        """Whether the directory holds a run: all text of its first start has been read."""
        return self.config_file.exists()

    @contextmanager
    def locked(self) -> Iterator["Workdir"]:
        """Make the directory if needed, and lock it until the context ends.

        Yields:
            The work directory, which from now on notices that it has vanished.

        Raises:
            BadInput: it cannot be written to, or another command trains or prepares there.
        """
        self._check_writable()
        with Lock(self.path) as lock:
            yield replace(self, lock=lock)

    @property
    def is_in_place(self) -> bool:
        """Whether the run is still there, in the directory that was locked if one was."""
        return self.holds_run and (self.lock is None or self.lock.is_in_place)

    def check_in_place(self) -> None:
        """Raise BadInput if the run is no longer there."""
        if not self.is_in_place:
            raise BadInput(
                f"{self.path}: deleted, moved or replaced while it was in use, so nothing more is "
                "saved; bring it back and run the same command again, which resumes from its last "
                "checkpoint"
            )

    def config(self, overrides: Mapping[str, Any] | None = None) -> Config:
        """Return the run's configuration, with settings replaced that a run may change.

        Raises:
            BadInput: there is no run, its file is damaged, or a setting may not change.
        """
        if not self.holds_run:
            raise BadInput(
                f"{self.path}: no run there (no {self.config_file.name}); train one with "
                f"--workdir={self.path}"
            )
        return self._override(configs.load(self.config_file), overrides or {})

    def config_to_train(
        self, problem: str | None, variant: str | None, overrides: Mapping[str, Any]
    ) -> Config:
        """Return the configuration to train with; a directory that holds a run keeps its own.

        Raises:
            BadInput: a name or value is unknown, the directory holds a run of another problem or
                with other settings or another training text, or it cannot be written to.
        """
        self._check_writable()
        if not self.holds_run:
            if self.checkpoints.exists():
                raise BadInput(
                    f"{self.config_file}: missing, beside checkpoints; restore it, or use "
                    "--workdir=NEW"
                )
            return configs.resolve(problem or "toy_ende", variant or "base", overrides)
        saved = configs.load(self.config_file)
        if problem not in (None, saved.problem) or variant not in (None, saved.variant):
            raise BadInput(
                f"{self.path} holds a run of {saved.problem}, variant {saved.variant}; wanted "
                f"{problem or saved.problem}, variant {variant or saved.variant}; use another "
                "--workdir"
            )
        wanted = self._override(saved, overrides)
        for split in ("dev", "test"):
            self._check_held_out(split, saved, wanted)
        return wanted

    def save_config(self, config: Config) -> None:
        """Write config.yaml; from then on the directory holds a run and its vocabulary is final."""
        configs.save(config, self.config_file)

    def results(self) -> dict[str, Any]:
        """Return results.json, empty if there is none; raise BadInput if it is damaged."""
        path = self.results_file
        try:
            found = json_object.parse(regular_file.read(path, json_object.MOST_BYTES))
            json_object.check(found, dict.fromkeys(found, _is_object))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or f"damaged, {error}"
            raise BadInput(
                f"{path}: {reason}; wanted scores as `evaluate` writes them: move it away and run "
                "the same command again"
            ) from None
        return found

    def add_result(self, name: str, result: Mapping[str, Any]) -> None:
        """Put a split's scores, or the cost, into results.json and keep the rest."""
        self.check_in_place()
        text = json.dumps(self.results() | {name: result}, indent=2) + "\n"
        storage.write(str(self.path), self.results_file.name, text.encode())

    def _override(self, saved: Config, overrides: Mapping[str, Any]) -> Config:
        """Replace settings of the run; raise BadInput if one may not change."""
        config = configs.override(saved, overrides)
        if changed := configs.conflicts(saved, config):
            raise BadInput(
                f"{self.path} holds a run with other settings: {', '.join(changed)}; leave these "
                "flags out to resume it, or use another --workdir"
            )
        return config

    def _check_held_out(self, split: str, saved: Config, wanted: Config) -> None:
        """Raise BadInput if pairs that were held out of the training text would be trained on."""
        name = f"{split}_source_files"
        has_files, had_files = (bool(getattr(config.data, name)) for config in (wanted, saved))
        if saved.data.held_out_share and has_files != had_files:
            raise BadInput(
                f"--{name}: the {split} text of the run in {self.path} is held out of its training "
                "text, which cannot change; leave the flag out, or use another --workdir "
                f"(`evaluate` scores the run on other {split} files)"
            )

    def _check_writable(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise BadInput(
                f"{self.path}: cannot be written to ({error.strerror}); wanted a directory for the "
                "run, new or of an earlier one: give another --workdir"
            ) from None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)
