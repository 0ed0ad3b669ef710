"""The queue: batches of like sentences, fair turns, patience, cancelling, and its end."""

import asyncio
import re

import pytest

from pipelines.errors import BadInput
from t2t_repro.server.batcher import Batcher, QueueFull
from t2t_repro.server.engine import Batch
from t2t_repro.server.metrics import Metrics
from t2t_repro.server.worker import WorkerDied


class Worker:
    """A worker that remembers its batches and, if `held`, answers one for each release of `go`."""

    def __init__(self, held=False):
        self.batches, self.held, self.go = [], held, asyncio.Semaphore(0)

    async def run(self, signature, rows):
        self.batches.append((signature, list(rows)))
        if self.held:
            await self.go.acquire()
        return Batch([f"{signature} {row}" for row in rows], len(rows))

    def free(self):
        self.held = False
        self.go.release()


def batcher(workers, batch_size=4, max_wait=0.0, room=1000):
    return Batcher([worker.run for worker in workers], batch_size, max_wait, room, Metrics())


async def settle():
    """Let all tasks run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def started(queue, *requests):
    """Submit requests of serving_default in this order, and return their tasks."""
    tasks = []
    for rows in requests:
        tasks.append(asyncio.create_task(queue.submit("serving_default", rows)))
        await settle()
    return tasks


def test_answers_come_back_to_their_requests():
    async def main():
        workers = [Worker(), Worker()]
        queue = batcher(workers)
        texts = [[f"{'x' * (i * 7 % 30)}{i}.{j}" for j in range(i % 6)] for i in range(50)]
        signatures = ["serving_default", "nbest"]
        answers = await asyncio.gather(
            *(queue.submit(signatures[i % 2], rows) for i, rows in enumerate(texts))
        )
        for i, rows in enumerate(texts):
            assert answers[i] == [f"{signatures[i % 2]} {row}" for row in rows]
        batches = [batch for worker in workers for batch in worker.batches]
        assert all(len(rows) <= 4 for _, rows in batches)
        assert sum(len(rows) for _, rows in batches) == sum(map(len, texts))
        await queue.close()

    asyncio.run(main())


def test_sentences_of_like_lengths_are_translated_together():
    async def main():
        worker = Worker(held=True)
        queue = batcher([worker])
        tasks = await started(
            queue, ["first"], *([["a" * n] for n in (5, 90, 6, 80, 7, 85, 8, 95)])
        )
        worker.free()
        await asyncio.gather(*tasks)
        assert [sorted(map(len, rows)) for _, rows in worker.batches] == [
            [5],
            [5, 6, 7, 8],  # with the one that came first
            [80, 85, 90, 95],
        ]
        await queue.close()

    asyncio.run(main())


def test_a_request_of_many_lines_does_not_hold_up_one_of_a_single_line():
    """Lines 17 to 32 of a request are of the next turn, after whoever comes now."""

    async def main():
        worker = Worker(held=True)
        queue = batcher([worker], batch_size=16)
        tasks = await started(queue, ["first"], [f"many {i:03}" for i in range(96)], ["single"])
        worker.free()
        await asyncio.gather(*tasks)
        number = next(i for i, (_, rows) in enumerate(worker.batches) if "single" in rows)
        assert number <= 2  # after "first", and at most one batch of the many
        await queue.close()

    asyncio.run(main())


def test_two_requests_of_many_lines_take_turns():
    async def main():
        worker = Worker(held=True)
        queue = batcher([worker], batch_size=16)
        tasks = await started(
            queue, ["first"], [f"a{i:03}" for i in range(64)], [f"b{i:03}" for i in range(64)]
        )
        worker.free()
        await asyncio.gather(*tasks)
        firsts = [rows[0][0] for _, rows in worker.batches[1:]]
        assert {*firsts[:4]} == {"a", "b"}
        await queue.close()

    asyncio.run(main())


def test_a_stream_of_single_lines_does_not_hold_up_a_request_of_many():
    """Each batch of the singles is followed by as many new ones, as from 16 busy clients."""

    async def main():
        worker = Worker(held=True)
        queue = batcher([worker], batch_size=16)
        tasks = await started(queue, ["first"], [f"many {i:03}" for i in range(64)])
        many = tasks[1]
        for number in range(20):
            tasks += await started(queue, *([[f"single {number}.{i:02}"] for i in range(16)]))
            worker.go.release()
            await settle()
        assert many.done()
        worker.free()
        await asyncio.gather(*tasks)
        await queue.close()

    asyncio.run(main())


@pytest.mark.parametrize("long", ["x" * 401, list(range(2, 103))], ids=["text", "ids"])
def test_one_worker_is_kept_for_short_sentences(long):
    async def main():
        workers = [Worker(held=True), Worker(held=True)]
        queue = batcher(workers)
        tasks = await started(queue, *([[long]] * 9))
        assert [len(worker.batches) for worker in workers] == [0, 1]
        tasks += await started(queue, ["short"])
        assert workers[0].batches == [("serving_default", ["short"])]
        for worker in workers:
            worker.free()
        await asyncio.gather(*tasks)
        assert len(workers[0].batches) == 1
        await queue.close()

    asyncio.run(main())


def test_long_sentences_are_translated_a_few_at_a_time():
    """Their padded batch has no more characters than one of 16 sentences of 400 characters."""

    async def main():
        worker = Worker(held=True)
        queue = batcher([worker], batch_size=16)
        tasks = await started(queue, ["first"], *([["x" * 3200]] * 7), ["x" * 10_000])
        worker.free()
        await asyncio.gather(*tasks)
        assert sorted(len(rows) for _, rows in worker.batches[1:]) == [1, 1, 2, 2, 2]
        await queue.close()

    asyncio.run(main())


def test_attention_is_asked_for_one_sentence_at_a_time():
    """Its answers are large; and it counts as long."""

    async def main():
        workers = [Worker(), Worker()]
        queue = batcher(workers)
        await asyncio.gather(*(queue.submit("attention", ["a"]) for _ in range(5)))
        assert [len(worker.batches) for worker in workers] == [0, 5]
        assert all(len(rows) == 1 for _, rows in workers[1].batches)
        await queue.close()

    asyncio.run(main())


def test_a_long_batch_is_not_shared_with_the_worker_that_takes_none():
    async def main():
        workers = [Worker(), Worker(held=True)]
        queue = batcher(workers)
        tasks = await started(queue, ["x" * 500], ["y" * 500, "z" * 500])
        workers[1].free()
        await asyncio.gather(*tasks)
        assert [len(rows) for _, rows in workers[1].batches] == [1, 2]
        await queue.close()

    asyncio.run(main())


def test_cancelling_ends_it_at_once():
    async def main():
        worker = Worker(held=True)
        queue = batcher([worker])
        (task,) = await started(queue, ["first"])
        queue.cancel()
        await settle()
        assert all(each.cancelled() for each in queue._tasks)
        task.cancel()

    asyncio.run(main())


def test_a_single_worker_translates_long_sentences_too():
    async def main():
        queue = batcher([Worker()])
        assert len(await queue.submit("serving_default", ["x" * 500, "short"])) == 2
        await queue.close()

    asyncio.run(main())


def test_a_request_that_is_alone_does_not_wait():
    async def main():
        worker = Worker()
        queue = batcher([worker], max_wait=3600)
        async with asyncio.timeout(10):
            await queue.submit("serving_default", ["alone"])
        await queue.close()

    asyncio.run(main())


def test_a_worker_waits_for_as_many_as_another_translates():
    async def main():
        workers = [Worker(held=True), Worker(held=True)]
        queue = batcher(workers, batch_size=8, max_wait=3600)
        tasks = await started(queue, ["1"], ["2"])  # each worker takes one
        tasks += await started(queue, ["3", "4", "5"])
        workers[0].go.release()
        await settle()
        assert workers[0].batches[1][1] == ["3", "4", "5"]
        workers[1].go.release()
        tasks += await started(queue, ["6"], ["7"])
        assert len(workers[1].batches) == 1  # two wait, and three are being translated
        tasks += await started(queue, ["8"])
        assert workers[1].batches[1][1] == ["6", "7", "8"]
        for worker in workers:
            worker.free()
        await asyncio.gather(*tasks)
        await queue.close()

    asyncio.run(main())


def test_it_waits_no_longer_than_the_larger_batch():
    async def main():
        workers = [Worker(held=True), Worker()]
        queue = batcher(workers, max_wait=3600)
        tasks = await started(queue, ["1", "2", "3"])  # the first worker takes two of them
        tasks += await started(queue, ["long " * 100])  # which only the second may take
        assert [rows for _, rows in workers[1].batches] == [["3"]]
        workers[0].free()
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)
        await queue.close()

    asyncio.run(main())


def test_it_waits_no_longer_than_max_wait():
    async def main():
        workers = [Worker(held=True), Worker(held=True)]
        queue = batcher(workers, max_wait=0.01)
        tasks = await started(queue, ["a", "b"])  # one each
        tasks += await started(queue, ["1", "2", "3"])
        workers[0].free()
        await settle()
        workers[1].free()
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks, queue.submit("serving_default", ["fewer"]))
        await queue.close()

    asyncio.run(main())


def test_a_full_queue_refuses_a_request_whole_and_says_when_to_come_back():
    async def main():
        worker = Worker(held=True)
        queue = batcher([worker], room=5)
        tasks = await started(queue, ["first"], ["a", "b", "c"])
        with pytest.raises(QueueFull) as refusal:
            await queue.submit("serving_default", ["d", "e", "f"])
        assert 1 <= refusal.value.retry_after <= 60
        tasks += await started(queue, ["d", "e"])
        worker.free()
        assert [len(each) for each in await asyncio.gather(*tasks)] == [1, 3, 2]
        assert len(await queue.submit("serving_default", ["d", "e", "f"])) == 3
        await queue.close()

    asyncio.run(main())


def test_a_request_that_is_given_up_leaves_the_queue():
    async def main():
        worker = Worker(held=True)
        queue = batcher([worker], room=3)
        tasks = await started(queue, ["first"], ["a", "b", "c"])
        tasks[1].cancel()
        await settle()
        tasks += await started(queue, ["d", "e", "f"])  # there is room again
        worker.free()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [row for _, rows in worker.batches for row in rows] == ["first", "d", "e", "f"]
        await queue.close()

    asyncio.run(main())


def test_a_request_given_up_while_it_is_translated_does_no_harm():
    async def main():
        worker = Worker(held=True)
        queue = batcher([worker])
        first, second = await started(queue, ["first"], ["second"])
        first.cancel()
        await settle()
        worker.free()
        assert await second == ["serving_default second"]
        await queue.close()

    asyncio.run(main())


def failing_at(error, *bad):
    """Return the batches of a worker, and its function, which fails at bad sentences."""
    batches = []

    async def run(signature, rows):
        batches.append(list(rows))
        if any(row in rows for row in bad):
            raise error
        return Batch(list(rows), None)

    return batches, run


def test_a_failure_reaches_the_requests_it_concerns_and_no_other():
    async def main():
        batches, run = failing_at(RuntimeError("out of order"), "bad")
        queue = Batcher([run], 4, 0, 100, Metrics())
        for rows in (["bad"], ["good", "bad"]):
            with pytest.raises(RuntimeError, match="out of order"):
                await queue.submit("serving_default", rows)
        tasks = await started(queue, ["good"], ["bad"], ["well"])
        good, bad, well = await asyncio.gather(*tasks, return_exceptions=True)
        assert (good, str(bad), well) == (["good"], "out of order", ["well"])
        assert batches[0] == ["bad"]  # it was alone already
        await queue.close()

    asyncio.run(main())


@pytest.mark.parametrize(("error", "tries"), [(WorkerDied("dead"), 2), (RuntimeError("bad"), 1)])
def test_those_that_failed_together_are_tried_again_alone_and_in_their_places(error, tries):
    """The bad one is tried alone until it is to blame: after one failure of the engine."""

    async def main():
        batches, run = failing_at(error, "bad")
        queue = Batcher([run], 3, 0, 100, Metrics())
        tasks = [
            asyncio.create_task(queue.submit("serving_default", [row]))
            for row in ("good", "bad", "well", "late", "last")
        ]
        good, bad, *others = await asyncio.gather(*tasks, return_exceptions=True)
        assert [good, *others] == [["good"], ["well"], ["late"], ["last"]]
        assert bad is error
        assert sorted(batches[0]) == ["bad", "good", "well"]
        assert batches[1:] == [["good"], *[["bad"]] * tries, ["well"], ["late", "last"]]
        await queue.close()

    asyncio.run(main())


def test_three_workers_may_die_of_a_sentence():
    """Somebody may have killed two of them."""

    async def main():
        batches, run = failing_at(WorkerDied("dead"), "bad")
        queue = Batcher([run], 4, 0, 100, Metrics())
        with pytest.raises(WorkerDied):
            await queue.submit("serving_default", ["bad"])
        assert batches == [["bad"], ["bad"], ["bad"]]
        await queue.close()

    asyncio.run(main())


def test_nothing_is_tried_again_without_a_worker_or_without_anyone_who_waits(caplog):
    async def main():
        batches, run = failing_at(BadInput("no export"), "good", "well")
        queue = Batcher([run], 4, 0, 100, Metrics())
        with pytest.raises(BadInput, match="no export"):
            await queue.submit("serving_default", ["good", "well"])
        assert batches == [["good", "well"]]
        await queue.close()
        worker = Worker(held=True)
        queue = Batcher([failing_after(worker)], 4, 0, 100, Metrics())
        (task,) = await started(queue, ["good", "well"])
        task.cancel()
        await settle()
        worker.free()
        await queue.close()
        assert len(worker.batches) == 1

    def failing_after(worker):
        async def run(signature, rows):
            await worker.run(signature, rows)
            raise WorkerDied("it took too long")

        return run

    asyncio.run(main())
    assert not caplog.messages


def test_closing_answers_all_that_wait():
    async def main():
        workers = [Worker(held=True), Worker(held=True)]
        queue = batcher(workers, max_wait=3600)
        tasks = await started(queue, *([[f"{i}"] for i in range(40)]))
        closing = asyncio.create_task(queue.close())
        await settle()
        assert not closing.done()
        for worker in workers:
            worker.free()
        async with asyncio.timeout(10):
            await closing
        assert [task.result() for task in tasks] == [[f"serving_default {i}"] for i in range(40)]

    asyncio.run(main())


def test_the_sentence_that_has_waited_longest_goes_first_even_if_it_is_the_longest():
    async def main():
        worker = Worker(held=True)
        queue = batcher([worker])
        tasks = await started(queue, ["first"], ["x" * 4000], *([["y" * 3000]] * 6))
        worker.free()
        await asyncio.gather(*tasks)
        assert "x" * 4000 in worker.batches[1][1]
        await queue.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("workers", "seconds", "expected"),
    [(1, 5, 20), (2, 5, 10), (1, 10**9, 60)],  # four sentences wait; a minute at most
)
def test_when_to_come_back_is_what_the_queue_takes_all_workers(workers, seconds, expected):
    async def main():
        queue = batcher([Worker(held=True) for _ in range(workers)], room=5)
        queue._seconds = seconds
        await started(queue, *[["first"]] * workers, ["a", "b", "c", "d"])
        with pytest.raises(QueueFull) as refusal:
            await queue.submit("serving_default", ["e", "f"])
        assert refusal.value.retry_after == expected
        queue.cancel()

    asyncio.run(main())


def test_counters_are_of_sentences_and_pieces():
    async def main():
        async def run(signature, rows):
            await asyncio.sleep(0.4)
            return Batch(rows, 3 * len(rows))

        counted = Metrics()
        queue = Batcher([run], 8, 0.0, 99, counted)
        queue._seconds = 0.0
        await queue.submit("serving_default", list("abcdefgh"))
        assert 0 < queue._seconds < 0.1 * 0.4 / 4  # a tenth of an eighth of the batch's time
        text = counted.text().decode()
        assert re.search(r'^t2t_sentences_total\{signature="serving_default"\} 8.0$', text, re.M)
        assert re.search(r"^t2t_target_pieces_total 24.0$", text, re.M)
        await queue.close()

    asyncio.run(main())


def test_newcomers_do_not_prolong_the_wait_of_those_before_them():
    async def main():
        workers = [Worker(held=True), Worker()]
        queue = batcher(workers, batch_size=8, max_wait=3600)
        await started(queue, list("123456"), ["old"])  # each worker takes three of six
        (old,) = queue._waiting  # while more are being translated
        old.arrived -= 3600
        await started(queue, ["new"])
        assert workers[1].batches[-1][1] == ["old", "new"]
        queue.cancel()

    asyncio.run(main())


def test_a_request_that_has_failed_leaves_the_queue():
    async def main():
        batches, failing = failing_at(RuntimeError("bad"), "bad")

        async def run(signature, rows):
            await asyncio.sleep(0.01)
            return await failing(signature, rows)

        queue = Batcher([run], 1, 0, 100, Metrics())
        with pytest.raises(RuntimeError, match="bad"):
            await queue.submit("serving_default", ["bad", "good", "well"])
        await queue.close()
        assert ["well"] not in batches

    asyncio.run(main())


def test_a_long_sentence_that_comes_late_does_not_set_the_turn_back():
    """Else newcomers would go before those who wait."""

    async def main():
        workers = [Worker(held=True), Worker(held=True)]
        queue = batcher(workers, batch_size=16)
        await started(queue, ["x" * 500], ["y" * 500], [f"many {i:03}" for i in range(96)])
        for worker in (workers[0], workers[0], workers[1]):
            worker.go.release()
            await settle()
        assert workers[1].batches[1][1] == ["y" * 500]
        await started(queue, ["new line"])
        workers[0].go.release()
        await settle()
        assert "new line" not in workers[0].batches[-1][1]
        queue.cancel()

    asyncio.run(main())


def test_a_batch_has_the_characters_that_fill_up_to_its_longest_sentence():
    async def main():
        worker = Worker(held=True)
        queue = batcher([worker])
        tasks = await started(queue, ["first"], ["x" * 5000], *([["x" * 500]] * 2))
        worker.free()
        await asyncio.gather(*tasks)
        assert [list(map(len, rows)) for _, rows in worker.batches[1:]] == [[5000], [500, 500]]
        await queue.close()

    asyncio.run(main())


def test_a_batch_is_full_if_enough_wait_even_where_the_first_is_the_longest():
    async def main():
        worker = Worker(held=True)
        queue = batcher([worker])
        tasks = await started(
            queue, ["first"], ["x" * 50], *([["x" * n] for n in (10, 20, 30, 40)])
        )
        worker.free()
        await asyncio.gather(*tasks)
        assert [list(map(len, rows)) for _, rows in worker.batches[1:]] == [[20, 30, 40, 50], [10]]
        await queue.close()

    asyncio.run(main())
