"""Small files: whole or not at all, no left-overs, and errors that name the file."""

import errno
import multiprocessing
import os
import socket
import time

import pytest
import tensorflow as tf

from pipelines import storage
from pipelines.errors import BadInput


@pytest.mark.parametrize("scheme", ["ram://far", "file://{folder}", "{folder}"])
def test_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch, scheme):
    directory = scheme.format(folder=tmp_path) + "/x"
    assert storage.size(directory, "f") == -1
    storage.write(directory, "f", b"first")
    storage.write(directory, "f", b"second")
    assert storage.read(directory, "f") == b"second"

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tf.io.gfile, "rename", killed)
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        storage.write(directory, "f", b"third")
    assert storage.read(directory, "f") == b"second"
    monkeypatch.undo()
    storage.remove(directory, "f")
    assert storage.read(directory, "f") is None


def _name_of_dead_process():
    """Return a name that a process which has ended would have used."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(storage.unfinished_name, ["f"])


def test_left_overs_of_dead_processes_are_cleared(tmp_path):
    here = storage.unfinished_name("f").removesuffix(f"-{os.getpid()}")
    alive = f"{here}-{os.getppid()}"
    far, old = (f".{name}.unfinished-elsewhere-1" for name in ("new", "old"))
    contained = f".f.unfinished-{socket.gethostname()}-1234-999999999"  # in another container
    kept = [alive, far, contained, "f.unfinished", ".f.unfinished-", f"{here}-x", "page.html"]
    dead = _name_of_dead_process()
    for name in [*kept, old, dead, ".g" + dead]:
        (tmp_path / name).write_bytes(b"half")
    (folder := tmp_path / (".export" + dead)).mkdir()
    (folder / "model").write_bytes(b"half")
    os.utime(tmp_path / old, times=(time.time() - 48 * 3600,) * 2)
    storage.write(str(tmp_path), "f", b"whole")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "f"])


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_full_disk_keeps_the_old_file(tmp_path, monkeypatch, failing):
    storage.write(str(tmp_path), "f", b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if failing == "write":
        monkeypatch.setattr(storage.Path, "open", full)
    else:
        monkeypatch.setattr(os, failing, full)
    with pytest.raises(BadInput, match=f"^{tmp_path}/f: cannot be written .No space left"):
        storage.write(str(tmp_path), "f", b"new")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_a_file_in_the_place_of_the_directory(tmp_path):
    (tmp_path / "f").touch()
    with pytest.raises(BadInput, match="f/g: cannot be written"):
        storage.write(str(tmp_path / "f"), "g", b"")
    with pytest.raises(BadInput, match=f"{tmp_path}/f is or lies in a file; wanted a directory"):
        storage.read(str(tmp_path / "f"), "g")


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "f")
    storage.write(str(tmp_path), "link", b"content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "f").read_bytes() == b"content"


def test_a_link_to_itself(tmp_path):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(BadInput, match=r"link: cannot be written .*([Ll]oop|levels)"):
        storage.write(str(tmp_path), "link", b"content")
