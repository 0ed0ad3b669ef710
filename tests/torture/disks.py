"""Disks that are full or read-only, and directories that vanish while a command runs.

A full disk is a small tmpfs or, where mounting is not allowed, a limit on the size of files. A
command that cannot write ends with status 2 and one line that names the path. What was there before
is intact, no temporary file is left, and with room the same command succeeds.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from functools import partial

from torture import tiny
from torture.report import wanted

_MB = 32  # of a tmpfs: a run, its exports, and room to work
_NOTICED_WITHIN = 90.0  # seconds until a run notices that its directory is gone
_UNFINISHED = re.compile(r"(^|/)\.|_temp\b|tempstate|\.tmp|unfinished")
_FORMATS = ("saved_model", "litert", "ctranslate2")


class Tmpfs:
    """A small disk at `folder`, which has to be empty; needs the right to mount."""

    limit = ()

    def __init__(self, folder):
        self.folder, self._filler = folder, folder / "filler"
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_MB}m", "tmpfs", folder], check=True)

    def fill(self, room):
        """Leave so many bytes of room."""
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
        os.truncate(self._filler, max(0, self._filler.stat().st_size - room))

    def empty(self):
        """Make room again."""
        self._filler.unlink()

    def remount(self, options):
        """Make the disk read-only, "ro", or writable, "rw"."""
        subprocess.run(["mount", "-o", f"remount,{options}", self.folder], check=True)

    def close(self):
        """Take the disk away, even from under a process that uses it, if it is still there."""
        if self.folder.is_mount():
            subprocess.run(["umount", "--lazy", self.folder], check=True)


class Quota:
    """A folder whose files cannot grow beyond a size, for who may not mount."""

    def __init__(self, folder):
        self.folder, self.limit = folder, ()

    def fill(self, room):
        """Let no file grow beyond so many bytes."""
        self.limit = ("prlimit", f"--fsize={room}")

    def empty(self):
        """Lift the limit."""
        self.limit = ()

    def close(self):
        """Leave the folder as it is."""


@contextlib.contextmanager
def disk(root, name, made):
    """Yield a small disk with a copy of the finished run, as a Tmpfs or else as a Quota."""
    folder = root / name.replace(" ", "_")
    folder.mkdir()
    try:
        small = Tmpfs(folder)
    except (subprocess.CalledProcessError, OSError):
        small = Quota(folder)
    try:
        shutil.copytree(made / "run", folder / "run")
        yield small
    finally:
        small.close()


def writers(folder, made):
    """Return {what writes: (room in bytes, command)}, for a disk at `folder`."""
    run, text = tiny.workdir(folder), f"--tsv_files={made / 'pairs.tsv'}"
    new, page = (*tiny.SIZE, text, f"--workdir={folder / 'new'}"), folder / "page.html"
    draw = ("visualize", run, "--sentence=I sleep.", f"--output={page}")
    return {
        "prepare, no room": (0, ["prepare", *new]),
        "prepare, no room for the vocabulary": (9_000, ["prepare", *new]),
        "train, no room for a checkpoint": (20_000, ["train", run, "--train_steps=16"]),
        "evaluate": (0, ["evaluate", run]),
        "visualize over an old page": (4096, draw),
        **{
            f"export {form}": (
                50_000,
                ["export", run, f"--export_dir={folder / 'export'}", f"--format={form}"],
            )
            for form in _FORMATS
        },
    }


def _kept(folder):
    """Return the contents of the folder's files, but for TensorBoard's, to which runs append."""
    found = tiny.contents(folder)
    return {name: content for name, content in found.items() if "events.out." not in name}


def full(root, made, what, report):
    """Let a command write to a full disk, and then to one with room."""
    with report.attack("full disk", what), disk(root, f"full {what}", made) as small:
        folder = small.folder
        room, command = writers(folder, made)[what]
        (folder / "page.html").write_text("the old page", "utf-8")
        before = _kept(folder)
        if command[0] == "train":
            del before["run/config.yaml"]  # has the new number of steps
        small.fill(room)
        status, output, errors = tiny.call(*command, before=small.limit)
        small.empty()
        wanted(status == 2, f"status {status}, wanted 2: {errors[-300:]}")
        tiny.check_refusal(errors, folder)
        if command[0] == "evaluate":
            wanted("sacrebleu" in output, "the scores were not printed first")
        after = _kept(folder)
        tiny.check_same({name: after.get(name, b"gone") for name in before}, before)
        left = [name for name in after.keys() - before if _UNFINISHED.search(name)]
        wanted(not left, f"temporary files are left: {left[:3]}")
        tiny.succeed(*command)


def translate_to_full(root, made, report):
    """Let `translate` write more than its disk holds."""
    what = "translate > file"
    with report.attack("full disk", what), disk(root, f"full {what}", made) as small:
        small.fill(0)
        text = "".join(f"{line}\n" for line in tiny.sentences(300)).encode()
        translate = partial(tiny.call, "translate", tiny.workdir(small.folder), content=text)
        with (small.folder / "out").open("wb") as file:
            status, _, errors = translate(stdout=file, before=small.limit)
        small.empty()
        wanted(status == 2, f"status {status}, wanted 2: {errors[-300:]}")
        tiny.check_refusal(errors)
        status, output, errors = translate()
        wanted(status == 0 and output.count("\n") == 300, f"with room: {status} {errors[-300:]}")


def read_only(root, made, what, report):
    """Let a command write to a read-only disk."""
    with disk(root, f"read-only {what}", made) as small:
        if isinstance(small, Quota):
            return report.leave_out("read-only disk", "mounting is not allowed here")
        with report.attack("read-only disk", what):
            _, command = writers(small.folder, made)[what]
            before = tiny.contents(small.folder)
            small.remount("ro")
            status, output, errors = tiny.call(*command)
            wanted(status == 2, f"status {status}, wanted 2: {errors[-300:]}")
            tiny.check_refusal(errors, small.folder)
            if command[0] == "evaluate":
                wanted("sacrebleu" in output, "the scores were not printed first")
            tiny.check_same(tiny.contents(small.folder), before)


def read_from_read_only(root, made, report):
    """Translate and export from a read-only disk, which has to succeed."""
    with disk(root, "read from read-only", made) as small:
        if isinstance(small, Quota):
            return report.leave_out("read-only disk", "mounting is not allowed here", 2)
        small.remount("ro")
        run = tiny.workdir(small.folder)
        with report.attack("read-only disk", "translate from it"):
            tiny.succeed("translate", run, content=b"I sleep.\n")
        with report.attack("read-only disk", "export from it"):
            tiny.succeed("export", run, f"--export_dir={root / 'from_read_only'}")


# Directories that vanish


def _delete(small):
    shutil.rmtree(small.folder / "run", ignore_errors=True)  # the run may write meanwhile


def _rename(small):
    os.rename(small.folder / "run", small.folder / "elsewhere")


def _unmount(small):
    small.close()


VANISHING = {"deleted": _delete, "renamed": _rename, "unmounted": _unmount}


def vanish(root, made, how, report):
    """Take the work directory away from a training run."""
    with disk(root, f"vanish {how}", made) as small:
        if how == "unmounted" and isinstance(small, Quota):
            return report.leave_out("vanishing directory", "mounting is not allowed here")
        with report.attack("vanishing directory", f"{how} under train"):
            _vanish(small, VANISHING[how])


def _vanish(small, take_away):
    run, log = small.folder / "run", small.folder.with_suffix(".stderr")
    flags = (tiny.workdir(small.folder), "--train_steps=1000000", "--checkpoint_steps=5")
    with log.open("w") as file, tiny.ended(tiny.command("train", *flags, stderr=file)) as process:
        until = time.monotonic() + tiny.PATIENCE
        while not any(run.glob("checkpoints/step-*5.index")):
            wanted(process.poll() is None and time.monotonic() < until, "did not begin to train")
            time.sleep(0.1)
        take_away(small)
        status = process.wait(_NOTICED_WITHIN)
    wanted(status == 2, f"status {status}, wanted 2: {log.read_text()[-300:]}")
    tiny.check_refusal(log.read_text(), run)
    left = [str(path.relative_to(run)) for path in run.rglob("*")]
    wanted(not left or "config.yaml" in left, f"made again without a configuration: {left[:3]}")
    if (elsewhere := small.folder / "elsewhere").exists():
        tiny.succeed("evaluate", f"--workdir={elsewhere}")
