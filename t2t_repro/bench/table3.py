"""Table 3 again, small: every row trained and scored as in the paper, on any problem.

Of the paper's models d_model, d_ff, d_k and d_v are divided by one number, 4 if nothing else is
asked for; N, h, P_drop and eps_ls are the paper's, so that each row differs from base as it does
there. All rows make the same number of updates, big three times as many: 300,000 to 100,000. Text,
batches, warm-up and learning rate are the problem's own. Scores are on dev, of the last weights, no
checkpoints averaged, with beam 4 and alpha 0.6; perplexity is without label smoothing (6.2). The
learning rate does not cool down.

A row has a folder of its own in the work directory, is trained by `train` and scored by `evaluate`.
The same command again goes on where it was stopped: what is finished is read in results.json.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipelines.errors import BadInput
from t2t_repro import config
from t2t_repro.paper import table3
from t2t_repro.workdir import Workdir

Row = dict[str, Any]

DIVISORS = (1, 2, 4, 8, 16)  # 16 is the least width in the table: A4's d_k
_TRIAL = 200  # updates of base that tell how long one takes
_DIVIDED = ("d_model", "d_ff", "d_k", "d_v")
_OWN = (
    "num_layers",
    "num_heads",
    "dropout",
    "learned_positions",
    "label_smoothing",
    "bpe_dropout",
    "auxiliary_tasks",
    "cooldown_share",
    "beam_size",
    "alpha",
)


class Plan(NamedTuple):
    """What all rows of a work directory have in common."""

    problem: str
    divisor: int  # of the paper's widths
    updates: int  # of base
    settings: Mapping[str, Any]  # hyperparameters that were given as flags

    def config(self, row: str) -> config.Config:
        """The row's configuration."""
        return config.resolve(self.problem, row, self.overrides(row))

    def overrides(self, row: str) -> dict[str, Any]:
        """What `train` is told beside the problem and the row."""
        paper = config.flat(config.resolve("wmt14_ende", row))
        return {
            **{name: paper[name] for name in _OWN},
            **{name: paper[name] // self.divisor for name in _DIVIDED},
            "train_steps": self.updates * paper["train_steps"] // config.Train.train_steps,
            # Only the last weights are scored; others are kept to go on from after a stop.
            "checkpoint_steps": 0,
            "keep_checkpoints": 1,
            "eval_sentences": 0,
            "average_last": 1,
            **self.settings,
        }


def rows(names: Sequence[str], workdir: Path, plan: Plan) -> Iterator[Row]:
    """A row for each, when it is finished, and last how the ranks go with the paper's.

    Args:
        names: Rows of Table 3.
        workdir: Where the runs are.
        plan: How they are trained.

    Yields:
        On dev `perplexity`, `sacrebleu` and `paper_bleu`, as the paper counted it; `parameters`,
        `updates` and training `minutes`; and what the paper prints, `printed_perplexity` and
        `printed_bleu`. Last `spearman_perplexity` and `spearman_bleu` (of `paper_bleu`), the
        correlations with the paper over the `rows` asked for.

    Raises:
        BadInput: a row cannot be trained, or is there with other settings.
    """
    done: list[Row] = []
    for name in names:
        done.append({"row": name} | _finished(plan, name, workdir / name))
        yield done[-1]

    def correlation(ours: str, theirs: str) -> float | None:
        return spearman([row[ours] for row in done], [row[theirs] for row in done])

    yield {
        "rows": len(done),
        "spearman_perplexity": correlation("perplexity", "printed_perplexity"),
        "spearman_bleu": correlation("paper_bleu", "printed_bleu"),
    }


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """The correlation of the ranks, equal values sharing theirs; None if one side is all equal."""

    def ranks(values: Sequence[float]) -> np.ndarray:
        _, place, count = np.unique(np.array(values), return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[place]

    if len(set(x)) == 1 or len(set(y)) == 1:
        return None
    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


def planned(workdir: Path, wanted: Plan, minutes: float) -> Plan:
    """`wanted`, with the updates of base that take so many minutes if it says 0.

    They are counted once, by a trial of base in the work directory, and then kept in plan.json:
    rows can be compared after equally many updates, not on a machine that is busy now and then.

    Raises:
        BadInput: the work directory holds rows of another plan.
    """
    path = workdir / "plan.json"
    length = {"updates": wanted.updates} if wanted.updates else {"minutes": minutes}
    asked = {"problem": wanted.problem, "divisor": wanted.divisor} | length
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["asked"] != asked:
            raise BadInput(
                f"{workdir} holds rows with {_listed(found['asked'])}; wanted {_listed(asked)}; "
                "give the same to go on, or another --workdir"
            )
        return wanted._replace(updates=found["updates"])
    plan = wanted._replace(updates=wanted.updates or _updates_in(minutes, wanted, workdir))
    workdir.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"asked": asked, "updates": plan.updates}), encoding="utf-8")
    return plan


def _listed(asked: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in asked.items())


def _updates_in(minutes: float, wanted: Plan, workdir: Path) -> int:
    """Of base, from a trial; what it takes to begin is counted as if it came again and again."""
    trial = workdir / "trial"
    _train(wanted._replace(updates=_TRIAL), "base", trial)
    return max(1, int(60 * minutes * _TRIAL / _results(trial)["cost"]["seconds"]))


def _finished(plan: Plan, name: str, workdir: Path) -> Row:
    """The row's figures, after what is left to do for them."""
    wanted = plan.config(name)
    if "dev" not in _results(workdir):
        _train(plan, name, workdir)
        _run("evaluate", f"--workdir={workdir}", "--split=dev", "--json")
    elif changed := config.conflicts(Workdir(workdir).config(), wanted):
        raise BadInput(f"{workdir} holds another run: {', '.join(changed)}; use another --workdir")
    results, paper = _results(workdir), table3.printed()[name]
    scores, seconds = results["dev"], results["cost"]["seconds"]
    return {
        "parameters": table3.parameters(wanted),
        "updates": wanted.train.train_steps,
        "minutes": seconds / 60,
        **{key: scores[key] for key in ("perplexity", "sacrebleu", "paper_bleu")},
        "printed_perplexity": paper.perplexity,
        "printed_bleu": paper.bleu,
    }


def _train(plan: Plan, name: str, workdir: Path) -> None:
    """Trains a row, or goes on with it."""
    flags = [f"--problem={plan.problem}", f"--variant={name}", f"--workdir={workdir}"]
    for key, value in plan.overrides(name).items():
        flags += [f"--{key}", *map(str, value if isinstance(value, list | tuple) else [value])]
    _run("train", *flags)


def _run(command: str, *flags: str) -> None:
    """A command in a process of its own, which tells on stderr how it goes."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"t2t_repro.{command}", *flags],
        stdout=subprocess.DEVNULL,
        stderr=sys.stderr,
    )
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C has reached it, too, and it saves its state
        raise
    if status:
        raise BadInput(
            f"{command} ended with status {status}, its message is above: {' '.join(flags)}"
        )


def _results(workdir: Path) -> dict[str, Any]:
    """results.json of a run; empty if there is none yet."""
    path = workdir / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
