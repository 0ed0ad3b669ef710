"""The benchmark of the server: its arithmetic, its accounting of faults, and a run; no speeds."""

import contextlib
import http.server
import importlib.util
import json
import re
import sys
import threading
import time

import numpy as np
import pytest
import served

from pipelines.toy import toy_ende
from t2t_repro.bench import __main__ as bench_main
from t2t_repro.bench import serve as bench_serve
from t2t_repro.bench.traffic import Answer, Clients, Line, Plan, send
from t2t_repro.serving import litert

# Not importorskip, for importing Locust would change this process.
needs_locust = pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="a dev extra")


def answer(**changes):
    fields = {"client": 0, "line": 0, "due": 0.0, "sent": 0.0, "done": 1.0, "status": 200}
    return Answer(**fields | {"lines": [Line("a", -1.0)], "refusals": 0} | changes)


def test_throughput_counts_what_comes_inside_the_window():
    answers = [answer(sent=second - 0.5, done=float(second)) for second in range(10)]
    row = bench_serve.throughput([*answers, answer(done=4.0, status=503)], 2, 6)
    assert (row["sentences_per_s"], row["requests"], row["failed"]) == (1, 4, 1)
    assert row["p50_ms"] == row["p99_ms"] == pytest.approx(500)


def test_latencies_are_percentiles_in_milliseconds():
    row = bench_serve.latencies(n / 1000 for n in range(101))
    assert row == {"p50_ms": 50, "p95_ms": 95, "p99_ms": pytest.approx(99), "requests": 101}
    assert bench_serve.latencies([]) == dict.fromkeys(row) | {"requests": 0}


def test_arrivals_have_their_rate_and_are_random():
    due = bench_serve.arrivals(rate=50, seconds=20)
    assert len(due) == 1000
    assert due == sorted(due)
    assert due[-1] == pytest.approx(20)
    gaps = np.diff(due)
    assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.1)  # exponential: Poisson arrivals


def test_an_open_loops_latency_counts_from_when_a_request_was_due():
    late = [answer(due=second, sent=second + 2.0, done=second + 3.0) for second in range(1, 9)]
    row = bench_serve.openness([*late, answer(sent=10, status=429), answer(sent=10, status=504)])
    assert row["p50_ms"] == row["p99_ms"] == pytest.approx(3000)
    assert (row["refused_share"], row["failed"], row["sent_per_s"]) == (0.1, 1, 1)
    assert row["late_p99_ms"] > 2000


def test_random_sentences_are_different_and_as_long_as_news(toy_vocabulary):
    lines = bench_serve.random_sentences(toy_vocabulary, 64)
    assert len(set(lines)) == 64
    lengths = [len(line.split()) + 1 for line in lines]  # with EOS
    assert sorted(lengths[:32]) == sorted(lengths[32:]) == sorted(bench_serve.MIXED[::8])


def test_lines_of_a_file_are_different_and_not_blank(tmp_path):
    (tmp_path / "text").write_text("b\n\n a\nb\r\n\u00e4\n", encoding="utf-8")
    assert sorted(bench_serve.read(tmp_path / "text", 9)) == ["a", "b", "\u00e4"]
    assert len(bench_serve.read(tmp_path / "text", 2)) == 2
    (tmp_path / "text").write_text(" \n")
    with pytest.raises(bench_serve.BadInput, match="no sentence there"):
        bench_serve.read(tmp_path / "text", 9)


def test_long_sentences_have_their_words():
    long = bench_serve.long_sentences(["one two three"] * 250)
    assert [len(line.split()) for line in long] == [300, 300]
    assert bench_serve.long_sentences(["one two"]) == ["one two"]


class WrongServer(http.server.BaseHTTPRequestHandler):
    """Answers in capitals, but for the sentences that name a fault; tells good from bad requests.

    Its faults are those that a server can have: the answer that another client waits for, the last
    one once more, two at once, another text, one of nearly the same score, an error, none, and a
    full queue.
    """

    protocol_version = "HTTP/1.1"
    last = ""
    full = 2  # times that the queue is

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        text = json.loads(body)["instances"][0]
        if text == "full" and WrongServer.full:
            WrongServer.full -= 1
            return self.reply(429, {"error": "full"})
        if text == "none":
            self.close_connection = True
            return None
        if text == "error":
            return self.reply(500, {"error": "error"})
        own = {"swapped": "PLAIN 3", "repeated": self.last, "other": "?", "tie": "!"}.get(
            text, text.upper()
        )
        self.last = own
        score = -1.01 if text == "tie" else score_of(own)
        rows = [{"translation": own, "score": score}] * (2 if text == "twice" else 1)
        return self.reply(200, {"predictions": rows})

    def reply(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def wrong_server(monkeypatch):
    monkeypatch.setattr(WrongServer, "full", 2)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), WrongServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def score_of(text):
    return -float(len(text) + ord(text[-1]))


FAULTS = ["swapped", "repeated", "twice", "other", "tie", "error", "none", "full"]


