"""Misspelling: other words of the sources have a typing error in each epoch. Not in the paper.

After Belinkov and Bisk 2018, arXiv:1711.02173: a model that has read misspelt sources translates
what people type in a hurry better. Targets stay as they are, and so do the sources in the last part
of a run (`altered_share`; by default, the cool-down).
"""

import dataclasses
import random
import re

import numpy as np

from pipelines.augmentation.blocks import in_blocks
from pipelines.shards import EncodedSplit, as_shard
from pipelines.vocabulary import Vocabulary

_LONG_WORD = re.compile(r"(?<!&)[^\W\d_]{4,}")  # not Moses's &apos; and &quot;


@dataclasses.dataclass(frozen=True)
class Misspelling:
    """An alteration that misspells words of a split's sources; a function of (seed, epoch)."""

    vocabulary: Vocabulary
    share: float  # the probability that a word of four letters or more is misspelt
    max_length: int  # most pieces of a source; one that would have more is left unaltered
    seed: int

    def __call__(self, split: EncodedSplit, epoch: int) -> EncodedSplit:
        """Return the split with misspelt sources, in memory; 20,000 Multi30k pairs per second."""
        return in_blocks(split, lambda pairs: self._block(split, pairs, epoch))

    def _block(
        self, split: EncodedSplit, pairs: np.ndarray, epoch: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return some of the pairs with misspelt sources, as a shard: ids, lengths."""
        draw = random.Random(f"misspelling {self.seed} {epoch} {pairs[0]}")
        sources, targets = zip(*split.sentences(pairs), strict=True)
        texts = self.vocabulary.decode(sources)
        altered = self.vocabulary.encode([misspelt(text, self.share, draw) for text in texts])
        kept = (
            new if len(new) <= self.max_length else old
            for old, new in zip(sources, altered, strict=True)
        )
        return as_shard(zip(kept, targets, strict=True), split.ids[0].dtype)


def misspelt(sentence: str, share: float, draw: random.Random) -> str:
    """Return a sentence whose words of four letters or more are each misspelt with a probability.

    In a misspelt word a letter between the first and the last is left out, written twice, or
    swapped with the next one.
    """

    def typed(match: re.Match[str]) -> str:
        word = match[0]
        if draw.random() >= share:
            return word
        at = draw.randrange(1, len(word) - 1)
        right = word[at : at + 2]
        letter, following = right[0], right[1]
        wrong = [following, letter + right, following + letter]
        if letter == following:
            wrong.pop()  # swapped, they would be the same
        return word[:at] + draw.choice(wrong) + word[at + 2 :]

    return _LONG_WORD.sub(typed, sentence)
