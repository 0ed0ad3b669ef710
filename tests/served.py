"""Start `python -m t2t_repro.serve` as a shell would, and talk to it."""

import contextlib
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, Queue

import commands
import requests
from paths import ROOT

from t2t_repro.workdir import Workdir

BEAM = 3


def exported(once, tiny_run, module):
    """Return an export directory with version 7 of `tiny_run`, of the format of `module`."""

    def save(folder):
        from t2t_repro import experiment

        run = experiment.restore(Workdir(tiny_run), {"beam_size": BEAM})
        module.save(run, folder / "export" / "7")

    return once(f"served_{module.__name__}", save) / "export"


class Server:
    """A server in a process of its own; `address` is its URL, and `log` its stderr so far."""

    def __init__(self, export, *flags):
        command = [sys.executable, "-m", "t2t_repro.serve", f"--export_dir={export}", "--port=0"]
        self.process = subprocess.Popen(
            [*command, *flags],
            stderr=subprocess.PIPE,
            text=True,
            env=commands.environment(),
            cwd=ROOT,
        )
        self.log, self._lines = [], Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            (self.address,) = self.wait(r"serving .* at (http://\S+)")
        except BaseException:
            self.process.kill()
            raise

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            self._lines.put(line)
        self._lines.put(None)

    def wait(self, pattern):
        """Wait for a line of the log; return its groups."""
        with contextlib.suppress(Empty):
            while (line := self._lines.get(timeout=300)) is not None:
                if found := re.search(pattern, line):
                    return found.groups()
        raise AssertionError(f"no line {pattern} in: {self.log}")

    def get(self, path, **given):
        return requests.get(f"{self.address}{path}", timeout=60, **given)

    def post(self, path, **given):
        return requests.post(f"{self.address}{path}", timeout=60, **given)

    def stop(self, number=signal.SIGTERM):
        """End the server and return its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        self._reader.join()
        self.process.stderr.close()
        return status


@contextlib.contextmanager
def server(export, *flags):
    """Yield a server that is ended afterwards, with status 0."""
    running = Server(export, *flags)
    try:
        yield running
    finally:
        status = running.stop()
    assert status == 0, running.log
    assert not [line for line in running.log if "Traceback" in line], running.log


def workers_of(process):
    """Return the ids of a server's worker processes."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = []
    for pid in children:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found
