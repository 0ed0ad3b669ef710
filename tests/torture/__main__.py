"""`make torture` and `make soak`: attacks on whole commands, and long runs.

    python tests/torture [--seed=N] [--minutes=30] [--kills=200]
    python tests/torture soak [--minutes=60] [--requests=100000]

The attacks: kills, full and read-only disks, directories that vanish, two commands at once, damaged
checkpoints, a worker of two that dies. Prints counts; the exit status is 1 if an attack was not
answered as promised. Linux only: it needs inotify, and for real disks the right to mount.
"""

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

# In front, since tests/ has folders that are named like packages.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # of this process; commands do not inherit it

from torture import cluster, damage, disks, kills, pairs, soak, tiny
from torture.report import Report

_NO_MORE = 2.0  # minutes before the end, after which no attack begins
_AT_ONCE = 2  # commands, each on one thread
_WORKER_KILLS = 4


def parsed():
    """Return the flags."""
    summary, _, rest = __doc__.partition("\n")
    flags = argparse.ArgumentParser(
        "python tests/torture",
        description=summary,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("what", nargs="?", choices=("attacks", "soak"), default="attacks")
    flags.add_argument("--seed", type=int, default=1, help="decides when kills come, and the like")
    flags.add_argument(
        "--minutes", type=float, help="of attacks (30); of training in the soak (60)"
    )
    flags.add_argument("--kills", type=int, default=200, help="of commands, in the attacks (200)")
    flags.add_argument(
        "--requests", type=int, default=100_000, help="to each export, in the soak (100000)"
    )
    return flags.parse_args()


def attack(root, given):
    """Try all attacks, two at a time, and return the report."""
    minutes = given.minutes or 30.0
    report = Report(until=time.monotonic() + 60 * (minutes - _NO_MORE))
    print(f"--seed={given.seed} --minutes={minutes:g} --kills={given.kills}", flush=True)
    made = tiny.finished_run(root / "made")
    cluster.kill_workers(root, made, _WORKER_KILLS, given.seed, report)  # needs both cores
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(partial(_in_time, report), attacks(root, made, given)))
    return report


def _in_time(report, each):
    if report.has_time:
        each(report)
    else:
        report.leave_out(each.func.__name__, "the time is up")


def attacks(root, made, given):
    """Return the attacks that need one core, as functions of a report."""
    seed, of = given.seed, (root, made)
    writers = disks.writers(root, made)
    return [
        *(partial(disks.full, *of, what) for what in writers),
        partial(disks.translate_to_full, *of),
        *(partial(disks.read_only, *of, what) for what in writers if "no room for" not in what),
        partial(disks.read_from_read_only, *of),
        *(partial(disks.vanish, *of, how) for how in disks.VANISHING),
        *(partial(each, *of) for each in pairs.ATTACKS),
        *(partial(damage.newest, *of, what, seed) for what in damage.CASES),
        *(partial(damage.strict, *of, command) for command in damage.READERS),
        *(partial(damage.no_list, *of, command) for command in damage.READERS),
        *(
            partial(kills.torture, story, root, seed, round(share * given.kills))
            for story, share in kills.stories(*of).items()
        ),
    ]


def endure(root, given):
    """Train for an hour, and meanwhile translate 100,000 sentences with each of two exports."""
    report, made = Report(), tiny.finished_run(root / "made")

    def requests():
        for form in ("litert", "saved_model"):
            export = root / form
            tiny.succeed("export", tiny.workdir(made), f"--export_dir={export}", f"--format={form}")
            soak.requests(export, given.requests, report)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = (partial(soak.training, root, given.minutes or 60.0, report), requests)
        for running in [pool.submit(part) for part in parts]:
            running.result()
    return report


def main():
    """Parse the flags, torture, and end with status 1 if an attack failed."""
    given = parsed()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        root = Path(folder)
        (root / "tmp").mkdir()
        os.environ["TMPDIR"] = str(root / "tmp")  # of the commands: killed ones leave files there
        report = endure(root, given) if given.what == "soak" else attack(root, given)
    print(*report.lines(), sep="\n")
    sys.exit(1 if report.reasons else 0)


if __name__ == "__main__":
    main()
