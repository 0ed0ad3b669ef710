"""An hour of training, and 100,000 requests to an export: memory, threads and files stay flat.

A process is sampled every 10 seconds. Its memory and disk are flat if the greatest value of the
last tenth of the samples exceeds that of the sixth tenth by no more than 3 %, its threads and open
files if they exceed the greatest number of the first half by no more than one. Memory of the first
half is not judged: sacreBLEU fills two caches of up to 65,536 tokenised lines meanwhile, about 0.04
MB for each 20 sentences scored.
"""

import os
import signal
import time
from pathlib import Path
from subprocess import PIPE

from torture import tiny
from torture.report import wanted

EVERY = 10.0  # seconds between samples
_FIRST_CORE = {0}
_SLACK_SHARE = 0.03  # of MB; of threads and files, 1

# Every 6 seconds a checkpoint, dev scores and 20 translated sentences. BPE dropout encodes the text
# anew for each epoch of a few seconds.
_TRAIN = (
    *("--train_steps=100000000", "--checkpoint_minutes=0.1", "--keep_checkpoints=3"),
    *("--eval_share=1", "--eval_sentences=20", "--log_steps=20", "--bpe_dropout=0.1"),
)


class Samples:
    """Samples of a process, and of the directory that it writes."""

    def __init__(self, process, directory=None):
        self.process, self.directory = process, directory
        self.began = time.monotonic()
        self.due = self.began + EVERY
        self.taken = []  # {name: value}

    @property
    def minutes(self):
        return (time.monotonic() - self.began) / 60

    def look(self):
        """Take a sample if it is time for one."""
        if time.monotonic() < self.due:
            return
        self.due += EVERY
        sample = {"minutes": self.minutes} | _of_process(self.process.pid)
        self.taken.append(sample | (_of_directory(self.directory) if self.directory else {}))

    def table(self):
        """Return the first, second, middle and last samples as lines of a Markdown table."""
        names, last = list(self.taken[0]), len(self.taken) - 1
        lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        for index in (0, last // 10, last // 4, last // 2, 3 * last // 4, last):
            values = [f"{self.taken[index][name]:.1f}".removesuffix(".0") for name in names]
            lines.append(f"| {' | '.join(values)} |")
        return lines

    def check(self):
        """Raise Broken unless memory, threads, open files and disk are flat."""
        for name in ("memory_mb", "threads", "files", "disk_mb"):
            if name in self.taken[0]:
                values = [sample[name] for sample in self.taken]
                before, after = growth(values)
                slack = _SLACK_SHARE * before
                if not name.endswith("_mb"):  # TensorFlow's pools come and go: 9 to 14 threads
                    before, slack = max(values[: len(values) // 2]), 1
                wanted(after <= before + slack, f"{name} rose from {before:.1f} to {after:.1f}")


def growth(values):
    """Return (greatest value of the sixth tenth, greatest value of the last tenth)."""
    tenth = max(1, len(values) // 10)
    return max(values[5 * tenth : 6 * tenth]), max(values[-tenth:])


def _of_process(pid):
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {
        "memory_mb": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


def _of_directory(directory):
    """Return the MB of TensorBoard's files, which grow with every point, and of all others."""
    events = rest = 0
    for path in directory.rglob("*"):
        try:
            size = path.stat().st_size
        except FileNotFoundError:  # a checkpoint that was just replaced
            continue
        if path.name.startswith("events."):
            events += size
        elif path.is_file():
            rest += size
    return {"disk_mb": rest / 1e6, "tensorboard_mb": events / 1e6}


def training(folder, minutes, report):
    """Train for `minutes` on one core, with dev scores and checkpoints every 6 seconds."""
    workdir, log = folder / "run", folder / "stderr"
    text = tiny.write_pairs(folder / "pairs.tsv", 2000)
    flags = (*tiny.SIZE, *_TRAIN, f"--tsv_files={text}", f"--workdir={workdir}")
    with report.attack("soak", f"{minutes:g} minutes of training"), log.open("w") as file:
        with tiny.ended(tiny.command("train", *flags, stderr=file)) as process:
            os.sched_setaffinity(process.pid, _FIRST_CORE)
            samples = Samples(process, workdir)
            while samples.minutes < minutes and process.poll() is None:
                samples.look()
                time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            status = process.wait(300)
        print(*samples.table(), sep="\n", flush=True)
        wanted(status == 1, f"exit status {status} after SIGTERM: {log.read_text()[-300:]}")
        samples.check()


def requests(export, count, report):
    """Send `count` distinct sentences to an export, one by one, in one process."""
    with report.attack("soak", f"{count:,} requests to {export.name}"):
        with tiny.ended(
            tiny.python("-c", tiny.TRANSLATE, export, stdin=PIPE, stdout=PIPE)
        ) as process:
            samples = Samples(process)
            for sentence in tiny.sentences(count):
                process.stdin.write(f"{sentence}\n".encode())
                process.stdin.flush()
                answer = process.stdout.readline()
                wanted(answer.endswith(b"\n"), f"no answer to {sentence!r}")
                samples.look()
        rate = count / samples.minutes / 60
        print(
            f"{count:,} requests to {export.name}, {rate:.0f} per second",
            *samples.table(),
            sep="\n",
            flush=True,
        )
        samples.check()
