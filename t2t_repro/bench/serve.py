"""Speed and steadiness of the server of `python -m t2t_repro.serve`, beside the offline search.

The server runs with its own defaults, but without the log of requests. Its clients are Locust's, in
one process, see `bench.load`; each request has one sentence. Server and clients share the machine,
as nothing but loopback is measured: `load_cpu` says how much of one core the clients took, which
the server did not have.

Without an export, the model is base with random weights in LiteRT's int8, as in `bench.litert`. Its
sentences are random words of one piece each, as many as news has. Its outputs end when they are as
long as their sources, because with random weights a hypothesis may never end.
"""

import contextlib
import multiprocessing
import subprocess
import sys
import tempfile
import time
import typing
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import BadInput
from pipelines.vocabulary import Vocabulary
from t2t_repro import config, tensorflow_import
from t2t_repro.bench import litert
from t2t_repro.bench.decode import MIXED, ROWS
from t2t_repro.bench.traffic import Answer, Clients, Line, Plan, Resources, send
from t2t_repro.serving import exports

Row = dict[str, Any]

CLIENTS = (1, 8, 32, 128)
WARM_UP_S, REPEAT_S = 3.0, 5.0  # of a closed loop: before it is measured, and for each repeat
LOADS, OPEN_S = (0.5, 0.8, 1.2), 20.0  # of capacity, and how long requests keep coming
QUEUE_S, MOST_QUEUED = 2.0, 512  # of an open loop: work that may wait, and sentences at most
SHORT_S = 15.0  # of short sentences, alone and beside long ones
FLOODING, LONG_WORDS = 8, 300  # clients that send long sentences, and how long these are
SOAKING, MISBEHAVING = 36, 4  # clients of the soak: one in ten misbehaves
NEAR = 0.05  # relative difference of two scores between which a search wavers
STOP_S = 60.0  # for a server to end


class Offline(typing.NamedTuple):
    """The answers of an export without a server, to all lines in one go."""

    lines: list[Line]
    seconds: float
    pieces: int  # of the translations, EOS included; 0: the export has no vocabulary, being old


