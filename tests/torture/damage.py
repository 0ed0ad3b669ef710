"""A damaged newest checkpoint: every command goes back to the one before, with a warning."""

import random
import shutil

from torture import tiny
from torture.report import wanted

_READERS = {
    "train": ["train", "--train_steps=14"],
    "evaluate": ["evaluate"],
    "translate": ["translate"],
    "export": ["export"],
    "visualize": ["visualize", "--sentence=I sleep."],
}


def _flip(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _truncate(path, rng):
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def _delete(path, rng):
    path.unlink()


_DAMAGES = {"flipped bit": _flip, "cut": _truncate, "deleted": _delete}
_FILES = {"data": ".data-00000-of-00001", "index": ".index"}
# {what: (command, damage, file of the newest checkpoint)}.
CASES = {
    f"{command}: {damage} in {file}": (command, damage, file)
    for command in _READERS
    for damage in _DAMAGES
    for file in _FILES
}


def newest(root, made, what, seed, report):
    """Damage a file of the newest checkpoint, then give the command."""
    command, damage, file = CASES[what]
    folder = root / what.replace(" ", "_").replace(":", "")
    with report.attack("damaged checkpoint", what):
        shutil.copytree(made / "run", folder / "run")
        name = f"step-{tiny.last_step(folder / 'run')}"
        path = folder / "run" / "checkpoints" / f"{name}{_FILES[file]}"
        _DAMAGES[damage](path, random.Random(f"{seed} {what}"))
        flags = [tiny.workdir(folder), *_READERS[command][1:]]
        if command == "export":
            flags.append(f"--export_dir={folder / 'export'}")
        if command == "visualize":
            flags.append(f"--output={folder / 'page.html'}")
        errors = tiny.succeed(command, *flags, content=b"I sleep.\n")
        wanted(name in errors, f"no warning names {name}: {errors[-300:]}")
