"""A worker's process: it answers, it dies and is started again, it ends with the server."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import deadly_engine
import pytest

from pipelines.errors import BadInput
from t2t_repro.server import worker
from t2t_repro.server.worker import Worker, WorkerDied


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return a function that calls a coroutine function with a worker of `deadly_engine`."""
    monkeypatch.setattr(worker, "engine", deadly_engine)

    def run(main, limit=60.0):
        async def whole():
            started = Worker(tmp_path, 3, limit)
            assert (await started.start()).beam_size == 3
            try:
                return await main(started)
            finally:
                started.stop()

        return asyncio.run(whole())

    return run


async def answer_of(worker, row):
    """Return the answer to a row alone; raise it if it is an exception, as the queue does."""
    (answer,), _ = await worker.run("serving_default", [row])
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_it_answers_in_another_process(run):
    async def main(worker):
        answers, pieces = await worker.run("serving_default", ["a", "b"])
        assert [row for _, row in answers] == ["a", "b"]
        assert pieces == 2
        assert os.getpid() not in {pid for pid, _ in answers}

    run(main)


def test_one_deadly_sentence_costs_no_other_its_answer(run, caplog):
    async def main(worker):
        answers, _ = await worker.run("serving_default", ["a", "deadly", "b"])
        assert isinstance(answers[1], WorkerDied)
        assert [answers[0][1], answers[2][1]] == ["a", "b"]
        again, _ = await worker.run("serving_default", ["c"])
        assert again[0][1] == "c"

    run(main)
    assert "a worker died; its 3 sentences are tried again one by one" in caplog.text


def test_a_sentence_on_which_the_engine_fails_costs_no_other_its_answer(run, caplog):
    async def main(worker):
        answers, _ = await worker.run("serving_default", ["a", "deadly", "wrong", "b"])
        assert [answers[0][1], str(answers[2]), answers[3][1]] == ["a", "wrong", "b"]
        answers, _ = await worker.run("serving_default", ["a", "wrong"])
        assert [answers[0][1], str(answers[1])] == ["a", "wrong"]
        with pytest.raises(RuntimeError, match="wrong"):
            await worker.run("serving_default", ["wrong"])

    run(main)
    assert "wrong; 2 sentences are tried again one by one" in caplog.text


def test_a_worker_that_the_system_does_not_start(run, monkeypatch):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        os.kill(pid, signal.SIGKILL)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe", failing)
            with pytest.raises(BadInput, match="a process for it cannot be started"):
                await answer_of(worker, "b")
        ((_, row),), _ = await worker.run("serving_default", ["b"])
        assert row == "b"

    def failing():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    run(main)


def test_a_killed_worker_is_started_again(run):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        os.kill(pid, signal.SIGKILL)
        ((other, row),), _ = await worker.run("serving_default", ["b"])
        assert row == "b"
        assert other != pid

    run(main)


def test_a_batch_that_nobody_waits_for_any_more_is_ended(run, caplog):
    async def main(worker):
        answers, _ = await worker.run("serving_default", ["a", "endless"])
        assert all(isinstance(answer, WorkerDied) for answer in answers)
        ((_, row),), _ = await worker.run("serving_default", ["b"])
        assert row == "b"

    run(main, limit=1.0)
    assert "a worker is killed: 2 sentences took 1 s" in caplog.text
    assert "tried again" not in caplog.text


def test_a_batch_with_a_deadly_and_an_endless_sentence_has_one_limit(run):
    async def main(worker):
        async with asyncio.timeout(60):
            answers, _ = await worker.run("serving_default", ["endless", "deadly", "endless"])
        assert all(isinstance(answer, WorkerDied) for answer in answers)

    run(main, limit=1.0)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("gone", "not a usable export"),
        ("large", "ended while it loaded, perhaps for lack of memory"),  # as the system ends one
    ],
)
def test_an_export_that_does_not_load_stops_the_worker_for_that_while(run, tmp_path, file, message):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        (tmp_path / file).touch()
        os.kill(pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(BadInput, match=message):
                await answer_of(worker, "b")
        (tmp_path / file).unlink()
        ((_, row),), _ = await worker.run("serving_default", ["b"])
        assert row == "b"

    run(main)


def test_a_process_that_still_loads_is_killed_when_it_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "engine", deadly_engine)
    (tmp_path / "far").touch()

    async def main():
        task = asyncio.create_task(Worker(tmp_path, 1, 1.0).start())
        while not (text := loading.read_text() if loading.exists() else ""):
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait({task})
        return int(text)

    loading = tmp_path / "loading"
    wait_for_end(Path("/proc") / str(asyncio.run(main())))


def test_an_export_that_loads_for_ever_is_given_up(run, tmp_path, monkeypatch):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        (tmp_path / "far").touch()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BadInput, match="not loaded after 1 s"):
            await answer_of(worker, "b")
        wait_for_end(Path("/proc") / (tmp_path / "loading").read_text())

    monkeypatch.setattr(worker, "_LOADING", 1.0)
    run(main)


def test_a_process_is_killed_whatever_it_does(run):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        task = asyncio.create_task(worker.run("serving_default", ["endless"]))
        await asyncio.sleep(0.1)
        worker.kill()
        await asyncio.wait({task}, timeout=10)
        assert task.done()
        assert pid != worker._process

    run(main, limit=1.0)  # a second process is given the sentence, too


def test_an_exception_is_no_death(run):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        with pytest.raises(RuntimeError, match="wrong"):
            await worker.run("serving_default", ["wrong"])
        ((same, _),), _ = await worker.run("serving_default", ["a"])
        assert same == pid

    run(main)


def test_an_unusable_export_is_refused(tmp_path):
    async def main():
        started = Worker(tmp_path, 1, 60)
        try:
            with pytest.raises(BadInput, match="not a usable export"):
                await started.start()
        finally:
            started.stop()

    asyncio.run(main())


def test_it_ends_with_the_server(tmp_path):
    """Even if the server is killed and can tell nobody."""
    code = (
        "import asyncio, os, pathlib, deadly_engine\n"
        "from t2t_repro.server import worker\n"
        "async def main():\n"
        "    worker.engine = deadly_engine\n"
        "    started = worker.Worker(pathlib.Path('anywhere'), 1, 60)\n"
        "    await started.start()\n"
        "    ((pid, _),), _ = await started.run('serving_default', ['a'])\n"
        "    print(pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    script = tmp_path / "server.py"
    script.write_text(code)
    paths = os.pathsep.join([commands.environment()["PYTHONPATH"], str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        env=commands.environment() | {"PYTHONPATH": paths},
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    wait_for_end(Path("/proc") / done.stdout.decode().strip())


def wait_for_end(process):
    """Wait until a process is gone, given its directory in /proc."""
    until = time.monotonic() + 30
    while process.exists() and "zombie" not in (process / "status").read_text():
        assert time.monotonic() < until, "the worker is still there"
        time.sleep(0.05)