@needs_locust
def test_faults_of_a_server_are_counted(wrong_server):
    plain = [f"plain {number}" for number in range(9)]
    lines = [*plain, *FAULTS]
    report = send(Plan(wrong_server, Clients(1, lines)))
    assert [each.line for each in report.answers] == [*range(len(lines))]
    expected = [Line(line.upper(), -1.0 if line == "tie" else score_of(line)) for line in lines]
    found = bench_serve.faults(report.answers, expected)
    assert found == {"lost": 2, "swapped": 1, "repeated": 2, "wrong": 1, "near_ties": 1}
    assert [each.refusals for each in report.answers] == [0] * (len(lines) - 1) + [2]
    assert report.cpu > 0
    assert (report.misbehaved, report.resources) == (0, [])


def test_requests_that_were_never_answered_are_lost():
    answers = [answer(line=0), answer(line=2, lines=[Line("c", -1.0)])]
    assert bench_serve.faults(answers, [Line(text, -1.0) for text in "abc"])["lost"] == 1


@needs_locust
def test_an_open_loop_sends_when_due_and_takes_no_for_an_answer(wrong_server):
    due = [0.1, 0.1, 0.3]
    report = send(Plan(wrong_server, Clients(3, ["full", "plain"], due)))
    assert sorted(each.due for each in report.answers) == due
    assert all(each.sent >= each.due for each in report.answers)
    assert sorted(each.status for each in report.answers) == [200, 429, 429]


@needs_locust
def test_a_closed_loop_goes_on_for_its_time(wrong_server):
    plan = Plan(wrong_server, Clients(2, ["a", "b"]), Clients(1, ["c"]), seconds=1)
    answers = send(plan).answers
    assert {each.line for each in answers} == {0, 1}
    assert len(answers) > 3  # 50 on two cores


@needs_locust
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["train", "--requests=11"], "--requests: only for serve"),
        (["serve", "--text=a"], "--export_dir, --text: wanted both, or none"),
        (["serve", "--requests=9"], "--requests: wanted a whole number from 10 to"),
    ],
)
def test_wrong_flags(monkeypatch, flags, message):
    monkeypatch.setattr(sys, "argv", ["bench", *flags])
    with pytest.raises(bench_serve.BadInput, match=re.escape(message)):
        bench_main.main()


@pytest.mark.parametrize("package", ["locust", "fastapi"])
def test_a_missing_package_is_named(monkeypatch, package):
    find = bench_main.importlib.util.find_spec
    monkeypatch.setattr(
        bench_main.importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    monkeypatch.setattr(sys, "argv", ["bench", "serve"])
    with pytest.raises(bench_serve.BadInput, match=rf"{package} is not installed; pip install"):
        bench_main.main()


def test_a_server_that_does_not_start(tmp_path):
    with (
        pytest.raises(bench_serve.BadInput, match=r"did not start: .*no export there"),
        bench_serve.server(tmp_path / "nowhere"),
    ):
        pass


@needs_locust
@pytest.mark.slow
def test_a_run_loses_nothing_and_leaves_no_process(tiny_run, once, tmp_path, monkeypatch, capsys):
    pytest.importorskip("ai_edge_litert")
    export = served.exported(once, tiny_run, litert)
    examples = toy_ende.examples("dev")
    text = "".join(next(examples)["source"] + "\n" for _ in range(60))
    (tmp_path / "text").write_text(text, encoding="utf-8")
    seconds = ("WARM_UP_S", "REPEAT_S", "OPEN_S", "SHORT_S")
    for name, value in {**dict.fromkeys(seconds, 1.0), "CLIENTS": (1, 4)}.items():
        monkeypatch.setattr(bench_serve, name, value)
    flags = [f"--export_dir={export}", f"--text={tmp_path / 'text'}"]
    flags += ["--requests=150", "--repeats=1", "--json"]
    monkeypatch.setattr(sys, "argv", ["bench", "serve", *flags])
    before = children()
    bench_main.main()
    offline, one, four, *open_loops, beside, soak = json.loads(capsys.readouterr().out)["rows"]
    assert offline["target_pieces_per_s"] > offline["sentences_per_s"] > 0
    assert [one["clients"], four["clients"]] == [1, 4]
    for row in (one, four):
        assert row["share"] == pytest.approx(row["sentences_per_s"] / offline["sentences_per_s"])
    capacity = max(one["sentences_per_s"], four["sentences_per_s"])
    assert [row["load"] for row in open_loops] == [0.5, 0.8, 1.2]
    for row in open_loops:
        assert row["wanted_per_s"] == pytest.approx(row["load"] * capacity)
        assert 0 <= row["refused_share"] < 1
    for row in (one, four, *open_loops, beside):
        assert row["failed"] == 0
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    assert 0 < beside["alone_p50_ms"] <= beside["alone_p99_ms"]
    assert (soak["requests"], soak["distinct"]) == (150, offline["requests"])
    assert [soak[name] for name in ("lost", "swapped", "repeated", "wrong")] == [0] * 4
    assert soak["near_ties"] <= 2
    assert soak["misbehaved"] >= 10
    assert soak["surprises"] == {}
    for name in ("server_mb", "workers_mb", "threads", "files"):
        assert len(soak[name]) == 4
        assert min(soak[name]) > 0
    while len(children()) > len(before):  # a worker ends after its server; a timeout ends the test
        time.sleep(0.1)


def children():
    """Return the processes that this one has started, without Python's own helper."""
    import psutil

    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "resource_tracker" not in " ".join(each.cmdline()):
                found.append(each)
    return found
