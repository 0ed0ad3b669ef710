"""Table 4: the F1 of parsers on section 23 of the Wall Street Journal, and that of a run below."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from pipelines.errors import BadInput
from t2t_repro.config import Config, config_dir

SECTION_23 = 2_416  # sentences


def printed() -> list[dict[str, Any]]:
    """The paper's rows: `parser`, `training`, `f1`."""
    path = config_dir() / "table4.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def listing(config: Config, scores: Mapping[str, Any]) -> Iterator[str]:
    """The table, then what cannot be seen in it.

    Args:
        config: Of the run.
        scores: Of its test set, by `brackets.scores`: `f1`, of all lengths, goes into the table.

    Raises:
        BadInput: these are no scores of parses.
    """
    if "f1" not in scores:
        raise BadInput(f"--table4: Table 4 is of parsing, {config.problem} is not")
    training = "semi-supervised" if config.data.extra_tree_files else "treebank only"
    ours = {"parser": f"here: {config.problem}, {config.variant}", "training": training}
    table = [*printed(), ours | {"f1": scores["f1"]}]
    names, trainings = (max(len(row[key]) for row in table) for key in ("parser", "training"))
    yield f"{'':{names}}  {'training':{trainings}}     F1"
    for row in table:
        yield f"{row['parser']:{names}}  {row['training']:{trainings}}{row['f1']:>7.2f}"
    yield f"here of at most 40 words: F1 {scores['f1_40']:.2f}, {scores['lines_40']:,} sentences"
    if scores["skipped"]:
        yield (
            f"EVALB leaves out {scores['skipped']:,} sentences; as parses without a bracket they "
            f"make it F1 {scores['f1_punished']:.2f}"
        )
    yield from _compared(config.problem, scores["lines"])


def _compared(problem: str, sentences: int) -> Iterator[str]:
    yield f"here {sentences:,} sentences; section 23 has {SECTION_23:,}"
    if problem != "wsj_parsing" or sentences != SECTION_23:
        yield "F1 here is on another test set than WSJ section 23, and not to be compared"
