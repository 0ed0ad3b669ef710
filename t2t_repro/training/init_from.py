"""Where a new run starts if it does not start with random weights: at the end of another run."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import BadInput
from pipelines.vocabulary import FILES, Vocabulary
from t2t_repro.config import Config, Model
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.checkpoints import average_last
from t2t_repro.workdir import Workdir

# Settings of the model that change no weight's shape or meaning.
_FREE = ("dropout", "attention_dropout")


@dataclass(frozen=True)
class OtherRun:
    """The run in another work directory, `--init_from`."""

    path: Path

    def check_shape(self, model: Model) -> None:
        """Raise BadInput unless the run has a model of the same shape."""
        there, here = self._config.model, model
        names = [field.name for field in dataclasses.fields(Model) if field.name not in _FREE]
        found = {name: (getattr(there, name), getattr(here, name)) for name in names}
        other = {name: pair for name, pair in found.items() if pair[0] != pair[1]}
        if other:
            pairs = ", ".join(f"{name} {new}" for name, (_, new) in other.items())
            flags = " ".join(f"--{name}={_flag(own)}" for name, (own, _) in other.items())
            raise BadInput(
                f"--init_from={self.path}: its model has another shape; give {flags} (got: {pairs})"
            )

    def copy_weights(self, model: Transformer, vocabulary: Vocabulary, strict: bool) -> None:
        """Set a model's weights to those that the run is scored with.

        Args:
            model: The model, of the same shape.
            vocabulary: The vocabulary that the model is to be trained with.
            strict: Whether a damaged checkpoint is an error, and not only a warning.

        Raises:
            BadInput: the run has no good checkpoint, or another vocabulary.
        """
        if Vocabulary.load(self.path).fingerprint != vocabulary.fingerprint:
            raise BadInput(
                f"--init_from: {self.path / FILES[0]} is not the vocabulary that this run took "
                "over from there; bring that one back, or begin a new run in another --workdir"
            )
        config = self._config
        average_last(
            model,
            Workdir(self.path).checkpoints,
            config.decode.average_last,
            strict,
            config.train.keep_checkpoints,
            config.train.cooldown_begins,
        )

    @property
    def _config(self) -> Config:
        return Workdir(self.path).config()


def _flag(value: object) -> str:
    return str(value).lower()
