"""Versions that come, change, are damaged and go, while requests are answered."""

import asyncio
import shutil
from types import SimpleNamespace

import pytest

from pipelines.errors import BadInput
from t2t_repro.server import served_model
from t2t_repro.server.engine import Batch, Description
from t2t_repro.server.metrics import Metrics
from t2t_repro.server.options import Options
from t2t_repro.server.served_model import ServedModel
from t2t_repro.serving import export_files


class Worker:
    """A worker of a version whose file `model` says "good"; it answers with the version."""

    alive = 0

    def __init__(self, export, threads, limit):
        assert limit == Options.timeout_s + 1
        self.export = export

    async def start(self):
        if not (self.export / "model").exists() or (self.export / "model").read_text() != "good":
            raise BadInput(f"{self.export}: not a usable export (damaged)")
        Worker.alive += 1
        self.started = True
        return Description({}, 4, None, False)

    async def run(self, signature, rows):
        await asyncio.sleep(0.002)
        return Batch([f"{self.export.name} {row}" for row in rows], None)

    def stop(self):
        Worker.alive -= getattr(self, "started", False)
        self.started = False

    def kill(self):
        self.stop()


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(served_model, "Worker", Worker)
    monkeypatch.setattr(Worker, "alive", 0)
    return tmp_path


def write(base, number, content="good"):
    (base / str(number)).mkdir(exist_ok=True)
    (base / str(number) / "model").write_text(content)


def model_of(base, poll_s=0.01, **changes):
    return ServedModel(Options(base, poll_s=poll_s, **changes), Metrics())


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def serves(model, number):
    return lambda: model.current and model.current.number == number


async def watched(model, steps):
    """Start a model, call the steps while it looks for versions, and close it."""
    await model.start()
    watching = asyncio.create_task(model.watch())
    try:
        await steps()
    finally:
        watching.cancel()
        await model.close()
    assert Worker.alive == 0


def test_the_highest_version_is_served_by_number_not_by_name(base):
    for number in (2, 10, 9):
        write(base, number)
    model = model_of(base)

    async def steps():
        assert model.current.number == 10

    asyncio.run(watched(model, steps))


def test_one_version_alone_can_be_served(base):
    write(base, 7)
    (base / "7" / "model.bin").touch()  # by which an export is known
    model = model_of(base / "7")

    async def steps():
        assert model.current.number == 7

    asyncio.run(watched(model, steps))


@pytest.mark.parametrize("name", ["", "missing"])
def test_nothing_to_serve(base, name):
    with pytest.raises(BadInput, match=r"no export there|not a usable export"):
        asyncio.run(model_of(base / name).start())


def test_a_damaged_version_leaves_the_one_before(base):
    write(base, 1)
    write(base, 2, "damaged")
    model = model_of(base)

    async def steps():
        assert model.current.number == 1
        assert "damaged" in model.failures[2].reason
        write(base, 2, "good")  # mended
        await until(serves(model, 2))
        assert not model.failures

    asyncio.run(watched(model, steps))


