"""The variant low_resource: its sizes and its number of updates, from the words to train on."""

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.errors import BadInput
from t2t_repro import config as configs
from t2t_repro.config import Config

VARIANT = "low_resource"
MOST_WORDS = 1_000_000


def fit(config: Config, pairs: Iterable[Mapping[str, str]], given: Mapping[str, Any]) -> Config:
    """Return a run's configuration with sizes and updates that suit its training text.

    Args:
        config: The configuration of a run of the variant.
        pairs: The training text, as a problem yields it.
        given: Settings that stay as they are, since the user has given them.

    Raises:
        BadInput: the text is not small.
    """
    words = count_words(pairs)
    if words > MOST_WORDS:
        raise BadInput(
            f"--variant={VARIANT}: wanted a training text of at most {MOST_WORDS:,} words, got "
            f"{words:,}; leave the variant out, and choose sizes as "
            f"configs/{config.problem}.yaml says"
        )
    suited = sizes(words, given.get("train_steps"))
    fitted = {name: value for name, value in suited.items() if name not in given}
    shown = ", ".join(f"{name} {value}" for name, value in fitted.items())
    print(f"{VARIANT}: {words:,} words to train on; {shown}", file=sys.stderr)
    return configs.override(config, fitted)


def count_words(pairs: Iterable[Mapping[str, str]]) -> int:
    """Return the number of words on the side that has more: some scripts have no spaces."""
    source = target = 0
    for pair in pairs:
        source += len(pair["source"].split())
        target += len(pair["target"].split())
    return max(source, target)


def sizes(words: int, train_steps: int | None = None) -> dict[str, Any]:
    """Return the settings that depend on the number of words of the training text.

    Args:
        words: The number of words.
        train_steps: The number of updates; None chooses it, too.
    """
    # Multi30k has 13,000; half as many words are then seen 1.4 times as often.
    steps = train_steps or max(100 * round(130 * math.sqrt(words / 350_000)), 2_000)
    return {
        # At most 8,000, as Multi30k has; a vocabulary of half that size had 2 BLEU less there.
        "vocabulary_size": min(max(100 * round(words / 4_000), 1_000), 8_000),
        "train_steps": steps,
        # The tasks gained BLEU on Multi30k in 13,000 updates, and lost some in 4,000.
        "auxiliary_tasks": steps >= 8_000,
    }
