"""The lock on a work directory: real processes hold it, and a dead one does not."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys

import commands
import pytest

from pipelines.errors import BadInput
from t2t_repro.lock import Lock
from t2t_repro.workdir import Workdir

OWNER = """
import sys
from pathlib import Path
from t2t_repro.lock import Lock
with Lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path):
    """Start a process that locks `tmp_path` until its stdin is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=commands.environment(),
    ) as process:
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


def test_the_second_process_is_told_who_is_there(owner, tmp_path):
    with pytest.raises(BadInput, match=f"{tmp_path}: another command .*process {owner.pid} on "):
        Lock(tmp_path)


@pytest.mark.parametrize("sign", [None, signal.SIGTERM, signal.SIGKILL])
def test_a_dead_owner_does_not_hold_it(owner, tmp_path, sign):
    owner.send_signal(sign) if sign else owner.stdin.close()
    owner.wait(60)
    with Lock(tmp_path):
        pass


@pytest.mark.parametrize("name", ["train", "prepare"])
def test_commands_leave_a_locked_directory_as_it_is(owner, tmp_path, capsys, name):
    assert commands.call(name, "--problem=toy_ende", f"--workdir={tmp_path}") == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {tmp_path}: another command trains or prepares a run there")
    assert message.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_where_nothing_can_be_locked_it_is_a_warning(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with Lock(tmp_path):
        (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {tmp_path}: cannot be locked (No locks available)")


def delete(run):
    shutil.rmtree(run)


def empty(run):
    for path in run.iterdir():
        path.unlink()


def move(run):
    run.rename(run.with_name("moved"))


def replace(run):
    move(run)
    shutil.copytree(run.with_name("moved"), run)


@pytest.mark.parametrize("vanish", [delete, empty, move, replace])
def test_a_directory_that_vanishes_is_noticed(tmp_path, vanish):
    path = tmp_path / "run"
    with Workdir(path).locked() as workdir:
        workdir.config_file.touch()
        workdir.check_in_place()
        vanish(path)
        with pytest.raises(BadInput, match=f"^{path}: deleted, moved or replaced"):
            workdir.check_in_place()
        with pytest.raises(BadInput, match=f"^{path}: deleted, moved or replaced"):
            workdir.add_result("test", {})
    assert not workdir.results_file.exists()
