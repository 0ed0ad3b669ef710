"""Who may send what to the server, and for how long: the application with a model of its own."""

import asyncio
import contextlib
import http.client
import json
import logging
import math
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from t2t_repro.server import rest
from t2t_repro.server.batcher import QueueFull
from t2t_repro.server.engine import Description
from t2t_repro.server.options import Options

uvicorn = pytest.importorskip("uvicorn")
parser = pytest.importorskip("prometheus_client.parser")
app = pytest.importorskip("t2t_repro.server.app")
connection = pytest.importorskip("t2t_repro.server.connection")
metrics = pytest.importorskip("t2t_repro.server.metrics")
service = pytest.importorskip("t2t_repro.server.service")

PREDICT = "/v1/models/ende:predict"
BODY = json.dumps({"instances": ["Hello."]}).encode()
MODEL = {"num_layers": 1, "num_heads": 1}
SETTINGS = {"problem": "toy", "variant": "base", "format": "litert", "output": "text"}
SETTINGS |= {"model": MODEL, "decode": {"max_source_length": 9}}
BOUND = 20  # seconds until a test counts as hung


class Model:
    """A model that translates a sentence to itself; "slow" waits until it is cancelled."""

    def __init__(self):
        self.score = -1.5
        self.began, self.cancelled = threading.Event(), threading.Event()  # "slow"
        description = Description(SETTINGS, 2, 99, False)
        self.current = SimpleNamespace(number=1, batcher=self, description=description)
        self.failures = {}

    async def submit(self, signature, rows):
        if signature == "attention_page":
            return ["<html></html>"]
        if rows[0] == "fail":
            raise RuntimeError("broken")
        if rows[0] == "slow":
            self.began.set()
            try:
                await asyncio.sleep(BOUND)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if rows[0] == "full":
            raise QueueFull(7)
        return [[(row, self.score, False)] for row in rows]


