"""Compare two systems, each trained with several seeds: python docs/notebook/compare_seeds.py ...

    python docs/notebook/compare_seeds.py REFERENCE --first F1 F2 F3 --second G1 G2 G3

REFERENCE has tokenised lines, and the other files a seed's translations of the same source. Paired
bootstrap resampling (Koehn 2004): each of 10,000 samples draws lines, with the translations of all
seeds. Printed are the score of each system over all seeds' lines, the difference with its 95 %
interval, and p, the share of samples whose difference lies at least as far from the mean of all
samples as the difference itself does from 0. What other seeds would do is not in it.
"""

import argparse
from pathlib import Path

import numpy as np
import sacrebleu

SAMPLES = 10_000
METRICS = {
    "BLEU": sacrebleu.metrics.BLEU(tokenize="none", force=True),
    "chrF": sacrebleu.metrics.CHRF(),
}


def statistics(name: str, files: list[Path], reference: list[str]) -> np.ndarray:
    """Return each line's counts for a metric, summed over the files: float [lines, counts]."""
    extract = METRICS[name]._extract_corpus_statistics
    return sum(np.array(extract(_lines(file), [reference]), float) for file in files)


def score(name: str, counts: np.ndarray) -> np.ndarray:
    """Compute the metric of summed counts [..., counts]; no count of n-grams may be 0."""
    if name == "BLEU":
        (length, wanted), grams = np.moveaxis(counts[..., :2], -1, 0), counts[..., 2:]
        precision = np.log(grams[..., :4] / grams[..., 4:]).mean(-1)
        return 100 * np.exp(precision + np.minimum(0, 1 - wanted / length))
    ours, theirs, common = np.moveaxis(counts.reshape(*counts.shape[:-1], -1, 3), -1, 0)
    precision, recall = (common / ours).mean(-1), (common / theirs).mean(-1)
    return 100 * 5 * precision * recall / (4 * precision + recall)  # beta is 2


def main(reference: Path, first: list[Path], second: list[Path]) -> None:
    """Print a row for each metric."""
    wanted = _lines(reference)
    for file in (*first, *second):
        if len(_lines(file)) != len(wanted):
            raise SystemExit(f"{file}: not as many lines as {reference}")
    random = np.random.default_rng(12345)
    drawn = random.multinomial(len(wanted), [1 / len(wanted)] * len(wanted), SAMPLES).astype(float)
    for name in METRICS:
        systems = [statistics(name, files, wanted) for files in (first, second)]
        one, other = (float(score(name, counts.sum(0))) for counts in systems)
        samples = score(name, drawn @ systems[1]) - score(name, drawn @ systems[0])
        low, high = np.percentile(samples, [2.5, 97.5])
        p = np.mean(np.abs(samples - samples.mean()) >= abs(other - one))
        print(
            f"{name} {one:.2f} {other:.2f}, {other - one:+.2f} "
            f"({low:+.2f} to {high:+.2f}), p {p:.4f}"
        )


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument("--first", type=Path, nargs="+", required=True)
    parser.add_argument("--second", type=Path, nargs="+", required=True)
    given = parser.parse_args()
    main(given.reference, given.first, given.second)
