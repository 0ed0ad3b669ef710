"""Whether two systems differ by more than the choice of test sentences explains.

Paired bootstrap resampling (Koehn 2004) by sacreBLEU: 1,000 samples of the lines are drawn, the
same for all systems. The p-value is the share of samples in which a system's distance from the
first one exceeds the mean distance by more than its distance on all lines, and 1 if that is 0.
"""

from collections.abc import Sequence
from typing import Any

from sacrebleu.significance import PairedTest

from pipelines.errors import BadInput
from t2t_repro.scoring import bleu


def comparison(
    systems: Sequence[tuple[str, Sequence[str]]],
    references: Sequence[str],
    *,
    language: str,
    tokenized: bool = False,
    ter: bool = False,
) -> dict[str, Any]:
    """Compare systems with the first of them, the baseline.

    Args:
        systems: (name, output lines) of two systems or more.
        references: The reference lines, in the same order.
        language: Two-letter code of the target language.
        tokenized: Whether the lines are Moses tokens, see `bleu.translation_scores`.
        ter: Whether to compare by TER, too, which is slow.

    Returns:
        `systems`, a list of {"system": name, and for each metric {"score", "mean", "interval",
        "p_value"}}: the score, its mean over the samples, half the width of the 95 % confidence
        interval, and the p-value, None for the baseline. `signatures`, sacreBLEU's by metric.

    Raises:
        BadInput: There is one system only, or the numbers of lines differ or are 0.
    """
    if len(systems) < 2:
        raise BadInput("--compare: wanted two files or more, the baseline first")
    for _, hypotheses in systems:
        bleu.check_lines(hypotheses, references)
    metrics = bleu.metrics(language, tokenized) | (
        {"ter": bleu.ter_metric(language)} if ter else {}
    )
    # Its own names, such as chrF2, are in the order of ours.
    signatures, found = PairedTest(list(systems), metrics, [references], test_type="bs")()
    names = dict(zip(metrics, signatures, strict=True))
    rows = [
        {"system": system}
        | {name: _values(found[theirs][row], found[theirs][0]) for name, theirs in names.items()}
        for row, (system, _) in enumerate(systems)
    ]
    return {
        "systems": rows,
        "signatures": {name: str(signatures[theirs]) for name, theirs in names.items()},
    }


def lines(compared: dict[str, Any]) -> list[str]:
    """Return the lines of a table: a row for each system, for each metric score and p-value."""
    names, rows = list(compared["signatures"]), compared["systems"]
    width = max(len(row["system"]) for row in rows)
    head = "".join(f"{name:>18}{'p':>8}" for name in names)
    return [
        f"{'':{width}}{head}",
        *(
            f"{row['system']:{width}}" + "".join(_cells(row[name]) for name in names)
            for row in rows
        ),
        *(f"{name}: {signature}" for name, signature in compared["signatures"].items()),
    ]


def _values(result: Any, baseline: Any) -> dict[str, float | None]:
    p = result.p_value
    # sacreBLEU counts the samples beyond the distance; no sample of two equal outputs is beyond 0,
    # so they would differ with the least p-value that there is.
    if p is not None and result.score == baseline.score:
        p = 1.0
    return {
        "score": float(result.score),
        "mean": float(result.mean),
        "interval": float(result.ci),
        "p_value": None if p is None else float(p),
    }


def _cells(values: dict[str, float | None]) -> str:
    p = values["p_value"]
    score = f"{values['score']:.2f} ± {values['interval']:.2f}"
    return f"{score:>18}{'' if p is None else f'{p:.4f}':>8}"