class Site:
    """The application on a port, in a thread."""

    def __init__(self, **options):
        self.model = Model()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        given = {"model_name": "ende", "max_body_kb": 1, "timeout_s": 1} | options
        options = Options(None, **given)
        made = app.make_app(self.model, options, metrics.Metrics())
        self.server = uvicorn.Server(service.http_config(made, options))
        self.thread = threading.Thread(target=self.server.run, args=[[self.listening]])
        self.thread.start()

    def stop(self):
        self.server.should_exit = True
        self.thread.join(BOUND)
        assert not self.thread.is_alive()

    def connections(self):
        return self.server.server_state.connections

    def connect(self):
        return contextlib.closing(socket.create_connection(("127.0.0.1", self.port), BOUND))

    def ask(self, method="POST", path=PREDICT, body=BODY, **headers):
        """Return status, headers and body of an answer."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        with contextlib.closing(client):
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            client.request(method, path, body, names)
            response = client.getresponse()
            return response.status, response.headers, response.read().decode()

    def pour(self, data):
        """Send bytes; return what comes until the server closes the connection."""
        with self.connect() as client:
            client.sendall(data)
            return everything(client)


def everything(client):
    received = b""
    with contextlib.suppress(ConnectionError):
        while more := client.recv(1 << 16):
            received += more
    return received


def head(*lines, path=PREDICT):
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: a", *lines, "", ""]).encode()


@pytest.fixture(scope="module")
def sites():
    """Return the applications by their options."""
    sites = {}
    yield sites
    for each in sites.values():
        each.server.should_exit = True
    for each in sites.values():
        each.stop()


@pytest.fixture
def site(sites):
    """Return a function that returns the application with options; the same ones share it."""

    def site(**options):
        key = tuple(options.items())
        if key not in sites:
            sites[key] = Site(**options)
        return sites[key]

    return site


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(connection.Connection, "patience", 0.3)


@pytest.fixture
def records(sites, caplog):
    """Return a function that returns what the access log has, once it has a number of lines."""
    # A request is logged after its answer: the last ones of the test before may be on their way.
    wait_until(lambda: not any(each.server.server_state.tasks for each in sites.values()))
    caplog.clear()
    caplog.set_level(logging.INFO, "t2t_repro.access")

    def records(count):
        until = time.monotonic() + BOUND
        while len(lines := [each.message for each in caplog.records if named(each)]) < count:
            assert time.monotonic() < until, lines
            time.sleep(0.01)
        assert all("\n" not in line for line in lines)
        return [json.loads(line) for line in lines]

    def named(record):
        return record.name == "t2t_repro.access"

    return records


@pytest.mark.parametrize(("cookies", "status"), [(60, b"200"), (80, b"400")])
def test_a_head_of_up_to_64_kib_is_read_in_whatever_parts_it_comes(site, cookies, status):
    lines = [f"Cookie: {'c' * 1000}"] * cookies + ["Connection: close"]
    data = head(*lines, f"Content-Length: {len(BODY)}") + BODY
    with site().connect() as client:
        for start in range(0, len(data), 8192):
            with contextlib.suppress(ConnectionError):
                client.sendall(data[start : start + 8192])
            time.sleep(0.01)
        assert everything(client).split()[1] == status


# Who may


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer s3cret", 200),
        ("bearer s3cret", 200),
        ("BEARER  s3cret ", 200),
        ("Bearer s3cre", 401),
        ("Bearer s3cretx", 401),
        ("Bearer", 401),
        ("Basic s3cret", 401),
        ("s3cret", 401),
        ("Bearer s\xe9cret", 401),
        ("", 401),
    ],
)
def test_the_token(site, authorization, status):
    served = site(token="s3cret")
    got, headers, body = served.ask(Authorization=authorization)
    assert got == status
    if status == 401:
        assert headers["WWW-Authenticate"] == "Bearer"
        assert json.loads(body) == {"error": "wanted the header Authorization: Bearer TOKEN"}


def test_only_the_page_and_health_are_open(site):
    served = site(token="s3cret")
    for path in ("/", "/healthz", "/readyz"):
        for method in ("GET", "HEAD"):
            assert served.ask(method, path, None)[0] == 200
    closed = ["/metrics", "/openapi.json", "/v1/models/ende", "/v1/models/ende/metadata", "/else"]
    for path in [*closed, "//", "/healthz/", "/%2e%2e/healthz", "/attention", "/v1/"]:
        assert served.ask("GET", path, None)[0] == 401, path
    assert served.ask("POST", "/attention")[0] == 401
    assert served.ask("OPTIONS", PREDICT)[0] == 401


def test_other_origins_are_unknown_unless_allowed(site):
    asked = {"Origin": "http://a", "Access_Control_Request_Method": "POST"}
    closed, open_ = site(), site(allow_origin="http://a", token="s3cret")
    assert not any("access-control" in name.lower() for name in closed.ask(Origin="http://a")[1])
    assert closed.ask("OPTIONS", PREDICT, **asked)[0] == 400

    asked["Access_Control_Request_Headers"] = "authorization,content-type"
    status, headers, _ = open_.ask("OPTIONS", PREDICT, None, **asked)  # comes without the token
    assert status == 200
    assert headers["Access-Control-Allow-Origin"] == "http://a"
    assert {"Authorization", "Content-Type"} <= set(
        headers["Access-Control-Allow-Headers"].split(", ")
    )
    assert open_.ask("OPTIONS", PREDICT, None, **asked | {"Origin": "http://b"})[0] == 400
    for token, status in (("Bearer s3cret", 200), ("", 401)):  # its page may read both
        got, headers, _ = open_.ask(Origin="http://a", Authorization=token)
        assert got == status
        assert headers["Access-Control-Allow-Origin"] == "http://a"
        assert headers["Access-Control-Expose-Headers"] == "Retry-After"
    answer = open_.ask(Origin="http://b", Authorization="Bearer s3cret")
    assert "Access-Control-Allow-Origin" not in answer[1]


# What is answered


def test_every_answer_is_neither_stored_nor_guessed_at(site):
    served = site()
    for method, path in (("GET", "/"), ("GET", "/metrics"), ("POST", PREDICT), ("GET", "/else")):
        headers = served.ask(method, path)[1]
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_other_methods_are_told_which_are_allowed(site):
    served = site()
    status, headers, body = served.ask("DELETE", "/metrics")
    assert (status, headers["Allow"]) == (405, "GET")
    assert json.loads(body) == {"error": "Method Not Allowed: DELETE /metrics"}
    status, _, body = served.ask("PURGE", "/v1/models/ende%3F%0A")
    assert status == 400
    assert json.loads(body) == {"error": "Malformed request: PURGE /v1/models/ende?\n"}
    assert served.ask("GET", "/healthz/", None, Host="elsewhere")[0] == 404


def test_versions_are_digits(site):
    for number in ("1_0", "1.0", "+1", "-1", "%201", "%D9%A1", "9" * 5000, "x"):
        for method, end in (("POST", ":predict"), ("GET", ""), ("GET", "/metadata")):
            status, _, body = site().ask(method, f"/v1/models/ende/versions/{number}{end}")
            assert status == 400
            assert json.loads(body)["error"].startswith("Malformed request: ")


def test_zeros_before_a_version_mean_nothing(site):
    served = site()
    for number, status in (("01", 200), ("0" * 5000 + "1", 200), ("0", 404), ("9" * 19, 404)):
        assert served.ask(path=f"/v1/models/ende/versions/{number}:predict")[0] == status


def test_half_a_surrogate_pair_in_an_error(site):
    status, _, body = site().ask(body=b'{"signature_name": "\\ud800", "instances": ["a"]}')
    assert status == 400
    assert json.loads(body)["error"] == 'Serving signature name: "?" not found in signature def'


def test_a_score_that_is_no_number(site, monkeypatch):
    served = site()
    monkeypatch.setattr(served.model, "score", math.nan)
    status, _, body = served.ask()
    assert status == 200
    assert math.isnan(json.loads(body)["predictions"][0]["score"])


def test_no_depth_of_nesting_is_too_much(site):
    """The deepest value that can be read may be too deep to be quoted."""
    served = site(max_body_kb=64)
    for depth in (10, *range(900, 1000), 20_000):
        status, _, body = served.ask(body=b'{"instances":' + b"[" * depth + b"]" * depth + b"}")
        assert status == 400, body
        assert json.loads(body).keys() == {"error"}


def test_a_name_of_a_signature_is_a_string(site):
    served = site()
    for name, status in (('""', 200), ("null", 400), ("0", 400), ("[]", 400), ("false", 400)):
        body = f'{{"signature_name": {name}, "instances": ["a"]}}'
        assert served.ask(body=body.encode())[0] == status


# The size of requests


def test_a_large_body_is_refused_before_it_is_read(site):
    served = site()
    status, _, body = served.ask(body=b"x" * 1025)
    assert status == 413
    assert json.loads(body) == {"error": "wanted a body of at most 1024 bytes"}
    assert served.ask(body=iter([b"x" * 600] * 2))[0] == 413  # in chunks, without a length


def test_the_rest_of_a_large_body_is_skipped(site):
    with site().connect() as client:
        client.sendall(head("Content-Length: 300000") + b"x" * 300_000)
        client.sendall(head(f"Content-Length: {len(BODY)}", "Connection: close") + BODY)
        received = everything(client)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert received.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 200 OK" in received


def test_nonsense_in_the_rest_of_a_large_body_ends_the_connection(site, caplog):
    with site().connect() as client:
        client.sendall(head("Transfer-Encoding: chunked") + b"500\r\n" + b"x" * 0x500 + b"\r\n")
        received = client.recv(1 << 16)
        client.sendall(b"zz\r\n")
        received += everything(client)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert not [each for each in caplog.records if each.exc_info]


def test_a_client_that_asks_first_is_refused_and_left(site):
    """What it sends next could be the body or another request."""
    received = site().pour(head("Content-Length: 300000", "Expect: 100-continue"))
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in received


def test_a_client_that_asks_first_is_asked_for_its_body(site):
    with site().connect() as client:
        client.sendall(head(f"Content-Length: {len(BODY)}", "Expect: 100-continue"))
        assert client.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(BODY)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")


def test_compressed_bodies_are_refused(site):
    served = site()
    assert served.ask(Content_Encoding="Identity")[0] == 200
    for encoding in ("gzip", "identity, br", "x"):
        status, _, body = served.ask(Content_Encoding=encoding)
        assert status == 415
        assert json.loads(body) == {"error": "wanted a body without Content-Encoding"}


def test_a_client_that_offers_another_protocol_is_answered(site, caplog):
    """Java's client offers HTTP/2 with its first request, which may have a body."""
    served = site()
    for protocol in ("h2c", "websocket"):
        answer = served.ask(Connection="Upgrade, HTTP2-Settings", Upgrade=protocol)
        assert answer[0] == 200
        assert json.loads(answer[2])["predictions"][0]["translation"] == "Hello."
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9,
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000,
        b"GET /" + b"x" * 70_000,
        head("Transfer-Encoding: chunked") + b"zz\r\n",
        head("Transfer-Encoding: chunked") + b"0\r\nX: " + b"x" * 70_000,
    ],
    ids=["tls", "host", "length", "lengths", "header", "path", "chunk", "trailer"],
)
def test_what_is_not_http_is_refused(site, data):
    received = site().pour(data)
    assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert received.endswith(b'{"error": "Invalid HTTP request received."}')


