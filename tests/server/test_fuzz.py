"""Requests that nobody would write, sent to a real server."""

import base64
import contextlib
import http.client
import json
import re
import socket
import time
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest
import served
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pipelines.vocabulary import EOS, PAD

pytest.importorskip("ai_edge_litert")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow
PREDICT = "/v1/models/ende:predict"
GOOD = {"signature_name": "nbest", "instances": ["The old house."]}
SECRET = "Geheimsatz"  # a part of every sentence that is sent; it must not be logged
BOUND = 30  # seconds for an answer
COUNT = 3_000  # requests


class Server(served.Server):
    """A server on a tiny export, with small limits."""

    def __init__(self, export):
        limits = {"max_body_kb": 64, "max_lines": 8, "max_characters": 500, "timeout_s": 2}
        flags = {"model_name": "ende", "workers": 2} | limits
        super().__init__(export, *(f"--{name}={value}" for name, value in flags.items()))
        self.port = int(self.address.rpartition(":")[2])

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=BOUND)

    def predict(self, request):
        """Return the answer to a request that is as it should be."""
        response = self.post(PREDICT, json=request)
        assert response.status_code == 200, response.text
        return response.json()

    def usage(self):
        """Return what the server and its workers hold: memory in MB, threads, open files."""
        pids = [self.process.pid, *served.workers_of(self.process)]
        status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        memory, threads = (
            sum(int(re.search(rf"^{name}:\s+(\d+)", text, re.M)[1]) for text in status)
            for name in ("VmRSS", "Threads")
        )
        files = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
        return {"memory": memory / 1024, "threads": threads, "files": files}


@pytest.fixture(scope="module")
def server(tiny_run, once):
    from t2t_repro.serving import litert

    server = Server(served.exported(once, tiny_run, litert))
    yield server
    assert server.stop() == 0, server.log


# Bodies
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
proper_texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40).map(lambda text: SECRET + text),
    st.text(" \n\t\0\u2028é", max_size=5),
    st.sampled_from(["", "word " * 90]),
)
texts = st.one_of(
    proper_texts,
    st.sampled_from(["x" * 501, SECRET + "\ud800"]),
    st.binary(max_size=9).map(lambda data: {"b64": base64.b64encode(data).decode()}),
    st.text(max_size=9).map(lambda text: {"b64": text}),
)
pieces = st.lists(st.integers(EOS + 1, 299), max_size=6)
proper_ids = pieces.map(lambda row: [*row, EOS])
ids = st.one_of(
    proper_ids,
    st.tuples(pieces, st.integers(0, 3)).map(lambda pair: [*pair[0], EOS, *[PAD] * pair[1]]),
    st.lists(st.integers(-1, 1 << 33), max_size=4),
    st.just([2] * 2000 + [EOS]),
)
values = st.one_of(texts, ids, junk)


def rows(each):
    named = st.sampled_from(["text", "ids", "b64", "other"])
    return st.one_of(
        st.lists(each, max_size=4),
        st.lists(each, min_size=9, max_size=9),
        st.lists(st.builds(lambda name, value: {name: value}, named, each), max_size=3),
        st.dictionaries(named, st.lists(each, max_size=3), max_size=2),
    )


signatures = st.sampled_from(["serving_default", "nbest", "translate_ids", "attention", ""]) | junk
proper = st.one_of(
    st.builds(
        lambda signature, value: {"signature_name": signature, "instances": value},
        st.sampled_from(["serving_default", "nbest"]),
        st.lists(proper_texts, min_size=1, max_size=4),
    ),
    st.builds(lambda value: {"inputs": {"text": value}}, st.lists(proper_texts, max_size=4)),
    st.builds(
        lambda value: {"signature_name": "translate_ids", "instances": [{"ids": value}]}, proper_ids
    ),
)
requests = st.one_of(
    st.builds(lambda value: {"instances": value}, rows(texts)),
    st.builds(lambda value: {"signature_name": "nbest", "inputs": value}, rows(texts)),
    st.builds(lambda value: {"signature_name": "translate_ids", "instances": value}, rows(ids)),
    st.fixed_dictionaries(
        {},
        optional={
            "signature_name": signatures,
            "instances": rows(values) | junk,
            "inputs": rows(values) | junk,
            "text": values,
        },
    ),
)


