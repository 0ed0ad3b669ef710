"""Reports of a run: its size before training, its cost after it, and its scores.

Results for programs go to results.json, lines for people to stderr.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence

import numpy as np

from pipelines.batching import small_batches
from pipelines.encode import encode_in_memory
from pipelines.stream import Stream
from t2t_repro.distributed.machine import cpu_has
from t2t_repro.distributed.strategy import device_names
from t2t_repro.experiment import Experiment
from t2t_repro.model.flops import Positions
from t2t_repro.paper import cost
from t2t_repro.problems import Scores
from t2t_repro.training.dev_scores import score_pairs
from t2t_repro.training.loop import Loop
from t2t_repro.training.perplexity import Perplexity

# From hypotheses, references and sources, which are None where only files of outputs are scored.
MoreScores = Callable[[Sequence[str], Sequence[str], Sequence[str] | None], Scores]

# Limit on each side of a batch when a run is scored. Memory holds two or three arrays of logits, of
# 84 MB each with 40,960 rows; a batch of the training size would have arrays of 4 GB.
_TOKENS = 512


def print_model(experiment: Experiment, micro_batches: int) -> None:
    """Print how large the model is, on which devices it trains, and in how many micro-batches."""
    weights = sum(int(np.prod(variable.shape)) for variable in experiment.model.trainable_variables)
    devices = ", ".join(experiment.strategy.extended.worker_devices)
    workers = experiment.cluster.size
    of_all = f" of each of {workers} workers" if workers > 1 else ""
    print(f"model: {weights:,} trainable parameters on {devices}{of_all}", file=sys.stderr)
    if micro_batches > 1:
        print(f"each replica computes a step in {micro_batches} micro-batches", file=sys.stderr)
    if advice := precision_advice(experiment.config.train.precision, devices):
        print(advice, file=sys.stderr)


def precision_advice(precision: str, devices: str) -> str | None:
    """Return a line for whoever trains in bfloat16 on a CPU that has to emulate it, else None."""
    if not precision.endswith("bfloat16") or "CPU" not in devices:
        return None
    if cpu_has("avx512_bf16", "amx_bf16", "bf16") is not False:
        return None
    # Seen with a model of width 256 on an AMD EPYC that has AVX2: 0.94 s a step, 0.86 in float32.
    return (
        "this processor has no instructions for bfloat16: a new run with --precision=float32 is "
        "faster here"
    )


def record_cost(experiment: Experiment, loop: Loop) -> None:
    """Print what training has cost so far, and write it to results.json.

    A start that made no step, perhaps on another machine, leaves there what was written before.
    """
    if not loop.made and "cost" in experiment.workdir.results():
        return
    model = experiment.model
    spent = cost.run_cost(
        model.config,
        model.rows,
        experiment.config.train.precision,
        _trained_positions(loop),
        float(loop.seconds),
        device_names(experiment.strategy) * experiment.cluster.size,
    )
    print(cost.lines(spent), file=sys.stderr)
    experiment.workdir.add_result("cost", spent)


def _trained_positions(loop: Loop) -> Positions:
    if isinstance(loop.batching, Stream):
        # The other workers' parts of a batch are as large as the chief's, or nearly.
        positions = loop.trainer.parts * loop.batching.place.positions.numpy()
        return Positions(*positions.tolist())
    steps = int(loop.trainer.optimizer.iterations.numpy())
    return cost.trained_positions(loop.batching.plan, steps)


def evaluate(experiment: Experiment, split: str, more: MoreScores) -> Scores:
    """Return the scores of a split, and with which checkpoints and settings it was translated.

    Args:
        experiment: The run.
        split: "dev" or "test".
        more: Returns scores beside those of the problem, given hypotheses, references and sources.

    Raises:
        BadInput: the text of the split or results.json cannot be used.
    """
    experiment.workdir.results()  # finds a damaged file before the slow work
    problem, config = experiment.problem, experiment.config
    pairs = list(problem.examples(split, config))
    encoded = encode_in_memory(pairs, experiment.vocabulary, config.decode.max_source_length)
    print(f"{split}: {encoded.report()}", file=sys.stderr)
    scores, hypotheses = score_pairs(experiment.translator(), problem, config, pairs)
    references, sources = ([pair[side] for pair in pairs] for side in ("target", "source"))
    scores |= more(hypotheses, references, sources)
    perplexity = Perplexity(experiment.model, experiment.strategy)
    search = dataclasses.asdict(config.decode).items()
    return scores | {
        "perplexity": perplexity.of(small_batches(encoded, _TOKENS)),
        "split": split,
        "checkpoints": " ".join(experiment.averaged),
        "search": " ".join(f"--{name}={value}" for name, value in search),
    }
