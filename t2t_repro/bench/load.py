"""The clients of `bench serve`, made with Locust: reads a `Plan` on stdin, writes a `Report`.

Importing Locust replaces Python's sockets, locks and sleep in the whole process by gevent's, so
this is a process of its own, `python -m t2t_repro.bench.load`, that `traffic.send` starts.
"""

import itertools
import json
import logging
import pickle
import sys
import time
import typing
from collections import Counter
from collections.abc import Iterator

import gevent
import psutil
from gevent import socket
from locust import FastHttpUser, User, task
from locust.env import Environment
from locust.exception import StopUser

from t2t_repro.bench.traffic import Answer, Clients, Line, Plan, Report, Resources

_PATH = "/v1/models/default:predict"
_PATIENCE_S = 120.0  # of a client with a server that does not answer
_IDLE_S = 6.0  # after the load; the server closes connections that are idle for 5 s


class _Load:
    """A plan being carried out."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.turns, self.others = self._turns(plan.clients), self._turns(plan.others)
        self.clients = itertools.count()
        self.tricks = itertools.cycle(_tricks(plan.clients.lines[0]))
        self.answers: list[Answer] = []
        self.misbehaved, self.surprises = 0, Counter[str]()
        self.resources: list[Resources] = []
        self.began = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self.began

    def _turns(self, clients: Clients) -> Iterator[tuple[int, float]]:
        """Yield the number of a line and the second at which it is due, until the load ends."""
        numbers: typing.Iterable[int] = range(len(clients.lines))
        if self.plan.seconds or clients.due:
            numbers = itertools.cycle(numbers)
        for turn in zip(numbers, clients.due or itertools.repeat(0.0), strict=False):
            if self.plan.seconds and self.now() > self.plan.seconds:
                return
            yield turn

    def record(self, answer: Answer) -> None:
        self.answers.append(answer)
        total = len(self.plan.clients.lines)
        if len(self.answers) in (total // 10, total):
            self.sample()

    def sample(self) -> None:
        """Record the server's resources, if the plan asks for them."""
        if not self.plan.server:
            return
        server = psutil.Process(self.plan.server)
        workers = server.children(recursive=True)
        everyone = [server, *workers]
        self.resources.append(
            Resources(
                server.memory_info().rss / 1e6,
                sum(each.memory_info().rss for each in workers) / 1e6,
                sum(each.num_threads() for each in everyone),
                sum(each.num_fds() for each in everyone),
            )
        )


class _User(User):
    """A client of any kind."""

    abstract = True
    load: _Load  # set before the first client starts


class _Client(_User, FastHttpUser):
    """A client whose answers are recorded. In a closed loop it obeys a 429 and tries again."""

    network_timeout = _PATIENCE_S

    def on_start(self) -> None:
        self.number = next(self.load.clients)

    @task
    def translate(self) -> None:
        """Send the next sentence, when it is due."""
        load, refusals = self.load, 0
        line, due = _next(load.turns)
        gevent.sleep(max(0, due - load.now()))
        while True:
            sent = load.now()
            response = self.client.post(_PATH, json=_request(load.plan.clients.lines[line]))
            if response.status_code != 429 or load.plan.clients.due:
                break
            refusals += 1
            assert response.headers
            gevent.sleep(float(str(response.headers["Retry-After"])))
        lines = _lines(response.content) if response.status_code == 200 else []
        load.record(
            Answer(
                *(self.number, line, due, sent, load.now(), response.status_code),
                *(lines, refusals),
            )
        )


class _Other(_User, FastHttpUser):
    """A client that only makes work for the server."""

    network_timeout = _PATIENCE_S

    @task
    def translate(self) -> None:
        """Send the next sentence."""
        line, _ = _next(self.load.others)
        self.client.post(_PATH, json=_request(self.load.plan.others.lines[line]))


