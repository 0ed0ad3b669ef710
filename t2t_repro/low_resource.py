"""The variant low_resource: its sizes and its number of updates, from the words to train on."""

import math
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.errors import BadInput
from pipelines.vocabulary import SPECIAL_PIECES
from t2t_repro import config as configs
from t2t_repro.config import Config

VARIANT = "low_resource"
MOST_WORDS = 1_000_000
# LibreOffice's help has up to 13 million. `AuxiliaryTasks` takes 100 million combinations of
# pieces, and a word has 2 pieces or fewer on average (1.6 or fewer in the texts tried).
MOST_COMBINATIONS = 20_000_000
# A side with fewer words than this share of the other's has no spaces between words: its "words"
# would be aligned as whole sentences.
LEAST_SHARE = 0.25


def fit(config: Config, pairs: Iterable[Mapping[str, str]], given: Mapping[str, Any]) -> Config:
    """Return a run's configuration with sizes and updates that suit its training text.

    Args:
        config: The configuration of a run of the variant.
        pairs: The training text, as a problem yields it.
        given: Settings that stay as they are, since the user has given them.

    Raises:
        BadInput: the text is not small.
    """
    words, fewer, characters, combinations = count(pairs)
    if words > MOST_WORDS:
        raise BadInput(
            f"--variant={VARIANT}: wanted a training text of at most {MOST_WORDS:,} words a side, "
            f"got {words:,}; leave the variant out, and choose sizes as "
            f"configs/{config.problem}.yaml says"
        )
    can_align = combinations <= MOST_COMBINATIONS and fewer >= LEAST_SHARE * words
    suited = sizes(words, characters, can_align, given.get("train_steps"))
    fitted = {name: value for name, value in suited.items() if name not in given}
    shown = ", ".join(f"{name} {value}" for name, value in fitted.items())
    print(f"{VARIANT}: {words:,} words to train on; {shown}", file=sys.stderr)
    return configs.override(config, fitted)


def count(pairs: Iterable[Mapping[str, str]]) -> tuple[int, int, int, int]:
    """Return the words of the longer side, those of the other, characters, and combinations.

    The other side may be of a script without spaces. Characters are the different ones of both
    sides. A combination is a source word and a target word of one pair.
    """
    source = target = combinations = 0
    characters: set[str] = set()
    for pair in pairs:
        s, t = len(pair["source"].split()), len(pair["target"].split())
        source, target, combinations = source + s, target + t, combinations + s * t
        # As the vocabulary sees them: NFKC makes thousands of syllables of Korean's single letters.
        for side in pair.values():
            characters.update(unicodedata.normalize("NFKC", side))
    return max(source, target), min(source, target), len(characters), combinations


def sizes(
    words: int, characters: int, can_align: bool, train_steps: int | None = None
) -> dict[str, Any]:
    """Return the settings that depend on the training text.

    Args:
        words: The number of words.
        characters: The number of different characters, each of which may need a piece.
        can_align: Whether words can be aligned for the auxiliary tasks.
        train_steps: The number of updates; None chooses it, too.
    """
    least = SPECIAL_PIECES + round(1.25 * characters)  # a quarter for what is longer
    # Multi30k has 13,000; half as many words are then seen 1.4 times as often.
    steps = train_steps or max(100 * round(130 * math.sqrt(words / 350_000)), 2_000)
    return {
        # At most 8,000, as Multi30k has; a vocabulary of half that size had 2 BLEU less there.
        "vocabulary_size": max(min(max(100 * round(words / 4_000), 1_000), 8_000), least),
        "train_steps": steps,
        # The tasks gained BLEU on Multi30k in 13,000 updates, and lost some in 4,000.
        "auxiliary_tasks": steps >= 8_000 and can_align,
    }