# Time, and clients that leave


def test_a_body_that_does_not_come(site):
    received = site(timeout_s=0.1).pour(head("Content-Length: 9") + b"x")
    assert received.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"\r\nconnection: close\r\n" in received
    assert received.endswith(b"""{"error":"the request's body did not come within 0.1 s"}""")


def test_an_answer_that_does_not_come(site):
    served = site()
    status, headers, body = served.ask(body=b'{"instances": ["slow"]}')
    assert status == 504
    assert "Connection" not in headers
    assert json.loads(body) == {"error": "no answer within 1 s"}
    assert served.model.cancelled.wait(BOUND)


@pytest.mark.parametrize("start", [b"", b"POST", head()[:-2]], ids=["nothing", "word", "lines"])
def test_a_head_that_does_not_come(site, impatient, start):
    assert site().pour(start) == b""


def test_a_second_head_that_does_not_come(site, impatient):
    received = site().pour(head(f"Content-Length: {len(BODY)}") + BODY + b"POST ")
    assert received.startswith(b"HTTP/1.1 200 OK")


def test_a_body_that_nobody_reads_does_not_hold_the_connection(site, impatient):
    assert site().pour(head("Content-Length: 300000")).startswith(b"HTTP/1.1 413 ")


def test_a_long_answer_is_waited_for(site, impatient):
    """Patience is for clients; `timeout_s` limits the server."""
    status, *_ = site(timeout_s=0.7).ask(body=b'{"instances": ["slow"]}')
    assert status == 504


