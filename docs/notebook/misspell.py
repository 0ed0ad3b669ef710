"""Misspell a word of each sentence: what does a typing error cost?

    python docs/notebook/misspell.py < SOURCE > MISSPELT

In one word of four letters or more, drawn at random, a letter that is not the first is left out,
written twice or swapped with the next one. A sentence without such a word stays as it is.
"""

import random
import re
import sys

LONG_WORD = re.compile(r"(?<!&)[^\W\d_]{4,}")  # not Moses's &apos; and &quot;


def misspelt(sentence: str, draw: random.Random) -> str:
    """Return the sentence with one spelling mistake."""
    words = list(LONG_WORD.finditer(sentence))
    if not words:
        return sentence
    word = draw.choice(words)
    at = draw.randrange(word.start() + 1, word.end() - 1)
    letter, following = right = sentence[at : at + 2]
    wrong = [s for s in (following, letter + right, following + letter) if s != right]
    return sentence[:at] + draw.choice(wrong) + sentence[at + 2 :]


if __name__ == "__main__":
    DRAW = random.Random(1)
    for line in sys.stdin:
        print(misspelt(line.rstrip("\n"), DRAW))
