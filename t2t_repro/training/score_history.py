"""The dev scores of a run's checkpoints: which are the best, and for how long there was no gain.

    dev_scores.json    beside the checkpoints: {step: {name: score}}, the main score last

Needs no TensorFlow.
"""

import json
import math
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from pipelines import json_object, storage
from pipelines.errors import BadInput

_NAME = "dev_scores.json"
_STEP = re.compile(r"[1-9]\d{0,17}")
_FALLING = ("perplexity",)  # the scores of which less is better


class ScoreHistory:
    """The dev scores so far, by step.

    Checkpoints are compared by the last score of the newest one: the problem's main score, or
    perplexity if no sentence was translated. A checkpoint that lacks this score is not compared.

    Args:
        directory: The directory of the checkpoints.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.scores: dict[int, dict[str, float]] = {}

    def recall(self, last: int) -> None:
        """Read the scores up to the step `last`, from which training goes on.

        Raises:
            BadInput: the file cannot be read, or is damaged.
        """
        scores = _read(self.directory)
        self.scores = {step: scores[step] for step in sorted(scores) if step <= last}

    def add(self, step: int, scores: Mapping[str, float]) -> None:
        """Write down the scores of a checkpoint.

        A perplexity that is not a number, of a model that has just diverged, counts as infinite: it
        can then be compared, and comes last.

        Raises:
            OSError: the directory is gone; it is not made again for this file alone.
            BadInput: there is no room for the file.
        """
        self.directory.stat()
        self.scores[step] = {
            name: math.inf if math.isnan(score) else score for name, score in scores.items()
        }
        text = json.dumps({str(step): found for step, found in self.scores.items()}, indent=1)
        storage.write(str(self.directory), _NAME, f"{text}\n".encode())

    @property
    def name(self) -> str:
        """The name of the score by which checkpoints are compared; "" if there is none."""
        return next(reversed(self.scores[max(self.scores)]), "") if self.scores else ""

    def ranking(self) -> list[int]:
        """Return the steps that can be compared, the best first; of equal ones the earliest."""
        name = self.name
        sign = 1 if name in _FALLING else -1
        compared = [step for step, found in self.scores.items() if name in found]
        return sorted(compared, key=lambda step: (sign * self.scores[step][name], step))

    def best(self, count: int, among: Container[int]) -> list[int]:
        """Return the best `count` steps among some."""
        return [step for step in self.ranking() if step in among][:count]

    def without_gain(self) -> int:
        """Return the number of scores since the best one."""
        ranking = self.ranking()
        return sum(step > ranking[0] for step in ranking)

    def shown(self, step: int) -> str:
        """Return the score of a step in words."""
        return f"{self.name} {self.scores[step][self.name]:.2f} at step {step:,}"


def _read(directory: Path) -> dict[int, dict[str, float]]:
    if (content := storage.read(str(directory), _NAME)) is None:
        return {}
    try:
        found = json_object.parse(content)
        json_object.check(found, dict.fromkeys(found, _are_scores))
        if other := [step for step in found if not _STEP.fullmatch(step)]:
            raise ValueError(f"{json_object.shown(other[0])} where a step belongs")
    except ValueError as error:
        raise BadInput(
            f"{directory / _NAME}: damaged ({error}); copy it back, or delete it: training then "
            "compares later checkpoints only"
        ) from None
    return {int(step): scores for step, scores in found.items()}


def _are_scores(value: Any) -> bool:
    """Return whether a value is {name: number}, none of the numbers NaN."""
    return isinstance(value, dict) and all(
        type(score) in (int, float) and score == score for score in value.values()
    )