def rows(export: Path | None, text: Path | None, requests: int, repeats: int) -> Iterator[Row]:
    """Yield rows of the offline search, of closed and open loops, of floods, and of a soak.

    Each part has a server of its own, started anew.

    Yields:
        `part`: what is measured.
        `sentences_per_s`: offline: of all sentences in one go, as `translate` does it, with a
            thread for each core, in a process of its own and with the model loaded. closed loop:
            in --repeats times 5 s, after 3 s to warm up; not the median of as many windows, because
            answers come by the batch, up to 16 at once, of about 200 in 5 s at base size.
        `target_pieces_per_s`: the same in pieces of the translations, EOS included, as the
            vocabulary splits them; a random model writes a fifth fewer itself.
        `clients`: closed loop: how many send one sentence after the other.
        `share`: closed loop: its sentences per second over those offline.
        `p50_ms`, `p95_ms`, `p99_ms`: latencies of the requests that were answered. In an open loop
            they count from the moment at which a request was due, however late it was sent.
        `load`: open loop: its rate over the best of the closed loops. Requests come at random
            (Poisson) for 20 s, and no client waits for another. At most 2 s of work may queue up,
            and 512 sentences; an overload of 1.2 fills that queue after 10 s.
        `wanted_per_s`, `sent_per_s`, `late_p99_ms`: open loop: the rate, the rate at which requests
            were sent, and how late; a small part of p50_ms, or the loop was not open.
        `refused_share`: open loop: the share of answers 429; 0.08 are expected at a load of 1.2.
        `failed`: answers other than 200, and 429 in an open loop; 0 are expected.
        `requests`: whose latencies are counted. Offline and soak: all.
        `load_cpu`: processor time of the clients over time; 1: one core.
        `alone_p50_ms`, `alone_p99_ms`: short beside long: one client that sends short sentences,
            the shortest quarter, to a server that has nothing else to do. `p50_ms`, `p99_ms`:
            while 8 clients send sentences of 300 words.
        `distinct`, `distinct_answers`: soak: different sentences, and different offline answers.
            Fewer sentences than --requests are sent several times. Two swapped answers that are
            alike cannot be told apart.
        `lost`: soak: requests without an answer, or with an answer other than 200 and 429; 0.
        `swapped`, `repeated`, `wrong`: soak: answers other than the offline answer to the sentence:
            the answer to another one; the one that the client had before, or several; another text.
            0 are expected.
        `near_ties`: soak: other texts, too, but with a score within 5 % of the offline one. A batch
            of other sentences changes the last bits of sums, which may turn a number that is
            rounded to int8. Trained models hardly waver: 0 in 5,000 sentences of toy_ende.
            With random weights hypotheses are nearly equal, and 1 or 2 % of the texts change. An
            answer to another sentence with nearly the same score is counted here, too.
        `refusals`: soak: answers 429, after which the client waited as told and tried again.
        `misbehaved`, `surprises`: soak: requests of the clients that hang up, send nonsense or are
            slow; and answers to them that were not the right ones.
        `server_mb`, `workers_mb`, `threads`, `files`: soak: memory (RSS) of the server and of its
            workers together; threads and open files (connections included) of all. Four values:
            before the load, after a tenth, after all, and 6 s later without clients. Flat: the
            third is the second, and the fourth is the first or below the third.
    """
    with tempfile.TemporaryDirectory() as directory:
        if export is None or text is None:
            export = Path(directory, "export")
            _in_a_process(write_base, export)
            lines = random_sentences(Vocabulary.load(exports.newest_version(export)), requests)
        else:
            lines = read(text, requests)
        offline = _in_a_process(translate, export, lines)
        speed = len(lines) / offline.seconds
        yield {
            "part": "offline",
            **{"sentences_per_s": speed, "target_pieces_per_s": offline.pieces / offline.seconds},
            "requests": len(lines),
        }
        best = 0.0
        for row in closed_loops(export, lines, repeats * REPEAT_S):
            best = max(best, row["sentences_per_s"])
            yield row | {"share": row["sentences_per_s"] / speed}
        yield from open_loops(export, lines, best)
        yield short_beside_long(export, lines)
        yield soak(export, lines, offline.lines, requests)


def closed_loops(export: Path, lines: list[str], seconds: float) -> Iterator[Row]:
    """Yield a row for each number of clients that send one sentence after the other."""
    with server(export) as (address, _):
        for clients in CLIENTS:
            plan = Plan(address, Clients(clients, lines), seconds=WARM_UP_S + seconds)
            report = send(plan)
            yield {
                **{"part": "closed loop", "clients": clients},
                **throughput(report.answers, WARM_UP_S, plan.seconds),
                "load_cpu": report.cpu,
            }


def throughput(answers: Sequence[Answer], begin: float, end: float) -> Row:
    """Return the rate and the latencies of the answers that came between two moments."""
    inside = [each for each in answers if begin <= each.done < end]
    answered = [each for each in inside if each.status == 200]
    return {
        "sentences_per_s": len(answered) / (end - begin),
        **latencies(each.done - each.sent for each in answered),
        "failed": len(inside) - len(answered),
    }


def open_loops(export: Path, lines: list[str], capacity: float) -> Iterator[Row]:
    """Yield a row for each load; `capacity` is in sentences per second."""
    queue = max(16, min(MOST_QUEUED, round(QUEUE_S * capacity)))
    # Those that wait, each worker's batch of 16, and some that are refused meanwhile.
    clients = queue + 16 * max(2, litert.CORES) + 96
    with server(export, f"--queue_size={queue}", "--max_lines=1") as (address, _):
        for load in LOADS:
            due = arrivals(load * capacity, OPEN_S)
            report = send(Plan(address, Clients(clients, lines, due)))
            yield {"part": "open loop", "load": load, **openness(report.answers)} | {
                "wanted_per_s": load * capacity,
                "load_cpu": report.cpu,
            }


