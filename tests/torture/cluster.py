"""Two workers on this machine; one of them is killed, and then both are started again."""

import json
import random
import re
import time

from ports import free_addresses
from torture import tiny
from torture.report import wanted

_ENDS_WITHIN = 60.0  # seconds from the death of a worker to the end of the other
_GONE = re.compile(r"worker (\d) \(\S+\) is gone or cannot be reached; .*")
_STEPS = ("--checkpoint_steps=5", "--keep_checkpoints=3", "--eval_sentences=0")


class Workers:
    """A chief and another worker that train the run in a folder; their output goes to files."""

    def __init__(self, folder, made, steps):
        text = f"--tsv_files={made / 'pairs.tsv'}"
        flags = (*tiny.SIZE, text, tiny.workdir(folder), *_STEPS, f"--train_steps={steps}")
        jobs = {"worker": free_addresses(2)}
        self.logs, self.processes = [folder / "stderr0", folder / "stderr1"], []
        for number, log in enumerate(self.logs):
            task = {"cluster": jobs, "task": {"type": "worker", "index": number}}
            before = ("env", f"TF_CONFIG={json.dumps(task)}")
            with log.open("w") as file:
                train = tiny.command("train", *flags, before=before, stdout=file, stderr=file)
            self.processes.append(train)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        for process in self.processes:
            process.kill()
            process.wait()

    def said(self, number):
        """Return the last line of a worker."""
        return (self.logs[number].read_text("utf-8").splitlines() or [""])[-1]

    def finish(self):
        """Wait until both have finished."""
        statuses = [process.wait(tiny.PATIENCE) for process in self.processes]
        wanted(
            statuses == [0, 0], f"statuses {statuses}: {self.said(0)[:200]} {self.said(1)[:200]}"
        )


def kill_workers(root, made, kills, seed, report):
    """Kill the chief and the other worker in turn; in the end nothing may differ."""
    rng, folder = random.Random(f"{seed} cluster"), root / "cluster"
    folder.mkdir()
    for number in range(kills):
        victim = number % 2
        what = f"kill {number + 1} with --seed={seed}, of {'chief' if victim == 0 else 'worker'}"
        if not report.has_time:
            return report.leave_out("two workers", "the time is up", kills - number)
        with report.attack("two workers", what), Workers(folder, made, 1_000_000) as workers:
            _kill_one(workers, victim, folder / "run", rng.uniform(0, 1))
    with report.attack("two workers", "after the kills"):
        steps, alone = tiny.last_step(folder / "run") + 5, root / "cluster_alone"
        alone.mkdir()
        for each in (folder, alone):
            with Workers(each, made, steps) as workers:
                workers.finish()
        tiny.check_same(tiny.state(folder / "run"), tiny.state(alone / "run"))


def _kill_one(workers, victim, run, seconds):
    """Kill a worker so long after a checkpoint of this start; the other ends with one line."""
    began, saved = time.monotonic(), set(run.glob("checkpoints/step-*.index"))
    while not set(run.glob("checkpoints/step-*.index")) - saved:
        wanted(time.monotonic() - began < tiny.PATIENCE, f"no checkpoint: {workers.said(0)}")
        wanted(all(process.poll() is None for process in workers.processes), workers.said(0))
        time.sleep(0.02)
    time.sleep(seconds)
    workers.processes[victim].kill()
    status = workers.processes[1 - victim].wait(_ENDS_WITHIN)
    said = workers.said(1 - victim)
    wanted(status == 1, f"the other ended with status {status}, wanted 1: {said}")
    gone = _GONE.fullmatch(said)
    wanted(gone and int(gone[1]) == victim, f"its last line: {said[-300:]}")
    text = workers.logs[1 - victim].read_text("utf-8")
    wanted("Traceback" not in text, "a traceback")
