"""Train a model: python -m t2t_repro.train --problem=multi30k_ende. Run it again to go on."""

import argparse
import os
import sys

from pipelines.errors import BadInput
from t2t_repro import cli
from t2t_repro.paper import table3


def parser() -> argparse.ArgumentParser:
    """The flags; every hyperparameter is one."""
    flags = cli.Parser(prog="python -m t2t_repro.train", description=__doc__)
    cli.add_run(flags)
    flags.add_argument(
        "--list_variants",
        action="store_true",
        help="print Table 3's rows, with --problem also its own, and end",
    )
    return flags


def main() -> None:
    """Flags, then one call."""
    given = parser().parse_args()
    run = cli.run_of(given)  # before the slow import
    if given.list_variants:
        return _list_variants(run)
    cli.quiet_tensorflow()
    import tensorflow as tf

    from t2t_repro import experiment
    from t2t_repro.distributed.cluster import Cluster, WorkerGone
    from t2t_repro.distributed.strategy import default_strategy
    from t2t_repro.training.checkpoints import last_step
    from t2t_repro.training.loop import Stopped

    try:
        parts = _parts(run)
        cluster = Cluster(default_strategy())
        with cluster.watched():
            resolved = experiment.begin_together(*run, cluster)
            most = int(cluster.share(parts).numpy().max())
            experiment.train(experiment.build(resolved, run.workdir, cluster.strategy), most)
    except Stopped:
        print("stopped; the state is saved, the same command goes on from it", file=sys.stderr)
        sys.exit(1)
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        raise BadInput(
            f"too little memory on a device ({str(error).splitlines()[0]}); the same command "
            "with --max_tokens_per_replica=auto goes on, and takes batches in parts that fit"
        ) from None
    except WorkerGone as error:
        step = last_step(run.workdir / "checkpoints")
        print(
            f"{error}, its own messages may say why; start all workers again with the same "
            + (f"command, they go on from step {step:,}" if step else "command"),
            file=sys.stderr,
        )
        os._exit(1)  # not sys.exit: TensorFlow would wait for who is gone
    if cluster.is_chief:
        done = f"trained; now: python -m t2t_repro.evaluate --workdir={run.workdir}"
        print(done, file=sys.stderr)


def _parts(run: cli.Run) -> int:
    """Into how many parts a replica divides its share; before a device is used, so it can try."""
    from t2t_repro import experiment
    from t2t_repro.distributed.strategy import count_replicas
    from t2t_repro.training.memory_fit import parts_of_batch

    replicas = count_replicas()
    try:
        resolved = experiment.begin(run.problem, run.variant, run.overrides, run.workdir)
    except (BadInput, OSError):
        return 1  # the same is told later, to all workers
    return parts_of_batch(resolved, replicas)


def _list_variants(run: cli.Run) -> None:
    problem = run.problem or "wmt14_ende"  # the paper's
    print(table3.heading(problem), file=sys.stderr)
    for line in table3.listing(problem, run.overrides):
        print(line)


if __name__ == "__main__":
    cli.run(main)