def arrivals(rate: float, seconds: float) -> list[float]:
    """Return the seconds at which requests are due: `rate` of them in each second, at random."""
    count = max(1, round(rate * seconds))
    gaps = np.random.default_rng(0).exponential(size=count)
    times: list[float] = (np.cumsum(gaps) * count / rate / np.sum(gaps)).tolist()
    return times


def openness(answers: Sequence[Answer]) -> Row:
    """Return the rate, lateness and refusals of an open loop, and its latencies."""
    accepted = [each for each in answers if each.status == 200]
    refused = sum(each.status == 429 for each in answers)
    late = [each.sent - each.due for each in answers]
    return {
        "sent_per_s": len(answers) / max(each.sent for each in answers),
        "late_p99_ms": float(np.percentile(late, 99)) * 1e3,
        "refused_share": refused / len(answers),
        "failed": len(answers) - len(accepted) - refused,
        **latencies(each.done - each.due for each in accepted),
    }


def latencies(seconds: typing.Iterable[float]) -> Row:
    """Return percentiles in milliseconds, and of how many requests they are."""
    found = list(seconds)
    return {
        f"p{percent}_ms": float(np.percentile(found, percent)) * 1e3 if found else None
        for percent in (50, 95, 99)
    } | {"requests": len(found)}


