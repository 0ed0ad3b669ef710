"""What `bench serve` sends to a server, and what comes back, between it and `bench.load`."""

import pickle
import subprocess
import sys
import typing
from collections.abc import Sequence


class Clients(typing.NamedTuple):
    """Clients that each hold one connection and send one sentence after the other."""

    number: int
    lines: Sequence[str]  # each is sent once, unless `Plan.seconds` or `due` asks for more
    due: Sequence[float] = ()  # second at which each request is sent; empty: when a client is free


class Plan(typing.NamedTuple):
    """The load on a server; it ends when `clients` have the answers to all that they sent."""

    address: str  # http://127.0.0.1:PORT
    clients: Clients
    others: Clients = Clients(0, ())  # their answers are not recorded
    misbehaving: int = 0  # clients that hang up, send nonsense, or are slow
    seconds: float = 0  # for which lines are sent, over and over; 0: each is sent once
    server: int = 0  # process whose resources are recorded; 0: none


class Line(typing.NamedTuple):
    """A translation and its score."""

    text: str
    score: float


class Answer(typing.NamedTuple):
    """The answer to a request; times are seconds since the load began."""

    client: int
    line: int  # the number of the sentence
    due: float  # when the request should have been sent
    sent: float
    done: float
    status: int  # of HTTP; 0: the connection ended without an answer
    lines: list[Line]  # one, if all is well
    refusals: int  # answers 429 before this one, each followed by the wait that it asked for


class Resources(typing.NamedTuple):
    """The resources of a server at one moment."""

    server_mb: float  # memory that it occupies (RSS)
    workers_mb: float  # the same of all its child processes together
    threads: int  # of all processes
    files: int  # open descriptors of all processes, connections included


class Report(typing.NamedTuple):
    """The observations of the clients."""

    answers: list[Answer]
    cpu: float  # processor time of the clients' process, over the time that the load took
    misbehaved: int  # requests of the misbehaving clients
    surprises: dict[str, int]  # answers to them other than the right one -> how many
    resources: list[Resources]  # before the load, after a tenth, after all, and without clients


def send(plan: Plan) -> Report:
    """Put the load on the server, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "t2t_repro.bench.load"],
        input=pickle.dumps(plan),
        stdout=subprocess.PIPE,
        check=True,
    )
    report: Report = pickle.loads(done.stdout)
    return report
