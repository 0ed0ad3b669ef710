"""Table 3: the results that the paper prints, beside the exact number of parameters of each row.

configs/table3.yaml lists what each row changes, and makes it a `--variant`. The paper's results are
in configs/table3_paper.yaml.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from t2t_repro import config
from t2t_repro.model import flops


class Printed(NamedTuple):
    """The results of a row in the paper, on newstest2013."""

    perplexity: float  # per piece
    bleu: float
    millions: int | None = None  # millions of trainable parameters; None if equal to base's


def printed() -> dict[str, Printed]:
    """Return {row: its results}, in the order of the table."""
    path = config.config_dir() / "table3_paper.yaml"
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {name: Printed(**row) for name, row in rows.items()}


def parameters(resolved: config.Config) -> int:
    """Return the exact number of trainable parameters, if the vocabulary gets its full size."""
    model = resolved.model
    return flops.trainable_parameters(model, model.embedding_rows or resolved.data.vocabulary_size)


def heading(problem: str) -> str:
    """Return a line that explains the columns of `listing`."""
    big, ours = printed()["big"].millions, parameters(config.resolve("wmt14_ende", "big"))
    return (
        f"{problem}: row, trainable parameters; the paper's millions of parameters, dev perplexity "
        "per piece and BLEU; what the row changes. big: the arithmetic that gives all other rows "
        f"gives {ours:,}, not {big} million; unresolved"
    )


def listing(problem: str, overrides: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line per row and per variant of the problem, with its parameters on this problem."""
    paper = printed()
    for name, changes in config.variants(problem).items():
        count = parameters(config.resolve(problem, name, overrides))
        changed = ", ".join(f"{key} {value}" for key, value in changes.items()) or "-"
        yield f"{name:5}{count:>12,}{_columns(paper.get(name))}  {changed}"


def _columns(row: Printed | None) -> str:
    """Return the paper's results in 17 characters."""
    if row is None:
        return " " * 17
    return f"{row.millions or '-':>5}{row.perplexity:>6.2f}{row.bleu:>6.1f}"