def test_a_version_that_did_not_load_is_tried_again_after_ever_longer_pauses(base, monkeypatch):
    write(base, 1)
    write(base, 2)
    model, now, tried = model_of(base, poll_s=3600), [0.0], []

    async def start(worker, usual=Worker.start):
        if worker.export.name == "2":
            tried.append(now[0])
            if now[0] < 300:
                raise BadInput("no memory for two")
        return await usual(worker)

    monkeypatch.setattr(Worker, "start", start)
    monkeypatch.setattr(served_model, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def steps():
        for now[0] in range(0, 600, 10):
            await model._refresh()
        assert model.current.number == 2
        assert not model.failures

    asyncio.run(watched(model, steps))
    assert sorted({*tried}) == [0, 60, 180, 420]


def test_with_verify_a_version_with_a_changed_file_is_not_served(base):
    for number in (1, 2):
        write(base, number)
        (base / str(number) / "model.bin").touch()
        export_files.write_settings(base / str(number), {})
    write(base, 2, "good")
    (base / "2" / "model.bin").write_bytes(b"damaged")

    model, trusting = model_of(base, verify=True), model_of(base)

    async def steps():
        assert model.current.number == 1
        assert "2: not what was exported (damaged: model.bin)" in model.failures[2].reason

    async def without():
        assert trusting.current.number == 2

    asyncio.run(watched(model, steps))
    asyncio.run(watched(trusting, without))


def test_only_damaged_versions_are_an_error_about_the_highest(base):
    write(base, 1, "damaged")
    write(base, 3, "damaged")
    with pytest.raises(BadInput, match="3: not a usable export"):
        asyncio.run(model_of(base).start())
    assert Worker.alive == 0


def test_no_request_is_dropped_while_versions_come_and_go(base):
    write(base, 1)
    model = model_of(base, workers=2)

    async def steps():
        answers, going = [], True

        async def client():
            while going:
                answers.extend(await model.current.batcher.submit("serving_default", ["a", "b"]))

        clients = [asyncio.create_task(client()) for _ in range(8)]
        try:
            write(base, 2)
            await until(serves(model, 2))
            write(base, 3, "damaged")
            await until(lambda: 3 in model.failures)
            shutil.rmtree(base / "2")
            await until(serves(model, 1))
        finally:
            going = False
        await asyncio.gather(*clients)
        assert {answer.split()[0] for answer in answers} == {"1", "2"}
        assert {answer.split()[1] for answer in answers} == {"a", "b"}

    asyncio.run(watched(model, steps))


def test_a_served_version_that_is_damaged_gives_way_to_the_one_before(base):
    write(base, 1)
    write(base, 2)
    model = model_of(base)

    async def steps():
        assert model.current.number == 2
        write(base, 2, "damaged later")
        await until(serves(model, 1))
        assert await model.current.batcher.submit("nbest", ["a"]) == ["1 a"]

    asyncio.run(watched(model, steps))


def test_a_version_that_is_still_being_copied_is_not_read(base, monkeypatch):
    write(base, 1)
    model = model_of(base, poll_s=3600)
    looked = []
    start = Worker.start

    async def watch(self):
        looked.append(self.export.name)
        return await start(self)

    monkeypatch.setattr(Worker, "start", watch)

    async def steps():
        for size in range(40):  # it grows at every look
            write(base, 2, "x" * size)
            await model._refresh()
        assert "2" not in looked
        write(base, 2)
        for _ in range(2):
            await model._refresh()
        assert model.current.number == 2

    asyncio.run(watched(model, steps))


def test_a_served_version_whose_files_change_goes_on_until_they_stay_the_same(base):
    write(base, 1)
    write(base, 2)
    model = model_of(base, poll_s=3600)

    async def steps():
        for size in range(40):
            write(base, 2, "x" * size)
            await model._refresh()
            assert model.current.number == 2
        write(base, 2)
        before = model.current
        await model._refresh()
        assert model.current is before
        await model._refresh()
        assert model.current is not before
        assert model.current.number == 2

    asyncio.run(watched(model, steps))


def test_the_last_version_goes_on_when_all_files_are_gone(base):
    write(base, 1)
    model = model_of(base)

    async def steps():
        shutil.rmtree(base / "1")
        for _ in range(5):
            await asyncio.sleep(0.02)
        assert await model.current.batcher.submit("nbest", ["a"]) == ["1 a"]

    asyncio.run(watched(model, steps))


def test_a_damaged_version_that_is_deleted_is_forgotten(base):
    write(base, 1)
    write(base, 2, "damaged")
    model = model_of(base, poll_s=3600)

    async def steps():
        assert 2 in model.failures
        shutil.rmtree(base / "2")
        await model._refresh()
        assert not model.failures

    asyncio.run(watched(model, steps))


def test_the_served_version_is_a_metric(base):
    write(base, 7)
    model = model_of(base)

    async def steps():
        assert b"\nt2t_model_version 7.0\n" in model._metrics.text()

    asyncio.run(watched(model, steps))
