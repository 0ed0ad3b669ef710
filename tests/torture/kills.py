"""SIGKILL at random moments of each command that writes, until the same command has finished.

Three quarters of the kills come with an event of the file system: a file is opened, created,
written, renamed or deleted. The others come at any time. In the end nothing may differ from a
directory in which nobody was killed.
"""

import dataclasses
import random
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from torture import tiny
from torture.report import Broken, wanted
from torture.watch import Moment, Watch

_NEVER = Moment(sys.maxsize)
_TIMED = 0.25  # share of the kills that come at any time
_CLEARED_WITHIN = 20.0  # seconds until the worker processes of a killed command are gone
# {part of a file's name: what it belongs to}; the first that fits.
_PLACES = {
    "checkpoints": "checkpoints",
    "prepared": "shards",
    "vocabulary": "vocabulary",
    "corpus": "vocabulary",
    "config": "configuration",
    "events": "TensorBoard",
    "results": "results",
    "export": "export",
}


@dataclasses.dataclass(frozen=True)
class Story:
    """A command that is killed and given again, in a folder of its own.

    Args:
        name: What is killed.
        command: The name of the command and its flags, given the folder.
        result: What must be equal in the end, {name: bytes}, given the folder.
        begin: Fills the folder before the first start.
        reach: Share of the command's events within which a start is killed: the smaller, the more
            kills fall on one way from begin to end.
        is_done: Whether a killed command had finished its work, given the folder: given again, it
            would refuse to do it twice.
    """

    name: str
    command: Callable[[Path], list]
    result: Callable[[Path], dict]
    begin: Callable[[Path], object] = lambda folder: None
    reach: float = 1.0
    is_done: Callable[[Path], bool] = lambda folder: False


class Chain:
    """Starts of a story's command that are killed, and what they have to lead to.

    Args:
        story: The story.
        root: The folder of the story's folder.
        seed: Decides on the moments, with the story's name.
        report: Counts the attacks.
    """

    def __init__(self, story, root, seed, report):
        self.story, self.seed, self.report = story, seed, report
        self.status = 0  # of the last start
        self.folder, self.log = root / story.name.replace(" ", "_"), root / f"{story.name}.stderr"
        self.random = random.Random(f"{seed} {story.name}")
        self._begin()
        began = time.monotonic()
        self.events = self._events(_NEVER)
        self.seconds = time.monotonic() - began
        self.names, self.expected = _names(self.folder), story.result(self.folder)
        self._begin()

    def kill(self, number):
        """Start the command until a kill comes before its end; `number` names it in the report."""
        with self.report.attack(f"kill: {self.story.name}", f"kill {number}, --seed={self.seed}"):
            try:
                while not self._is_killed(self._moment()):
                    self._check_and_begin()
                if self.story.is_done(self.folder):
                    self._check_and_begin()
            except (Broken, OSError):
                self._begin()
                raise

    def finish(self):
        """Let the command finish, and compare."""
        with self.report.attack("after the kills", self.story.name):
            self._events(_NEVER)
            self._check()

    def _moment(self):
        if self.random.random() < _TIMED:
            return Moment(0, self.random.uniform(0, self.seconds))
        last = max(1, round(self.story.reach * self.events))
        return Moment(self.random.randint(1, last), self.random.choice((0, 0, 0.001, 0.01, 0.1)))

    def _begin(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.story.begin(self.folder)

    def _is_killed(self, moment):
        """Start the command; return whether the kill at `moment` came before its end."""
        self._events(moment)
        return self.status < 0

    def _events(self, moment):
        """Start the command, kill it at `moment`, and return the number of events so far."""
        name, *flags = self.story.command(self.folder)
        with (
            Watch(self.folder) as watch,
            self.log.open("w") as log,
            tiny.ended(tiny.command(name, *flags, stdout=log, stderr=log)) as process,
        ):
            events = watch.follow(process, moment, tiny.PATIENCE)
            process.kill()
        self.status = process.returncode
        _wait_for_children(process.pid)
        wanted(self.status <= 0, f"status {self.status}: {self.log.read_text()[-300:]}")
        if self.status < 0:
            self.report.kill_came(_place(events))
        return len(events)

    def _check_and_begin(self):
        self._check()
        self._begin()

    def _check(self):
        """Raise Broken unless the folder is that of a command which nobody killed."""
        found = _names(self.folder)
        wanted(found == self.names, f"files that differ: {sorted(found ^ self.names)[:3]}")
        tiny.check_same(self.story.result(self.folder), self.expected)


def _names(folder):
    """Return the names of all files in the folder; TensorBoard's have the time in theirs."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {re.sub(r"events\.out\.\S+", "events", name) for name in names}


def _place(events):
    if not events:
        return "before its first file"
    event = events[-1]
    place = next((_PLACES[part] for part in _PLACES if part in str(event.path)), "other files")
    return f"{'writing' if event.is_write else 'reading'} {place}"


def _wait_for_children(session):
    """Raise Broken if processes of a killed command do not end by themselves."""
    until = time.monotonic() + _CLEARED_WITHIN
    while alive := _members(session):
        wanted(time.monotonic() < until, f"still there after its kill: processes {alive}")
        time.sleep(0.05)


def _members(session):
    """Return the processes of a session that are not zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _, _, of = text.rpartition(")")[2].split()[:4]
        if int(of) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def torture(story, root, seed, kills, report):
    """Kill the command of a story so many times, and then let it finish."""
    kind = f"kill: {story.name}"
    with report.attack("nobody is killed", story.name):
        chain = Chain(story, root, seed, report)
        for number in range(1, kills + 1):
            if not report.has_time:
                report.leave_out(kind, "the time is up", kills - number + 1)
                break
            chain.kill(number)
        chain.finish()


# The stories


def stories(root, made):
    """Return {story: its share of the kills}, given the folder of a finished run."""
    long = tiny.write_pairs(root / "long.tsv", 300_000)
    train = [*tiny.SIZE, *tiny.STEPS, f"--tsv_files={made / 'pairs.tsv'}"]

    def prepare(file):
        return lambda at: ["prepare", *tiny.SIZE, f"--tsv_files={file}", tiny.workdir(at)]

    def export(form):
        flags = f"--format={form}"
        return lambda at: ["export", tiny.workdir(at), f"--export_dir={at / 'export'}", flags]

    def trained(folder):
        shutil.copytree(made / "run", folder / "run")

    def prepared(folder):
        return tiny.contents(folder / "run")

    def weights(folder):
        text = tiny.contents(folder / "run" / "prepared")
        return tiny.state(folder / "run") | text

    def scores(folder):
        return {"results": (folder / "run" / "results.json").read_bytes()}

    def translated(folder):
        return tiny.translations(folder / "export")

    def exported(folder):
        return (folder / "export" / "1").exists()

    exports = {"saved_model": 0.08, "litert": 0.06, "ctranslate2": 0.06}
    return {
        Story("prepare", prepare(made / "pairs.tsv"), prepared): 0.15,
        Story("prepare in worker processes", prepare(long), prepared): 0.1,
        Story("train", lambda at: ["train", *train, tiny.workdir(at)], weights, reach=0.3): 0.2,
        Story("train on", lambda at: ["train", *train, tiny.workdir(at)], weights, reach=0.1): 0.2,
        Story("evaluate", lambda at: ["evaluate", tiny.workdir(at)], scores, trained): 0.15,
        **{
            Story(f"export {form}", export(form), translated, trained, is_done=exported): share
            for form, share in exports.items()
        },
    }
