"""Score translations by how often training has their source's rarest word.

    python docs/notebook/by_rarest_word.py TRAINING SOURCE REFERENCE OUTPUT

The four files are tokenised text; TRAINING, the source side of the training text, may be a .gz.
Each row has the captions, BLEU, chrF and the words of the output over those of the reference.
"""

import collections
import gzip
import sys
from pathlib import Path

import sacrebleu

GROUPS = {"never": (0, 0), "1 to 4 times": (1, 4), "5 to 49": (5, 49), "50 and more": (50, 10**9)}


def main(training: Path, source: Path, reference: Path, output: Path) -> None:
    """Print a row for each group of sentences."""
    times = collections.Counter(word for line in _lines(training) for word in line.split())
    rarest = [min((times[word] for word in line.split()), default=0) for line in _lines(source)]
    pairs = list(zip(_lines(reference), _lines(output), strict=True))
    for name, (least, most) in GROUPS.items():
        here = [p for p, count in zip(pairs, rarest, strict=True) if least <= count <= most]
        if here:
            print(f"{name:>12}  {_row(*zip(*here, strict=True))}")


def _row(references: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    bleu = sacrebleu.corpus_bleu(outputs, [references], tokenize="none", force=True)
    chrf = sacrebleu.corpus_chrf(outputs, [references])
    ratio = bleu.sys_len / max(1, bleu.ref_len)
    return f"{len(outputs):5}  {bleu.score:5.1f}  {chrf.score:5.1f}  {ratio:.3f}"


def _lines(path: Path) -> list[str]:
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return text.decode().removesuffix("\n").split("\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
