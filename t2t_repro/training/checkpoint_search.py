"""The search for good checkpoints, from the newest back, and what is said about damaged ones.

A damaged checkpoint is found out when it is restored: TensorFlow checks every value that it reads
against a checksum. The newest good one is then used instead, unless `strict` asks for an error.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from pipelines.errors import BadInput, first_line
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.checkpoint_files import CheckpointFiles
from t2t_repro.training.stream_places import StreamPlaces

# These say nothing about a checkpoint's files: memory or permission is lacking, or a worker.
_LACKING = (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError)
_LOST = (tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.UnavailableError)


class Damaged(Exception):
    """A checkpoint's files are cut short, changed or missing."""


class Search:
    """The search for good checkpoints, from the newest back unless `steps` is set.

    Args:
        files: The checkpoints' files.
        checkpoint: What is restored from them.
        weights: The model's weights by name.
        strict: Whether a damaged checkpoint is an error.
    """

    def __init__(
        self,
        files: CheckpointFiles,
        checkpoint: tf.train.Checkpoint,
        weights: dict[str, tf.Variable],
        strict: bool,
    ):
        self.files, self.checkpoint, self.weights = files, checkpoint, weights
        self.strict, self.listing = strict, files.listing()
        self.steps: Sequence[int] = self.listing.steps[::-1]  # in the order of the search
        self.spare: Collection[int] = ()  # steps that are used only if none before was good
        self.places: StreamPlaces | None = None  # restored with the checkpoint
        self.damaged: dict[int, str] = {}  # {step: reason}

    def restored(self) -> Iterator[int]:
        """Restore one checkpoint after another; yield the step of each that is good.

        Raises:
            BadInput: all of them are damaged, `strict` and one is, or one is of another shape.
        """
        self._check_strict()
        is_any_good = False
        for step in self.steps:
            if is_any_good and step in self.spare:
                return
            try:
                with _explained(self.files.path(step)):
                    _restore(self.checkpoint, self.files.path(step), self.weights)
                    if self.places:
                        self.places.restore(step)
            except Damaged as damage:
                self.damaged[step] = str(damage)
                self._check_strict()
            else:
                is_any_good = True
                yield step
        if not is_any_good and (complaints := self._complaints()):
            if set(self.steps) < set(self.listing.steps):  # the others were not tried
                raise BadInput(
                    f"{complaints[0]}; copy it back from elsewhere, or give another --checkpoint"
                )
            raise BadInput(
                f"{complaints[0]}, and no other checkpoint is good; copy one back from elsewhere, "
                "or train in another --workdir"
            )

    def warnings(self, used: Sequence[int]) -> list[str]:
        """Return a line about each damaged file, with the checkpoints that are used instead."""
        names = [self.files.path(step).name for step in sorted(used)]
        shown = " to ".join(dict.fromkeys([*names[:1], *names[-1:]]))
        return [f"warning: {each}; used instead: {shown}" for each in self._complaints()]

    def _complaints(self) -> list[str]:
        """Return what is wrong with which file, the newest checkpoint first."""
        found = [(self.files.path(step), reason) for step, reason in self.damaged.items()]
        if self.listing.complaint:
            found.append((self.files.list_file, self.listing.complaint))
        return [f"{path}: {reason}" for path, reason in found]

    def _check_strict(self) -> None:
        if self.strict and (complaints := self._complaints()):
            raise BadInput(
                f"{complaints[0]}; copy it back from elsewhere, or leave --strict out to use what "
                "is good"
            )


def weights_by_name(model: Transformer) -> dict[str, tf.Variable]:
    """Index all weights by path, as "transformer/encoder_0/self_attention/query/kernel"."""
    named = {weight.path: weight.value for weight in model.weights}
    assert len(named) == len(model.weights), "two weights of one name"
    return named


def _restore(checkpoint: tf.train.Checkpoint, path: Path, weights: dict[str, tf.Variable]) -> None:
    """Restore a checkpoint."""
    for file in path.parent.glob(f"{path.name}.*"):
        if file.exists() and not file.is_file():  # TensorFlow would wait for a pipe's writer
            raise Damaged("a pipe, a device or a folder is in the place of a file")
    names = [name for name, _ in tf.train.list_variables(str(path)) if name.startswith("weights/")]
    if len(names) != len(weights):
        raise ValueError(f"it has {len(names)} weights, the model {len(weights)}")
    status = checkpoint.read(str(path))
    status.assert_existing_objects_matched()
    status.expect_partial()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Translate the errors of TensorFlow while a checkpoint is restored.

    Raises:
        Damaged: its files are.
        BadInput: it is of another shape, or cannot be read for another reason.
    """
    try:
        yield
    except (BadInput, *_LOST):
        raise
    except _LACKING as error:
        raise BadInput(
            f"{path}: cannot be read: {first_line(error)}. Once it can be, run the same command "
            "again"
        ) from None
    # IndexError: how TensorFlow's reader reports a truncated file.
    except (tf.errors.OpError, IndexError) as error:
        raise Damaged(f"damaged ({first_line(error)})") from None
    except (ValueError, AssertionError) as error:
        raise BadInput(
            f"{path}: cannot be restored, it is of another model: {first_line(error)}. Bring back "
            "the config.yaml that it was trained with, or train in another --workdir"
        ) from None
