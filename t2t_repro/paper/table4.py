"""Table 4: F1 of parsers on section 23 of the Wall Street Journal, with a row for a run."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from pipelines.errors import BadInput
from t2t_repro.config import Config, config_dir

SECTION_23 = 2_416  # sentences


def printed() -> list[dict[str, Any]]:
    """Return the paper's rows: `parser`, `training`, `f1`."""
    path = config_dir() / "table4.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def check(problem: str, is_parsing: bool) -> None:
    """Raise BadInput unless a run's problem is parsing."""
    if not is_parsing:
        raise BadInput(f"--table4: Table 4 is about parsing, which {problem} is not")


def listing(config: Config, scores: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table with a row for a run, then notes on how the rows compare.

    Args:
        config: The run's configuration.
        scores: Its test scores by `evalb.scores`; the row shows `f1`, which covers all lengths.
    """
    training = "semi-supervised" if config.data.extra_tree_files else "treebank only"
    ours = {"parser": f"here: {config.problem}, {config.variant}", "training": training}
    table = [*printed(), ours | {"f1": scores["f1"]}]
    names, trainings = (max(len(row[key]) for row in table) for key in ("parser", "training"))
    yield f"{'':{names}}  {'training':{trainings}}     F1"
    for row in table:
        yield f"{row['parser']:{names}}  {row['training']:{trainings}}{row['f1']:>7.2f}"
    short = f"{scores['lines_40']:,} sentences of at most 40 words"
    yield f"here F1 {scores['f1_40']:.2f} on the {short}"
    if scores["skipped"]:
        yield (
            f"EVALB leaves out {scores['skipped']:,} sentences; if they count as parses without "
            f"brackets, F1 is {scores['f1_punished']:.2f}"
        )
    yield from _comparability(config.problem, scores["lines"])


def _comparability(problem: str, sentences: int) -> Iterator[str]:
    yield f"here {sentences:,} sentences; section 23 has {SECTION_23:,}"
    if problem != "wsj_parsing" or sentences != SECTION_23:
        yield "F1 here is on another test set than WSJ section 23 and cannot be compared"
