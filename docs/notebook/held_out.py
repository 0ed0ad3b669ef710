"""Hold out two sets of Multi30k's training captions: python docs/notebook/held_out.py FROM TO.

FROM/tok holds Multi30k's lower-cased tokenised files, plain or as .gz. TO/tok gets them with 2,000
training captions fewer, as `--data_dir=TO`, and TO/sets these captions:

- rare: 1,000 in which an English word occurs that no other training caption has, so that a model
  trained on TO meets a word that it has never seen.
- held_out: 1,000 drawn at random from the rest.
"""

import collections
import gzip
import random
import sys
from pathlib import Path

SIDES = ("en", "de")
EACH = 1000  # captions in each set


def main(source: Path, target: Path) -> None:
    """Write the training text without the two sets, and the sets."""
    for folder in (target / "tok", target / "sets"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("val", "test_2016_flickr"):
        for side in SIDES:
            file = f"tok/{name}.lc.norm.tok.{side}"
            (target / file).write_bytes(_content(source / file))
    training = [_lines(source / f"tok/train.lc.norm.tok.{side}") for side in SIDES]
    sets = _sets(training[0])
    left = sorted(set(range(len(training[0]))) - set(sets["rare"]) - set(sets["held_out"]))
    for side, lines in zip(SIDES, training, strict=True):
        with gzip.open(target / f"tok/train.lc.norm.tok.{side}.gz", "wb") as file:
            file.write(_text(lines, left))
        for name, chosen in sets.items():
            (target / f"sets/{name}.{side}").write_bytes(_text(lines, chosen))


def _sets(english: list[str]) -> dict[str, list[int]]:
    """Return the numbers of the captions in each set, in order."""
    captions = collections.Counter(word for line in english for word in set(line.split()))
    draw = random.Random(1)
    unique = [i for i, line in enumerate(english) if any(captions[w] == 1 for w in line.split())]
    rare = set(draw.sample(unique, EACH))
    others = draw.sample([i for i in range(len(english)) if i not in rare], EACH)
    return {"rare": sorted(rare), "held_out": sorted(others)}


def _content(path: Path) -> bytes:
    """Return the content of a file, which may be stored as <path>.gz."""
    if path.exists():
        return path.read_bytes()
    return gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes())


def _lines(path: Path) -> list[str]:
    return _content(path).decode().removesuffix("\n").split("\n")


def _text(lines: list[str], chosen: list[int]) -> bytes:
    return "".join(f"{lines[i]}\n" for i in chosen).encode()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
