"""The files of a run's checkpoints, and the list that names them; needs no TensorFlow.

    step-<n>.index, step-<n>.data-*   the checkpoint after n updates
    step-<n>.worker-<i>.*             where worker i > 0 was then in its part of a stream of data
    checkpoint                        TensorFlow's list: the newest checkpoint, and all that count
    damaged-step-<n>.*                not restorable: training has gone on from an earlier one
    dev_scores.json                   which checkpoints are the best; see `score_history`

The list is written after the files that it names. So a file that it does not name was left by a
killed process, or belongs to a step after the one to which somebody has gone back by editing the
list.
"""

import dataclasses
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from pipelines import regular_file, storage

_LONGEST = 2**20  # bytes of the list that are read: the names of 20,000 checkpoints
_NUMBER = r"(0|[1-9]\d{0,17})"
_LINE = re.compile(
    rf"""^[ \t]*(all_)?model_checkpoint_paths?:[ \t]*["'](?:.*/)?step-{_NUMBER}["'][ \t\r]*$""",
    re.MULTILINE,
)
_SUFFIX = r"\.(?:index|data-\d+-of-\d+)"
_FILE = re.compile(rf"step-{_NUMBER}{_SUFFIX}")
_ANY_FILE = re.compile(rf"step-{_NUMBER}(?:\.worker-\d+)?{_SUFFIX}")


@dataclasses.dataclass(frozen=True)
class Listing:
    """The checkpoints that count."""

    steps: tuple[int, ...]  # ascending; their files may be damaged or missing
    complaint: str = ""  # what is wrong with the list, so that the files' names stand in for it


@dataclasses.dataclass(frozen=True)
class CheckpointFiles:
    """The files in `directory`, which need not exist yet."""

    directory: Path

    def path(self, step: int) -> Path:
        """Return what TensorFlow calls a checkpoint's path: its files without their suffixes."""
        return self.directory / f"step-{step}"

    def place(self, step: int, worker: int) -> Path:
        """Return the same of a worker's place in its part of a stream."""
        return self.directory / f"step-{step}.worker-{worker}"

    def places(self, step: int) -> int:
        """Return how many workers' places lie beside a checkpoint."""
        return len([*self.directory.glob(f"step-{step}.worker-*.index")])

    @property
    def list_file(self) -> Path:
        """The path of the list."""
        return self.directory / "checkpoint"

    def listing(self) -> Listing:
        """Return the checkpoints that the list names or, if it is of no use, that have files."""
        whole = self._with_index()
        try:
            with regular_file.opened(self.list_file) as file:
                text = file.read(_LONGEST).decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return Listing(tuple(sorted(whole)), "missing" if whole else "")
        except OSError as error:
            return Listing(tuple(sorted(whole)), error.strerror or "unreadable")
        found = _LINE.findall(text)
        newest = max((int(step) for is_all, step in found if not is_all), default=None)
        if newest is None:
            return Listing(tuple(sorted(whole)), "damaged")
        named = {int(step) for is_all, step in found if is_all} or whole
        named = {step for step in named if step <= newest} | {newest}
        if whole and not whole & named:
            return Listing(tuple(sorted(whole)), "names no checkpoint that is there")
        return Listing(tuple(sorted(named)))

    @property
    def last_step(self) -> int:
        """The step of the newest checkpoint that counts and has files, or 0."""
        return max(filter(self.has, self.listing().steps), default=0)

    def has(self, step: int) -> bool:
        """Return whether a checkpoint has files, whatever is in them."""
        return step in self._with_index()

    def record(self, steps: Iterable[int]) -> None:
        """Write the list of the checkpoints that count, given in ascending order.

        Raises:
            OSError: the directory is gone, and is not made again for a list alone; or the disk is
                full.
        """
        self.directory.stat()
        *_, newest = steps = list(steps)
        lines = [f'model_checkpoint_path: "step-{newest}"']
        lines += [f'all_model_checkpoint_paths: "step-{step}"' for step in steps]
        storage.write(str(self.directory), self.list_file.name, ("\n".join(lines) + "\n").encode())

    def remove(self, step: int) -> None:
        """Delete a checkpoint's files, and what an unfinished save has left of it."""
        # The index first: without it the rest is known as a left-over.
        index = self.path(step).with_suffix(".index")
        for path in sorted(self.directory.glob(f"step-{step}.*"), key=lambda path: path != index):
            path.unlink(missing_ok=True)
        for folder in self.directory.glob(f"step-{step}_temp*"):
            shutil.rmtree(folder, ignore_errors=True)

    def set_aside(self, step: int) -> None:
        """Rename a damaged checkpoint's files, so that nothing counts or deletes them any more."""
        for path in self.directory.glob(f"step-{step}.*"):
            path.replace(path.with_name(f"damaged-{path.name}"))

    def clear_unfinished(self) -> None:
        """Delete what killed processes have left while they wrote or deleted a checkpoint."""
        for folder in self.directory.glob("step-*_temp*"):
            shutil.rmtree(folder, ignore_errors=True)
        for path in self.directory.glob("checkpoint.tmp*"):  # by TensorFlow, in earlier versions
            path.unlink(missing_ok=True)
        begun = {int(found[1]) for found in map(_ANY_FILE.fullmatch, self._names()) if found}
        for step in begun - self._with_index() - {*self.listing().steps}:
            self.remove(step)

    def _with_index(self) -> set[int]:
        """Return the steps that have an index, which TensorFlow writes last; empty ones do not."""
        found = (_FILE.fullmatch(name) for name in self._names() if name.endswith(".index"))
        steps = {int(match[1]) for match in found if match}
        return {step for step in steps if _size(self.path(step).with_suffix(".index"))}

    def _names(self) -> list[str]:
        return storage.names(str(self.directory))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # deleted meanwhile, by a run that goes on
        return 0