def written(value, ascii_only):
    return json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")


@st.composite
def damaged(draw, whole):
    """Return bytes with a part of them replaced."""
    data = draw(whole)
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 9)))
    return data[:start] + draw(st.binary(max_size=9)) + data[end:]


def nested(depth):
    return b'{"instances":' + b"[" * depth + b"]" * depth + b"}"


json_bodies = st.builds(written, requests, st.booleans())
bodies = st.one_of(
    json_bodies,
    json_bodies,
    json_bodies,
    damaged(json_bodies),
    st.builds(lambda one, two: one[:-1] + b"," + two[1:], json_bodies, json_bodies),
    st.builds(nested, st.integers(1, 30) | st.integers(900, 1000) | st.just(30_000)),
    st.sampled_from([b"1" * 5000, b"-1e999", b"NaN", b'{"instances":["' + b"x" * 70_000 + b'"]}']),
    st.builds(lambda value: json.dumps(value).encode("utf-16"), requests),
    st.binary(max_size=30),
)

# Requests
paths = st.one_of(
    st.sampled_from([PREDICT, "/v1/models/ende/versions/7:predict", "/v1/models/ende"]),
    st.sampled_from(["/", "/attention", "/metrics", "/openapi.json", "/healthz/", "//x/y", "*"]),
    st.sampled_from(["", "/metadata", ":predict", ":classify", "/", "?x=%00"]).map(
        lambda end: "/v1/models/ende" + end
    ),
    st.builds(
        lambda number, end: f"/v1/models/ende/versions/{number}{end}",
        st.integers(-1, 1 << 65)
        | st.sampled_from(["1_0", "1.0", "%37", "7", "%D9%A1", "9" * 5000, "0" * 5000 + "7"]),
        st.sampled_from(["", ":predict", "/metadata"]),
    ),
    st.binary(max_size=20).map(lambda data: "/v1/models/" + quote_from_bytes(data)),
    st.binary(max_size=20).map(lambda data: "/" + quote_from_bytes(data, safe="")),
)
methods = st.sampled_from(
    ["POST"] * 5 + ["GET"] * 5 + ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO"]
)
printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
headers = st.lists(
    st.one_of(
        st.sampled_from(
            [
                ("Content-Encoding", "gzip"),
                ("Content-Encoding", "Identity"),
                ("Content-Type", "multipart/form-data"),
                ("Expect", "100-continue"),
                ("Connection", "close"),
                ("Origin", "http://elsewhere"),
                ("X-Forwarded-For", "a\tb"),
            ]
        ),
        st.just([("Connection", "Upgrade"), ("Upgrade", "h2c")]),
        st.just([("Connection", "Upgrade"), ("Upgrade", "websocket")]),
        st.tuples(st.sampled_from(["Authorization", "Accept", "Range", "Cookie"]), printable),
    ).map(lambda each: each if isinstance(each, list) else [each]),
    max_size=2,
).map(lambda lists: [each for some in lists for each in some])
hosts = st.sampled_from(["a"] * 5 + ["[::", "a:b:c", "\xff"]) | printable


class Sent:
    """What is sent on one connection; if its HTTP is as it should be, with its method."""

    def __init__(self, data, method=None):
        self.data, self.method = data, method

    def __repr__(self):
        return f"{self.data[:500]!r} ({len(self.data)} bytes)"


@st.composite
def http_requests(draw, methods, paths, bodies):
    method, body = draw(methods), draw(bodies)
    head = [f"{method} {draw(paths)} HTTP/1.1", f"Host: {draw(hosts)}"]
    head += [f"{name}: {value}" for name, value in draw(headers)]
    if draw(st.integers(0, 3)):
        head += [f"Content-Length: {len(body)}"]
    else:
        head += ["Transfer-Encoding: chunked"]
        middle = draw(st.integers(0, len(body)))
        parts = [part for part in (body[:middle], body[middle:]) if part]
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    return Sent("\r\n".join([*head, "", ""]).encode("latin-1") + body, method)