def test_a_connection_in_use_stays(site, monkeypatch):
    monkeypatch.setattr(connection.Connection, "patience", 0.6)
    served = site()
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=BOUND)
    with contextlib.closing(client):
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            client.request("POST", PREDICT, BODY)
            assert client.getresponse().read()
            assert client.sock
            time.sleep(0.02)  # most looks find no request


def test_an_answer_that_is_not_read(site, impatient):
    """The client sends requests but takes no answers: all buffers fill up."""
    served = site(max_body_kb=512, max_characters=500_000)
    body = json.dumps({"instances": ["x" * 500_000]}).encode()
    requests = (head(f"Content-Length: {len(body)}") + body) * 100
    with served.connect() as client, pytest.raises(ConnectionError):
        client.sendall(requests)
    wait_until(lambda: not served.connections())


def wait_until(condition):
    until = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_too_many_connections(site, monkeypatch):
    monkeypatch.setattr(connection, "MOST", 1)
    served = site()
    wait_until(lambda: not served.connections())
    with served.connect() as client:
        client.sendall(head(f"Content-Length: {len(BODY)}") + BODY)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        status, headers, body = served.ask()
        assert (status, headers["Retry-After"]) == (503, "1")
        assert json.loads(body) == {"error": "too many connections"}
    wait_until(lambda: not served.connections())
    assert served.ask()[0] == 200


def test_a_client_that_hangs_up_before_its_body_ends(site, records, caplog):
    with site().connect() as client:
        client.sendall(head("Content-Length: 9") + b"x")
    assert records(1)[0]["status"] == 499
    assert not [each for each in caplog.records if each.exc_info]


