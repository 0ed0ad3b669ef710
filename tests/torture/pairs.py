"""Two commands on one work directory at the same time."""

import contextlib
import shutil
import signal
import time

from torture import tiny
from torture.report import wanted

_ENDLESS = ("--train_steps=1000000", "--checkpoint_steps=100", "--keep_checkpoints=3")


def _copy(root, made, name):
    folder = root / name
    shutil.copytree(made / "run", folder / "run")
    return folder


@contextlib.contextmanager
def _training(folder):
    """Yield a `train` that has saved a checkpoint since it began; its stderr goes to a file."""
    log, run = folder / "stderr", folder / "run"
    before = set(run.glob("checkpoints/step-*.index"))
    with log.open("w") as file:
        train = tiny.command("train", tiny.workdir(folder), *_ENDLESS, stderr=file)
        with tiny.ended(train) as process:
            until = time.monotonic() + tiny.PATIENCE
            while not set(run.glob("checkpoints/step-*.index")) - before:
                said = log.read_text("utf-8")[-300:]
                wanted(process.poll() is None, f"ended before its first checkpoint: {said}")
                wanted(time.monotonic() < until, f"no checkpoint yet: {said}")
                time.sleep(0.05)
            yield process


def _stop(process):
    process.send_signal(signal.SIGTERM)
    status = process.wait(tiny.PATIENCE)
    wanted(status == 1, f"the first ended with status {status} after SIGTERM, wanted 1")


def second_train(root, made, report):
    """Start `train` beside a running one, which has to go on as if alone."""
    folder, alone = _copy(root, made, "two"), _copy(root, made, "alone")
    with report.attack("two at once", "train beside train"):
        with _training(folder) as first:
            status, _, errors = tiny.call("train", tiny.workdir(folder), *_ENDLESS)
            wanted(status == 2, f"the second: status {status}, wanted 2: {errors[-300:]}")
            tiny.check_refusal(errors, folder / "run")
            _stop(first)
        steps = f"--train_steps={tiny.last_step(folder / 'run')}"
        tiny.succeed("train", tiny.workdir(alone), steps, "--keep_checkpoints=3")
        tiny.check_same(tiny.state(folder / "run"), tiny.state(alone / "run"))


def same_instant(root, made, report):
    """Start `train` twice at the same time: one trains, the other leaves."""
    folder = _copy(root, made, "same_instant")
    with report.attack("two at once", "two train in the same instant"), contextlib.ExitStack() as s:
        flags = (tiny.workdir(folder), *_ENDLESS)
        logs = [s.enter_context((folder / f"stderr{number}").open("w+")) for number in (1, 2)]
        both = [s.enter_context(tiny.ended(tiny.command("train", *flags, stderr=x))) for x in logs]
        until = time.monotonic() + tiny.PATIENCE
        while all(process.poll() is None for process in both):
            wanted(time.monotonic() < until, "both go on")
            time.sleep(0.1)
        gone, staying = sorted(both, key=lambda process: process.poll() is None)
        wanted(gone.returncode == 2, f"one left with status {gone.returncode}, wanted 2")
        log = logs[both.index(gone)]
        log.seek(0)
        tiny.check_refusal(log.read(), folder / "run")
        time.sleep(1)
        wanted(staying.poll() is None, "both left")


def killed_owner(root, made, report):
    """Kill `train` and start it again at once."""
    folder = _copy(root, made, "killed_owner")
    with report.attack("two at once", "train after a killed one"):
        with _training(folder) as first:
            first.kill()
        steps = f"--train_steps={tiny.last_step(folder / 'run') + 1}"
        tiny.succeed("train", tiny.workdir(folder), steps, "--keep_checkpoints=3")


def beside_train(root, made, report):
    """Read a run that trains."""
    folder = _copy(root, made, "beside")
    export = ("export", f"--export_dir={folder / 'export'}")
    with _training(folder) as first:
        for name, *flags in (("evaluate",), ("translate",), export):
            with report.attack("two at once", f"{name} beside train"):
                tiny.succeed(name, tiny.workdir(folder), *flags, content=b"I sleep.\n")
        with report.attack("two at once", "train beside readers"):
            _stop(first)


ATTACKS = (second_train, same_instant, killed_owner, beside_train)
