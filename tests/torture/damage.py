"""A damaged newest checkpoint: every command goes back to the one before, with a warning.

With --strict it is an error. A list of the checkpoints that is gone is made from the files' names.
"""

import random
import shutil

from torture import tiny
from torture.report import wanted

READERS = {
    "train": ["train", "--train_steps=14"],
    "evaluate": ["evaluate"],
    "translate": ["translate"],
    "export": ["export"],
    "visualize": ["visualize", "--sentence=I sleep."],
}


def _flip(path, rng):
    """Flip a bit in every 256 bytes: one alone may hit Adam's moments, which few commands read."""
    content = bytearray(path.read_bytes())
    for start in range(0, len(content), 256):
        content[rng.randrange(start, min(start + 256, len(content)))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _truncate(path, rng):
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def _delete(path, rng):
    path.unlink()


_DAMAGES = {"flipped bits": _flip, "cut": _truncate, "deleted": _delete}
_FILES = {"data": ".data-00000-of-00001", "index": ".index"}
# {what: (command, damage, file of the newest checkpoint)}
CASES = {
    f"{command}: {damage} in {file}": (command, damage, file)
    for command in READERS
    for damage in _DAMAGES
    for file in _FILES
}


def newest(root, made, what, seed, report):
    """Damage a file of the newest checkpoint, then give the command."""
    command, damage, file = CASES[what]
    with report.attack("damaged checkpoint", what):
        folder, name = _copy(root, made, what)
        path = folder / "run" / "checkpoints" / f"{name}{_FILES[file]}"
        _DAMAGES[damage](path, random.Random(f"{seed} {what}"))
        errors = tiny.succeed(*_reader(command, folder), content=b"I sleep.\n")
        wanted(name in errors, f"no warning names {name}: {errors[-300:]}")


def strict(root, made, command, report):
    """Cut the newest checkpoint, then give the command with --strict."""
    what = f"{command} --strict"
    with report.attack("damaged checkpoint", what):
        folder, name = _copy(root, made, what)
        _truncate(folder / "run" / "checkpoints" / f"{name}.index", random.Random(what))
        status, _, errors = tiny.call(*_reader(command, folder), "--strict", content=b"I sleep.\n")
        wanted(status == 2, f"status {status}, wanted 2: {errors[-300:]}")
        tiny.check_refusal(errors, name)


def no_list(root, made, command, report):
    """Delete the list of checkpoints, then give the command."""
    what = f"{command}: no list"
    with report.attack("damaged checkpoint", what):
        folder, _ = _copy(root, made, what)
        (folder / "run" / "checkpoints" / "checkpoint").unlink()
        errors = tiny.succeed(*_reader(command, folder), content=b"I sleep.\n")
        wanted("checkpoints/checkpoint" in errors, f"no warning: {errors[-300:]}")


def _copy(root, made, what):
    """Copy the finished run; return its folder and the name of its newest checkpoint."""
    folder = root / what.replace(" ", "_").replace(":", "")
    shutil.copytree(made / "run", folder / "run")
    return folder, f"step-{tiny.last_step(folder / 'run')}"


def _reader(command, folder):
    """Return a command that reads the run in a folder."""
    own = {"export": f"--export_dir={folder / 'export'}", "visualize": f"--output={folder}/p.html"}
    return [*READERS[command], tiny.workdir(folder), *filter(None, [own.get(command)])]