def test_a_client_that_hangs_up_before_the_answer(site, records, caplog):
    served = site(timeout_s=BOUND)
    with served.connect() as client:
        client.sendall(head("Content-Length: 23") + b'{"instances": ["slow"]}')
        assert served.model.began.wait(BOUND)
    assert records(1)[0]["status"] == 499
    assert served.model.cancelled.wait(BOUND)
    assert not [each for each in caplog.records if each.exc_info]


def test_a_full_queue_says_when_to_come_back(site):
    status, headers, _ = site().ask(body=b'{"instances": ["full"]}')
    assert (status, headers["Retry-After"]) == (429, "7")


def test_a_long_text_is_refused_for_the_page_of_attention_too(site):
    served = site(max_characters=5)
    served.model.current.description = Description(SETTINGS, 2, 99, True)
    assert served.ask(path="/attention", body=b'{"text": "12345"}')[0] == 200
    assert served.ask(path="/attention", body=b'{"text": "123456"}')[0] == 400


IDS = Description({"decode": {"max_source_length": 9}}, 2, 99, False)  # ids are 0 to 98


def ids_request(rows):
    body = json.dumps({"signature_name": "translate_ids", "inputs": rows}).encode()
    return rest.predict_request(body, IDS)


@pytest.mark.parametrize("row", [[5, 0, 6, 1], [5, 1, 6], [5, True], [5, 6], []], ids=str)
def test_a_row_of_ids_ends_with_eos_and_padding(row):
    with pytest.raises(rest.Rejected):
        ids_request([row])


def test_limits_of_ids_are_the_last_that_are_allowed():
    longest = [98] * 8 + [1]
    rest.check(ids_request([longest] * 3), IDS, 3, 10)
    for rows in ([longest] * 4, [[98, *longest]], [[99, 1]], [[-1, 1]]):
        with pytest.raises(rest.Rejected):
            rest.check(ids_request(rows), IDS, 3, 10)


# The records


def test_the_access_log_has_an_object_for_each_request(site, records, caplog):
    served = site(token="s3cret")
    served.ask(Authorization="Bearer s3cret")
    served.ask("GET", "/x%0D%0A%22%7B%E2%80%A8%FF")
    served.ask(Authorization="Bearer s3cret", body=b'{"instances": ["fail"]}')
    good, odd, failed = records(3)
    assert good.keys() == {"time", "client", "method", "path", "status", "ms", "sentences"}
    assert good["sentences"] == 1
    assert (odd["path"], odd["status"]) == ('/x\r\n"{\u2028\ufffd', 401)
    assert failed["status"] == 500
    assert "Hello." not in caplog.text
    assert "s3cret" not in caplog.text


def test_a_failure_is_logged_but_not_told(site, caplog):
    served = site(allow_origin="https://a.org")
    status, headers, body = served.ask(body=b'{"instances": ["fail"]}', Origin="https://a.org")
    assert status == 500
    assert json.loads(body) == {"error": "RuntimeError in the server; its log says more"}
    assert headers["Access-Control-Allow-Origin"] == "https://a.org"  # else a page cannot read it
    assert headers["Cache-Control"] == "no-store"
    wait_until(lambda: "broken" in caplog.text)


def test_the_metrics(site):
    served = site(poll_s=2)  # no other test counts here
    served.ask()
    served.ask()
    served.ask(body=b"")
    served.ask(body=b'{"instances": ["fail"]}')
    served.ask("GET", "/v1/models/ende/versions/1", None)
    served.ask("GET", "/some/path", None)
    status, headers, text = served.ask("GET", "/metrics", None)
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {each.name: each for each in parser.text_string_to_metric_families(text)}
    counts = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for sample in families["t2t_requests"].samples
        if sample.name.endswith("_total")
    }
    predict = "/v1/models/{name}:predict"
    of_version = "/v1/models/{name}/versions/{number}"
    wanted = {(predict, "200"): 2, (predict, "400"): 1, (predict, "500"): 1, (of_version, "200"): 1}
    assert counts == wanted | {("other", "404"): 1}
    assert families["t2t_request_seconds"].type == "histogram"
