"""Table 3: what the paper prints of its rows, beside the exact number of parameters of each.

The changes of the rows are in configs/table3.yaml, each a `--variant`; what the paper prints is in
configs/table3_paper.yaml.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from t2t_repro import config
from t2t_repro.model import flops


class Printed(NamedTuple):
    """What the paper prints of a row, on newstest2013."""

    perplexity: float  # per piece
    bleu: float
    millions: int | None = None  # trainable parameters, 10^6; None where they are those of base


def printed() -> dict[str, Printed]:
    """By the names of the rows, in the order of the table."""
    path = config.config_dir() / "table3_paper.yaml"
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: Printed(**row) for name, row in rows.items()}


def parameters(resolved: config.Config) -> int:
    """Trainable, exactly; the vocabulary must have as many pieces as it is to have."""
    model = resolved.model
    return flops.trainable_parameters(model, model.embedding_rows or resolved.data.vocabulary_size)


def heading(problem: str) -> str:
    """What the columns of `listing` are."""
    big, ours = printed()["big"].millions, parameters(config.resolve("wmt14_ende", "big"))
    return (
        f"{problem}: row, trainable parameters; as the paper prints them millions of parameters, "
        "dev perplexity per piece and BLEU; what the row changes. big: the arithmetic that gives "
        f"all other rows gives {ours:,}, not {big} million; unresolved"
    )


def listing(problem: str, overrides: Mapping[str, Any]) -> Iterator[str]:
    """A line for each row, and each variant of the problem's own, with its parameters there."""
    paper = printed()
    for name, changes in config.variants(problem).items():
        count = parameters(config.resolve(problem, name, overrides))
        shown = ", ".join(f"{key} {value}" for key, value in changes.items()) or "-"
        yield f"{name:5}{count:>12,}{_columns(paper.get(name))}  {shown}"


def _columns(row: Printed | None) -> str:
    """What the paper prints, in 17 characters."""
    if row is None:
        return " " * 17
    return f"{row.millions or '-':>5}{row.perplexity:>6.2f}{row.bleu:>6.1f}"
