"""Table 2: BLEU on newstest2014 and training cost in the paper, with a row for a run."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from pipelines import json_object
from pipelines.errors import BadInput
from pipelines.json_object import is_number, is_text
from t2t_repro.config import Config, config_dir

_COLUMNS = ("bleu_de", "bleu_fr", "flops_de", "flops_fr")
_HEADS = ("BLEU EN-DE", "BLEU EN-FR", "FLOPs EN-DE", "FLOPs EN-FR")

_PAPER_LINES = 3003  # newstest2014; sacreBLEU calls this set `wmt14/full`
_SACREBLEU_LINES = 2737  # sacreBLEU's `wmt14`, which leaves out 266 lines


def printed() -> dict[str, dict[str, float]]:
    """Return {system: its numbers in the paper}, under the names of `_COLUMNS`."""
    path = config_dir() / "table2.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def check(problem: str, is_translation: bool, spent: Mapping[str, Any] | None) -> None:
    """Check that a run can have a row.

    Args:
        problem: The run's problem.
        is_translation: Whether the problem is translation.
        spent: "cost" in its results.json; None if training is not finished.

    Raises:
        BadInput: The problem is another one, or the cost is damaged.
    """
    if not is_translation:
        raise BadInput(f"--table2: Table 2 is about translation, which {problem} is not")
    if spent is not None:
        _check_cost(spent)


def listing(
    config: Config, scores: Mapping[str, Any], spent: Mapping[str, Any] | None
) -> Iterator[str]:
    """Yield the lines of the table with a row for a run, then notes on how the rows compare.

    Args:
        config: The run's configuration.
        scores: Its test scores; the row shows `paper_bleu`, BLEU as the paper computes it.
        spent: "cost" in its results.json, as `check` takes it; the row shows the cost by the
            paper's formula. None if training is not finished.
    """
    ours = _ours(config, scores, spent)
    table = printed() | {f"here: {config.problem}, {config.variant}": ours}
    width = max(map(len, table))
    yield f"{'':{width}}" + "".join(f"{head:>13}" for head in _HEADS)
    for name, row in table.items():
        yield f"{name:{width}}" + "".join(f"{_format(key, row.get(key)):>13}" for key in _COLUMNS)
    yield "Transformer big EN-FR: 41.8 from arXiv version 5 on; proceedings and section 6.1: 41.0"
    yield f"here sacreBLEU {scores['sacrebleu']:.2f} ({scores['sacrebleu_signature']})"
    yield _test_set(config, int(scores["lines"]))
    if spent is None:
        yield "cost: unknown, because training is not finished"
    else:
        counts = ", ".join(f"{name} {flops:.1e}" for name, flops in spent["paper_flops"].items())
        yield f"by count of products {spent['flops']:.1e} FLOPs here; the paper's runs {counts}"
    if spent and spent["formula_flops"] is None:
        device = spent["device"]
        yield f"no FLOPs by the paper's formula: the sustained speed of {device} is unknown"


def _check_cost(spent: Mapping[str, Any]) -> None:
    """Raise BadInput if the cost is not as `cost.run_cost` returns it."""

    def are_flops(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(map(is_text, value))
            and all(map(is_number, value.values()))
        )

    wanted = {
        "flops": is_number,
        "formula_flops": lambda value: value is None or is_number(value),
        "paper_flops": are_flops,
        "device": is_text,
    }
    try:
        json_object.check(spent, wanted)
    except ValueError as error:
        raise BadInput(
            f"--table2: results.json is damaged, 'cost': {error}; delete the file, and run python "
            "-m t2t_repro.train with the same --workdir on the same machine, which trains no "
            "further and writes it again"
        ) from None


def _ours(
    config: Config, scores: Mapping[str, Any], spent: Mapping[str, Any] | None
) -> dict[str, float]:
    language = config.data.target_language  # a run into another one has no column
    row = {f"bleu_{language}": scores["paper_bleu"]}
    if spent and spent["formula_flops"] is not None:
        row[f"flops_{language}"] = spent["formula_flops"]
    return row


def _test_set(config: Config, lines: int) -> str:
    if not config.problem.startswith("wmt14"):
        return "BLEU here is on another test set than newstest2014 and cannot be compared"
    if lines == _PAPER_LINES:
        return f"BLEU here is on all {lines:,} lines of newstest2014, like the paper's"
    filtered = " (sacreBLEU's `wmt14`)" if lines == _SACREBLEU_LINES else ""
    return (
        f"BLEU here is on {lines:,} lines{filtered} and cannot be compared: the paper's is on "
        f"all {_PAPER_LINES:,} lines of newstest2014"
    )


def _format(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if key.startswith("bleu") else f"{value:.1e}"
