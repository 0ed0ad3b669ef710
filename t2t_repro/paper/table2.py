"""Table 2: the paper's BLEU on newstest2014 and training cost, and those of a run below."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from pipelines.errors import BadInput
from t2t_repro.config import Config, config_dir

_COLUMNS = ("bleu_de", "bleu_fr", "flops_de", "flops_fr")
_HEADS = ("BLEU EN-DE", "BLEU EN-FR", "FLOPs EN-DE", "FLOPs EN-FR")

_PAPERS_LINES = 3003  # of newstest2014; sacreBLEU calls them `wmt14/full`
_SACREBLEUS_LINES = 2737  # its `wmt14`: 266 of them are left out


def printed() -> dict[str, dict[str, float]]:
    """The paper's rows: `bleu_de`, `bleu_fr`, `flops_de` and `flops_fr`, as far as it has them."""
    path = config_dir() / "table2.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def listing(
    config: Config, scores: Mapping[str, Any], spent: Mapping[str, Any] | None
) -> Iterator[str]:
    """The table, then what cannot be seen in it.

    Args:
        config: Of the run.
        scores: Of its test set: `paper_bleu` goes into the table, BLEU as the paper counted it.
        spent: "cost" of its results.json, of which the paper's formula goes into the table; None
            if it has not trained to its end.

    Raises:
        BadInput: these are no scores of translations.
    """
    if "paper_bleu" not in scores:
        raise BadInput(f"--table2: Table 2 is of translation, {config.problem} is not")
    ours = _ours(config, scores, spent)
    table = printed() | {f"here: {config.problem}, {config.variant}": ours}
    width = max(map(len, table))
    yield f"{'':{width}}" + "".join(f"{head:>13}" for head in _HEADS)
    for name, row in table.items():
        yield f"{name:{width}}" + "".join(f"{_shown(key, row.get(key)):>13}" for key in _COLUMNS)
    yield "Transformer big EN-FR: 41.8 from arXiv version 5 on; proceedings and section 6.1: 41.0"
    yield f"here sacreBLEU {scores['sacrebleu']:.2f} ({scores['sacrebleu_signature']})"
    yield _test_set(config, int(scores["lines"]))
    if spent is None:
        yield "cost: not known, training has not come to its end"
    else:
        counts = ", ".join(f"{name} {flops:.1e}" for name, flops in spent["paper_flops"].items())
        yield f"by count of products {spent['flops']:.1e} FLOPs here; the paper's {counts}"
    if spent and spent["formula_flops"] is None:
        yield f"no FLOPs by the paper's formula: what {spent['device']} sustains is not known"


def _ours(
    config: Config, scores: Mapping[str, Any], spent: Mapping[str, Any] | None
) -> dict[str, float]:
    language = "fr" if config.data.target_language == "fr" else "de"
    row = {f"bleu_{language}": scores["paper_bleu"]}
    if spent and spent["formula_flops"] is not None:
        row[f"flops_{language}"] = spent["formula_flops"]
    return row


def _test_set(config: Config, lines: int) -> str:
    if not config.problem.startswith("wmt14"):
        return "BLEU here is on another test set than newstest2014, and not to be compared"
    if lines == _PAPERS_LINES:
        return f"BLEU here is on all {lines:,} lines of newstest2014, as the paper's"
    filtered = ", which are sacreBLEU's `wmt14`" if lines == _SACREBLEUS_LINES else ""
    return (
        f"BLEU here is on {lines:,} lines{filtered}, and not to be compared: the paper's is on all "
        f"{_PAPERS_LINES:,} of newstest2014"
    )


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if key.startswith("bleu") else f"{value:.1e}"
