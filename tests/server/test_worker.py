"""A worker's process: it answers, it dies and is started again, it ends with the server."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import commands
import deadly_engine
import pytest

from pipelines.errors import BadInput
from t2t_repro.server import worker
from t2t_repro.server.batcher import Batcher
from t2t_repro.server.metrics import Metrics
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


async def from_queue(worker, *texts):
    """Return what requests of one text each get from a worker by way of the queue."""
    queue = Batcher([worker.run], 16, 0, 100, Metrics())
    requests = [queue.submit("serving_default", [text]) for text in texts]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    await queue.close()
    return [answer if isinstance(answer, Exception) else answer[0][1] for answer in answers]


def test_it_answers_in_another_process(run):
    async def main(worker):
        answers, pieces = await worker.run("serving_default", ["a", "b"])
        assert [row for _, row in answers] == ["a", "b"]
        assert pieces == 2
        assert os.getpid() not in {pid for pid, _ in answers}

    run(main)


def test_one_deadly_sentence_costs_no_other_its_answer(run, caplog):
    async def main(worker):
        first, deadly, last = await from_queue(worker, "a", "deadly", "b")
        assert isinstance(deadly, WorkerDied)
        assert str(deadly) == "the worker died of this sentence"
        assert [first, last] == ["a", "b"]
        assert await from_queue(worker, "c") == ["c"]

    run(main)
    assert caplog.messages == [
        "the worker died of 3 sentences; trying again, one by one",
        "the worker died of this sentence; trying again",
    ]


def test_a_sentence_on_which_the_engine_fails_costs_no_other_its_answer(run, caplog):
    async def main(worker):
        answers = await from_queue(worker, "a", "wrong", "deadly", "b")
        assert list(map(str, answers)) == ["a", "wrong", "the worker died of this sentence", "b"]
        assert list(map(str, await from_queue(worker, "a", "wrong"))) == ["a", "wrong"]
        assert list(map(str, await from_queue(worker, "wrong"))) == ["wrong"]

    run(main)
    assert caplog.messages == [
        "the worker died of 4 sentences; trying again, one by one",
        "the worker died of this sentence; trying again",
        "wrong; trying again, one by one",
    ]


def test_a_worker_that_the_system_does_not_start(run, monkeypatch):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        os.kill(pid, signal.SIGKILL)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe", failing)
            (error,) = await from_queue(worker, "b")
        assert isinstance(error, BadInput)
        assert "a process for it cannot be started" in str(error)
        assert await from_queue(worker, "b") == ["b"]

    def failing():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    run(main)


def test_a_killed_worker_is_started_again(run):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        os.kill(pid, signal.SIGKILL)
        assert await from_queue(worker, "b") == ["b"]
        ((other, _),), _ = await worker.run("serving_default", ["c"])
        assert other != pid

    run(main)


def test_a_worker_that_died_idle_costs_no_sentence_a_try(run, caplog):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        os.kill(pid, signal.SIGKILL)
        answers, _ = await worker.run("serving_default", ["b", "c"])
        assert [row for _, row in answers] == ["b", "c"]

    run(main)
    assert not caplog.messages


def test_a_batch_that_nobody_waits_for_any_more_is_ended(run, caplog):
    async def main(worker):
        with pytest.raises(WorkerDied, match="2 sentences took too long"):
            await worker.run("serving_default", ["a", "endless"])
        assert await from_queue(worker, "b") == ["b"]

    run(main, limit=1.0)
    assert caplog.messages == ["a worker is killed: 2 sentences took 1 s"]


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
            (error,) = await from_queue(worker, "b")
            assert isinstance(error, BadInput)
            assert message in str(error)
        (tmp_path / file).unlink()
        assert await from_queue(worker, "b") == ["b"]

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
        (error,) = await from_queue(worker, "b")
        assert isinstance(error, BadInput)
        assert "not loaded after 1 s" in str(error)
        wait_for_end(Path("/proc") / (tmp_path / "loading").read_text())

    monkeypatch.setattr(worker, "_LOADING", 1.0)
    run(main)


def test_a_process_is_killed_whatever_it_does(run):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        task = asyncio.create_task(worker.run("serving_default", ["endless"]))
        await asyncio.sleep(0.1)
        worker.kill()
        with pytest.raises(WorkerDied):
            await task
        wait_for_end(Path("/proc") / str(pid))

    run(main)


def test_a_worker_that_dies_in_the_middle_of_an_answer(run):
    """Nobody waits for the rest of it."""

    async def main(worker):
        await worker.run("serving_default", ["a"])
        before = threading.active_count()
        with pytest.raises(WorkerDied, match="died of this sentence"):
            async with asyncio.timeout(30):
                await worker.run("serving_default", ["broken off"])
        assert await from_queue(worker, "b") == ["b"]
        assert threading.active_count() <= before + 1  # that of another process

    run(main)


def test_an_answer_that_cannot_be_sent_is_no_death(run):
    async def main(worker):
        ((pid, _),), _ = await worker.run("serving_default", ["a"])
        with pytest.raises(Exception, match="pickle"):
            await worker.run("serving_default", ["a lock"])
        ((same, _),), _ = await worker.run("serving_default", ["a"])
        assert same == pid

    run(main)


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


@pytest.mark.parametrize(
    ("end", "status"), [("os.kill(os.getpid(), 9)", -9), ("raise SystemExit(3)", 3)]
)
def test_it_ends_with_the_server(tmp_path, end, status):
    """Even if the server is killed, or fails, and tells nobody."""
    code = (
        "import asyncio, os, pathlib, deadly_engine\n"
        "from t2t_repro.server import worker\n"
        "async def main():\n"
        "    worker.engine = deadly_engine\n"
        "    started = worker.Worker(pathlib.Path('anywhere'), 1, 60)\n"
        "    await started.start()\n"
        "    ((pid, _),), _ = await started.run('serving_default', ['a'])\n"
        "    print(pid, flush=True)\n"
        f"    {end}\n"
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
    assert done.returncode == status
    wait_for_end(Path("/proc") / done.stdout.decode().strip())


def wait_for_end(process):
    """Wait until a process is gone, given its directory in /proc."""
    until = time.monotonic() + 30
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while "zombie" not in (process / "status").read_text():
            assert time.monotonic() < until, "the worker is still there"
            time.sleep(0.05)
