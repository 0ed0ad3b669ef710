"""Reproduce Table 3 at reduced width: train and score all rows as in the paper, on any problem.

The paper's d_model, d_ff, d_k and d_v are divided by one number, by default 4. N, h, P_drop and
eps_ls are the paper's, so that each row differs from base as it does there. All rows make the same
number of updates, except that big makes three times as many: 300,000 to 100,000. Text, batches,
warm-up and learning rate are the problem's own; there is no cool-down. Scores are on dev, with the
last weights (no checkpoint averaging), beam 4 and alpha 0.6; perplexity is without label smoothing
(6.2).

Each row has its own folder in the work directory. The command `train` trains it and `evaluate`
scores it. Running the benchmark again resumes it: finished rows are read from results.json.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipelines import storage
from pipelines.errors import BadInput
from t2t_repro import config
from t2t_repro.paper import table3
from t2t_repro.workdir import Workdir

Row = dict[str, Any]

DIVISORS = (1, 2, 4, 8, 16)  # A4's d_k of 16 is the smallest width in the table
_TRIAL_UPDATES = 200  # updates of base that are timed
_DIVIDED = ("d_model", "d_ff", "d_k", "d_v")
_FROM_PAPER = (  # settings that have the paper's values
    "num_layers",
    "num_heads",
    "dropout",
    "learned_positions",
    "label_smoothing",
    "weight_decay",
    "bpe_dropout",
    "misspelt_share",
    "auxiliary_tasks",
    "cooldown_share",
    "beam_size",
    "alpha",
    "length_reward",
)


class Plan(NamedTuple):
    """The settings that all rows of a work directory share."""

    problem: str
    divisor: int  # divides the paper's widths
    updates: int  # updates of base
    settings: Mapping[str, Any]  # hyperparameters given as flags

    def config(self, row: str) -> config.Config:
        """Return the configuration of a row."""
        return config.resolve(self.problem, row, self.overrides(row))

    def overrides(self, row: str) -> dict[str, Any]:
        """Return the hyperparameters that `train` gets as flags for a row."""
        paper = config.flat(config.resolve("wmt14_ende", row))
        return {
            **{name: paper[name] for name in _FROM_PAPER},
            **{name: paper[name] // self.divisor for name in _DIVIDED},
            "train_steps": self.updates * paper["train_steps"] // config.Train.train_steps,
            # Only the last weights are scored; a checkpoint is kept to resume from.
            "checkpoint_steps": 0,
            "keep_checkpoints": 1,
            "eval_sentences": 0,
            "average_last": 1,
            **self.settings,
        }


def rows(names: Sequence[str], workdir: Path, plan: Plan) -> Iterator[Row]:
    """Yield the results of each row as it finishes, then the rank correlations with the paper.

    Args:
        names: Rows of Table 3.
        workdir: The folder of the runs.
        plan: How the rows are trained.

    Yields:
        For each row the dev scores `perplexity`, `sacrebleu` and `paper_bleu` (BLEU as the paper
        computes it); `parameters`, `updates` and training `minutes`; and the paper's numbers,
        `printed_perplexity` and `printed_bleu`. At last `spearman_perplexity` and `spearman_bleu`
        (of `paper_bleu`), the rank correlations with the paper over these `rows`.

    Raises:
        BadInput: A row cannot be trained, or its folder holds a run with other settings.
    """
    done: list[Row] = []
    for name in names:
        done.append({"row": name} | _train_and_score(plan, name, workdir / name))
        yield done[-1]

    def correlation(ours: str, theirs: str) -> float | None:
        return spearman([row[ours] for row in done], [row[theirs] for row in done])

    yield {
        "rows": len(done),
        "spearman_perplexity": correlation("perplexity", "printed_perplexity"),
        "spearman_bleu": correlation("paper_bleu", "printed_bleu"),
    }


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, or None if all values of `x` or of `y` are equal.

    Equal values share the mean of their ranks.
    """

    def ranks(values: Sequence[float]) -> np.ndarray:
        _, place, count = np.unique(np.array(values), return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[place]

    if len(set(x)) == 1 or len(set(y)) == 1:
        return None
    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


def load_or_make_plan(workdir: Path, wanted: Plan, minutes: float) -> Plan:
    """Return `wanted`; if its `updates` are 0, set them to what base can make in `minutes`.

    This number is measured once, with a trial run of base in the work directory, and saved in
    plan.json. Rows must be compared after the same number of updates, because the speed of the
    machine may vary during the benchmark.

    Raises:
        BadInput: The work directory holds rows of another plan, or its plan.json is damaged.
    """
    path = workdir / "plan.json"
    length = {"updates": wanted.updates} if wanted.updates else {"minutes": minutes}
    asked = {"problem": wanted.problem, "divisor": wanted.divisor} | length
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            updates = int(found["updates"])
            same = found["asked"] == asked
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{path}: damaged; use another --workdir") from None
        if not same:
            raise BadInput(
                f"{workdir} holds rows with {_format(found['asked'])}; wanted {_format(asked)}; "
                "use the same flags to resume, or another --workdir"
            )
        return wanted._replace(updates=updates)
    plan = wanted._replace(updates=wanted.updates or _updates_in(minutes, wanted, workdir))
    saved = json.dumps({"asked": asked, "updates": plan.updates})
    storage.write(str(workdir), path.name, saved.encode())
    return plan


def _format(asked: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in asked.items())


def _updates_in(minutes: float, wanted: Plan, workdir: Path) -> int:
    """Return how many updates base makes in `minutes`, from a trial of `_TRIAL_UPDATES` updates.

    The trial's start-up time counts in proportion, so the estimate is low.
    """
    trial = workdir / "trial"
    _train(wanted._replace(updates=_TRIAL_UPDATES), "base", trial)
    return max(1, int(60 * minutes * _TRIAL_UPDATES / Workdir(trial).results()["cost"]["seconds"]))


def _train_and_score(plan: Plan, name: str, workdir: Path) -> Row:
    """Train and score a row unless results.json has its scores; return the row's figures."""
    wanted = plan.config(name)
    run = Workdir(workdir)
    if "dev" not in run.results():
        _train(plan, name, workdir)
        _run("evaluate", f"--workdir={workdir}", "--split=dev", "--json")
    elif changed := config.conflicts(run.config(), wanted):
        raise BadInput(f"{workdir} holds another run: {', '.join(changed)}; use another --workdir")
    results, paper = run.results(), table3.printed()[name]
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
    """Train a row, or resume its training."""
    flags = [f"--problem={plan.problem}", f"--variant={name}", f"--workdir={workdir}"]
    for key, value in plan.overrides(name).items():
        flags += [f"--{key}", *map(str, value if isinstance(value, list | tuple) else [value])]
    _run("train", *flags)


def _run(command: str, *flags: str) -> None:
    """Run a command in its own process, with progress on stderr; raise BadInput if it fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"t2t_repro.{command}", *flags],
        stdout=subprocess.DEVNULL,
        stderr=sys.stderr,
    )
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C has also reached the child, which saves its state
        raise
    if status:
        raise BadInput(
            f"{command} ended with status {status}; its message is above; flags: {' '.join(flags)}"
        )