def short_beside_long(export: Path, lines: list[str]) -> Row:
    """Return the latencies of short sentences, alone and while others send long ones."""
    short = Clients(1, sorted(lines, key=len)[: max(1, len(lines) // 4)])
    with server(export) as (address, _):
        alone = send(Plan(address, short, seconds=SHORT_S))
        flood = Clients(FLOODING, long_sentences(lines))
        beside = send(Plan(address, short, flood, seconds=SHORT_S))
    before, row = (
        latencies(each.done - each.sent for each in report.answers if each.status == 200)
        for report in (alone, beside)
    )
    return {
        "part": "short beside long",
        **{f"alone_{name}": before[name] for name in ("p50_ms", "p99_ms")},
        **row,
        "failed": len(alone.answers) + len(beside.answers) - before["requests"] - row["requests"],
    }


def long_sentences(lines: list[str]) -> list[str]:
    """Return sentences of `LONG_WORDS` words, made of all lines in their order."""
    words = " ".join(lines).split()
    starts = range(0, max(1, len(words) - LONG_WORDS), LONG_WORDS)
    return [" ".join(words[start : start + LONG_WORDS]) for start in starts]


def soak(export: Path, lines: list[str], expected: list[Line], requests: int) -> Row:
    """Send `requests` sentences while some clients misbehave; return what went wrong."""
    order = np.arange(requests) % len(lines)
    clients = Clients(SOAKING, [lines[number] for number in order])
    with server(export) as (address, process):
        report = send(Plan(address, clients, misbehaving=MISBEHAVING, server=process))
    return {
        **{"part": "soak", "requests": requests, "distinct": len(lines)},
        "distinct_answers": len({line.text for line in expected}),
        **faults(report.answers, [expected[number] for number in order]),
        "refusals": sum(each.refusals for each in report.answers),
        **{"misbehaved": report.misbehaved, "surprises": report.surprises},
        **levels(report.resources),
        **{"load_cpu": report.cpu},
    }


def faults(answers: Sequence[Answer], expected: Sequence[Line]) -> dict[str, int]:
    """Count the answers that are not the offline answer to their sentence.

    Args:
        answers: In the order in which they came.
        expected: The offline answer to each request.
    """
    found = dict.fromkeys(("lost", "swapped", "repeated", "wrong", "near_ties"), 0)
    known = {line.text for line in expected}
    before: dict[int, str] = {}  # client -> its last answer
    answered = set()
    for each in answers:
        if each.status != 200 or not each.lines:
            continue
        answered.add(each.line)
        (got, *more), wanted, last = each.lines, expected[each.line], before.get(each.client)
        before[each.client] = got.text
        if more:
            found["repeated"] += 1
        elif got.text == wanted.text:
            continue
        elif abs(got.score - wanted.score) <= NEAR * abs(wanted.score):
            found["near_ties"] += 1
        elif got.text == last:
            found["repeated"] += 1
        else:
            found["swapped" if got.text in known else "wrong"] += 1
    return found | {"lost": len(expected) - len(answered)}


def levels(resources: Sequence[Resources]) -> dict[str, list[float]]:
    """Return each resource's values over time."""
    values = np.round(np.array(resources).T, 1).tolist()
    return dict(zip(Resources._fields, values, strict=True))


def read(text: Path, most: int) -> list[str]:
    """Return up to `most` different lines of a file, in random order.

    Raises:
        BadInput: there is none.
    """
    found = text.read_text(encoding="utf-8", errors="replace").split("\n")
    lines = list(dict.fromkeys(line.strip() for line in found if line.strip()))
    if not lines:
        raise BadInput(f"--text={text}: no sentence there")
    order = np.random.default_rng(0).permutation(len(lines))[:most]
    return [lines[number] for number in order]


def random_sentences(vocabulary: Vocabulary, count: int) -> list[str]:
    """Return sentences of words that are one piece each; their lengths are news's `MIXED`.

    Each 32 of them in a row have all of the 32 lengths, so that any part is like the whole.
    """
    rng = np.random.default_rng(0)
    words = [piece[1:] for piece in vocabulary.pieces if piece[0] == "▁" and len(piece) > 1]
    lengths = MIXED[::8]  # which has each length eight times
    blocks = [rng.permutation(lengths) for _ in range(-(-count // len(lengths)))]
    return [" ".join(rng.choice(words, length - 1)) for length in np.concatenate(blocks)[:count]]


def write_base(export: Path) -> None:
    """Write base with random weights as a LiteRT export in int8."""
    tensorflow_import.quiet()
    import keras

    from t2t_repro.model.transformer import Transformer

    keras.utils.set_random_seed(3)  # with others, a few answers serve most of the sentences
    decode = config.Decode(max_extra_length=0)
    model = Transformer(config.Model(), ROWS, "float32")
    litert.write_export(model, litert.random_vocabulary(), decode, export)


def translate(export: Path, lines: list[str]) -> Offline:
    """Translate lines in one go."""
    newest = exports.newest_version(export)
    if (newest / "saved_model.pb").exists():
        tensorflow_import.quiet()
    rows = exports.load(newest)
    list(rows(iter(lines[:16]), 16))  # to warm up
    began = time.perf_counter()
    found = [Line(line.translation, line.score) for (line,) in rows(iter(lines), 4096)]
    seconds = time.perf_counter() - began
    texts = [line.text for line in found]
    pieces = [
        sum(map(len, Vocabulary.load(model.parent).encode(texts)))
        for model in newest.rglob("vocabulary.model")  # in a SavedModel it lies in assets.extra
    ]
    return Offline(found, seconds, sum(pieces))


def _in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


@contextlib.contextmanager
def server(export: Path, *flags: str) -> Iterator[tuple[str, int]]:
    """Run a server; yield its address and its process.

    Raises:
        BadInput: it does not start; the message is its own.
    """
    command = [sys.executable, "-m", "t2t_repro.serve", f"--export_dir={export}", "--port=0"]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen([*command, "--no_access_log", *flags], stderr=log)
        try:
            yield _address(process, Path(log.name)), process.pid
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait until a server is ready; return its address, which its log names."""
    while process.poll() is None:
        time.sleep(0.1)
        said = [line for line in log.read_text().splitlines() if line.startswith("serving ")]
        if said:
            address = said[0].split()[-1]
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/readyz"):
                return address
    said = log.read_text().splitlines() or [f"it ended with status {process.returncode}"]
    raise BadInput(f"the server did not start: {said[-1]}")