class _Misbehaving(_User):
    """A client that plays one trick after the other, in step with the answers to the others."""

    @task
    def misbehave(self) -> None:
        """Play the next trick, once the others have had their share of answers."""
        load = self.load
        while (
            load.misbehaved * load.plan.clients.number > len(load.answers) * load.plan.misbehaving
        ):
            gevent.sleep(0.01)
        load.misbehaved += 1
        name, trick = next(load.tricks)
        status = _play(load.plan.address, trick)
        if status != trick.status:
            load.surprises[f"{name}: {status}"] += 1


class _Trick(typing.NamedTuple):
    """A request that no good client sends."""

    request: bytes
    status: int  # that the server has to answer; 0: the client hangs up at once
    pause: float = 0  # seconds between two bytes, sent or received


def _tricks(line: str) -> list[tuple[str, _Trick]]:
    def post(body: bytes, path: str = _PATH, length: str = "") -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        length = length or f"Content-Length: {len(body)}"
        return f"{head}{length}\r\n\r\n".encode() + body

    body = json.dumps(_request(line)).encode()
    good = post(body)
    # One byte more than the server reads. After more it would hang up, perhaps before its answer.
    large = b"100000\r\n" + b" " * (1 << 20) + b"\r\n1\r\n \r\n"
    return [
        ("hangs up in the header", _Trick(good[:20], 0)),
        ("hangs up in the body", _Trick(good[:-5], 0)),
        ("hangs up before the answer", _Trick(good, 0)),
        ("dribbles", _Trick(good, 200, 0.002)),
        ("not HTTP", _Trick(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400)),
        ("not JSON", _Trick(post(b'{"instances": ["'), 400)),
        ("not text", _Trick(post(b'{"instances": [[1], {}]}'), 400)),
        ("says it is too large", _Trick(post(b"", length=f"Content-Length: {1 << 40}"), 413)),
        ("is too large", _Trick(post(large, length="Transfer-Encoding: chunked"), 413)),
        ("asks for another model", _Trick(post(body, "/v1/models/x:predict"), 404)),
        ("asks for another route", _Trick(post(body, "/v2"), 404)),
    ]


def _play(address: str, trick: _Trick) -> int:
    """Play a trick; return the status of the answer, 0 where there is none."""
    host, port = address.removeprefix("http://").split(":")
    answer = b""
    try:
        with socket.create_connection((host, int(port)), timeout=_PATIENCE_S) as connection:
            size = 1 if trick.pause else 1 << 16
            for start in range(0, len(trick.request), size):
                connection.sendall(trick.request[start : start + size])
                gevent.sleep(trick.pause)
            while trick.status and (received := connection.recv(size)):
                answer += received
                gevent.sleep(trick.pause)
    except OSError:
        pass  # the server may hang up on such a client, too; what came before counts
    return int(answer.split()[1]) if answer else 0


def _next(turns: Iterator[tuple[int, float]]) -> tuple[int, float]:
    turn = next(turns, None)
    if turn is None:
        raise StopUser
    return turn


def _request(line: str) -> dict[str, list[str]]:
    return {"instances": [line]}


def _lines(content: bytes) -> list[Line]:
    return [Line(row["translation"], row["score"]) for row in json.loads(content)["predictions"]]


def _carry_out(plan: Plan) -> Report:
    load, users = _Load(plan), (_Client, _Other, _Misbehaving)
    for user in users:
        user.host, user.load = plan.address, load
    runner = Environment(user_classes=[*users]).create_local_runner()
    load.sample()
    clients = runner.spawn_users({"_Client": plan.clients.number})
    if plan.others.number:
        runner.spawn_users({"_Other": plan.others.number})
    if plan.misbehaving:
        runner.spawn_users({"_Misbehaving": plan.misbehaving})
    load.began, used = time.perf_counter(), time.process_time()  # no client has run before
    gevent.joinall([client.greenlet for client in clients])
    cpu = (time.process_time() - used) / load.now()
    runner.quit()
    gevent.sleep(_IDLE_S if plan.server else 0)
    load.sample()
    return Report(load.answers, cpu, load.misbehaved, dict(load.surprises), load.resources)


if __name__ == "__main__":
    logging.getLogger("locust").setLevel(logging.ERROR)
    sys.stdout.buffer.write(pickle.dumps(_carry_out(pickle.load(sys.stdin.buffer))))