whole_bodies = st.builds(written, proper, st.just(True))
well_formed = st.one_of(
    http_requests(st.just("POST"), st.just(PREDICT), whole_bodies),
    http_requests(st.just("POST"), st.just(PREDICT), bodies),
    http_requests(methods, paths, bodies),
)
others = st.one_of(
    st.binary(max_size=99),
    damaged(well_formed.map(lambda each: each.data)),
    st.lists(well_formed.map(lambda each: each.data), min_size=2, max_size=3).map(b"".join),
    st.builds(
        lambda name, size: b"GET / HTTP/1.1\r\nHost: a\r\n" + name + b": " + b"a" * size,
        st.sampled_from([b"X", b"Content-Length", b"Transfer-Encoding"]),
        st.sampled_from([9, 70_000, 500_000]),
    ),
    st.sampled_from([b"9" * 40, b"-1", b"+5", b"0x5", b"5, 5", b"99999999"]).map(
        lambda size: (
            b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %s\r\n\r\n{}"
            % (PREDICT.encode(), size)
        )
    ),
    st.just(b"GET /" + b"a" * 200_000),
    st.just(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
).map(Sent)


def check(status, content_type, body, of_api):
    assert status < 500 or status in (503, 504), (status, body)
    if status >= 400 and body and (of_api or content_type == "application/json"):
        assert content_type == "application/json", body
        error = json.loads(body)
        assert error.keys() == {"error"}, error
        assert isinstance(error["error"], str), error


def exchange(server, sent):
    """Send one request and check its answer."""
    with server.connect() as connection:
        connection.sendall(sent.data)
        response = http.client.HTTPResponse(connection, method=sent.method)
        with contextlib.closing(response):
            response.begin()
            body = response.read()
        of_api = sent.data.split()[1].startswith(b"/v1/")
        check(response.status, response.headers.get("Content-Type"), body, of_api)


def pour(server, sent):
    """Send anything, wait a moment for answers, then hang up; the server has to do so, too."""
    received = b""
    with server.connect() as connection:
        try:
            connection.sendall(sent.data)
            with contextlib.suppress(TimeoutError):
                connection.settimeout(0.01)
                received = connection.recv(1 << 20)
            connection.settimeout(BOUND)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 20):
                received += more
        except TimeoutError:
            raise
        except OSError:
            pass  # the server was first
    for status in map(int, re.findall(rb"^HTTP/1\.1 (\d+)", received, re.M)):
        assert status < 500 or status in (503, 504), received


def quiet(maximum):
    """Return Hypothesis's settings for the same examples each time."""
    return settings(
        max_examples=maximum,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def test_no_request_harms_the_server(server):
    expected, early, number = server.predict(GOOD), None, 0

    @quiet(COUNT)
    @given(well_formed | others)
    def send(sent):
        nonlocal early, number
        (exchange if sent.method else pour)(server, sent)
        number += 1
        if number % 100 == 0:
            assert server.predict(GOOD) == expected
        if number == COUNT // 10:
            early = server.usage()

    send()
    assert server.predict(GOOD) == expected
    check_log(server.log)
    until = time.monotonic() + BOUND
    while (late := server.usage())["files"] > early["files"] + 3 and time.monotonic() < until:
        time.sleep(0.1)  # connections are still being closed
    assert number >= COUNT
    assert late["files"] <= early["files"] + 3, (early, late)
    assert late["threads"] <= early["threads"] + 3, (early, late)
    assert late["memory"] <= early["memory"] + 30, (early, late)


def check_log(lines):
    """Each request is an object on a line of its own; nothing failed, and no sentence is there."""
    records = [json.loads(line) for line in lines if line.startswith("{")]
    assert records
    assert 500 not in {record["status"] for record in records}
    assert not [line for line in lines if "Traceback" in line or SECRET in line]


# Not those that want requests refused or accepted by the schema alone: it cannot say everything.
CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance"]
CHECKS += ["response_headers_conformance", "response_schema_conformance"]


def test_openapi_says_what_is_answered(server):
    schemathesis = pytest.importorskip("schemathesis")
    checks = [getattr(schemathesis.checks, name) for name in CHECKS]
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    for operation in schema.get_all_operations():

        @quiet(200)
        @given(operation.ok().as_strategy(), st.integers(0, 9))
        def send(case, kind):
            if kind and "name" in case.path_parameters:
                case.path_parameters["name"] = "ende"
            if kind > 2 and "number" in case.path_parameters:
                case.path_parameters["number"] = 7
            case.call_and_validate(checks=checks)

        send()
