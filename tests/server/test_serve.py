"""The command `serve`: bad input, versions, kills and the end, with a real export."""

import concurrent.futures
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import commands
import pytest
import requests
from served import Server, exported, server, workers_of

from pipelines.errors import BadInput
from t2t_repro.server.options import Options
from t2t_repro.serving import litert

pytest.importorskip("ai_edge_litert")
service = pytest.importorskip("t2t_repro.server.service")


@pytest.fixture(scope="module")
def export(once, tiny_run):
    return exported(once, tiny_run, litert)


def refused(*flags):
    """Run the command, which must end with status 2, and return its last line on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "t2t_repro.serve", *map(str, flags)],
        capture_output=True,
        text=True,
        env=commands.environment(),
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    return line


def call(capfd, *flags):
    assert commands.call("serve", *flags) == 2
    return capfd.readouterr().err


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--port=70000", "--port: wanted a whole number from 0 to 65,535, got '70000'"),
        ("--port=http", "--port: wanted a whole number from 0 to 65,535, got 'http'"),
        ("--workers=0", "--workers: wanted a whole number from 1 to 1,024, got '0'"),
        ("--max_wait_ms=-1", "--max_wait_ms: wanted a number from 0 to 60,000, got '-1'"),
        ("--timeout_s=inf", "--timeout_s: wanted a number from 1 to 86,400, got 'inf'"),
        ("--model_name=a/b", "--model_name=a/b: wanted a name without / and :"),
        ("--timeout_s=nan", "--timeout_s: wanted a number from 1 to 86,400, got 'nan'"),
        ("--queue=5", "--queue"),
        ("--queue_size=100", "--max_lines=128 --queue_size=100: wanted a queue with room for one"),
        ("--token_file=missing", "--token_file=missing: No such file"),
        ("--token_file=.", "--token_file=.: Is a directory"),
        ("--allow_origin=https://a.org/", "--allow_origin=https://a.org/: wanted an origin as"),
        ("--allow_origin=a.org", "--allow_origin=a.org: wanted an origin as browsers send it"),
        ("--host=256.0.0.1", "--host=256.0.0.1"),
        ("--host=a..b", "--host=a..b --port=8501"),
    ],
)
def test_wrong_flags(capfd, export, flag, words):
    assert words in call(capfd, f"--export_dir={export}", flag)


def test_an_empty_token_is_refused(capfd, export, tmp_path):
    (tmp_path / "token").write_text("\n")
    given = f"--export_dir={export}", f"--token_file={tmp_path / 'token'}"
    assert "token: wanted one line of printable ASCII" in call(capfd, *given)


def test_without_the_packages_of_the_extra(capfd, export, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("t2t_repro.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    error = call(capfd, f"--export_dir={export}")
    assert 'uvicorn, which is not installed; pip install "t2t_repro[serve]"' in error


def test_a_port_in_use_is_named(capfd, export):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = call(capfd, f"--export_dir={export}", f"--port={port}")
    assert f"--port={port}: Address already in use; give another --port" in error


def test_a_port_that_another_server_takes_meanwhile_is_named(tmp_path):
    listening = service._bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    message = f"--port={port}: Address already in use; give another"
    with (
        listening,
        socket.create_server(("127.0.0.1", port), backlog=1),
        pytest.raises(BadInput, match=message),
    ):
        service._listen(listening, Options(tmp_path, port=port))


def test_missing_and_foreign_exports(export, tmp_path):
    assert "no export" in refused(f"--export_dir={tmp_path / 'nothing'}", "--port=0")
    newer = shutil.copytree(export, tmp_path / "newer")
    settings = newer / "7" / "settings.json"
    settings.write_text(settings.read_text().replace('"format_version": 1', '"format_version": 99'))
    assert "format_version 99" in refused(f"--export_dir={newer}", "--port=0")
    damaged = shutil.copytree(export, tmp_path / "damaged")
    (damaged / "7" / "model.tflite").write_bytes(b"damaged")
    assert "model.tflite is damaged" in refused(f"--export_dir={damaged}", "--port=0")


@pytest.mark.slow
def test_versions_killed_workers_and_the_end(export, tmp_path):
    """A version comes, workers are killed, a damaged version comes, and no request is lost."""
    base = tmp_path / "export"
    shutil.copytree(export, base)
    body = {"instances": ["The house is old.", "a"]}
    with server(base, "--poll_s=0.1", "--workers=2", "--no_access_log") as running:
        url, going, answers = f"{running.address}/v1/models/default", True, []

        def client():
            with requests.Session() as session:
                while going:
                    reply = session.post(f"{url}:predict", json=body, timeout=60)
                    answers.append(reply)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            clients = [pool.submit(client) for _ in range(8)]
            try:
                shutil.copytree(export / "7", base / "8")
                running.wait("version 8 is served")
                shutil.copytree(export / "7", base / "9")
                (base / "9" / "model.tflite").write_bytes(b"damaged")
                running.wait("version 9 is not served: .*model.tflite is damaged")
                for pid in workers_of(running.process):
                    with contextlib.suppress(ProcessLookupError):  # of version 7, and it has ended
                        os.kill(pid, signal.SIGKILL)
                running.wait("the worker died of")
                time.sleep(0.3)
            finally:
                going = False
            for each in clients:
                each.result()
        assert {reply.status_code for reply in answers} == {200}
        found = [[row["translation"] for row in reply.json()["predictions"]] for reply in answers]
        assert all(translations == found[0] for translations in found)
        states = requests.get(url, timeout=60).json()["model_version_status"]
        assert [(each["version"], each["state"]) for each in states] == [
            *(("9", "END"), ("8", "AVAILABLE")),
        ]
        assert "damaged" in states[0]["status"]["error_message"]


def accepted(running):
    """Return the number of sentences that wait or have been translated."""
    names = "t2t_queue_sentences", "t2t_sentences_total"
    lines = [line for line in running.get("/metrics").text.splitlines() if line.startswith(names)]
    return sum(float(line.split()[-1]) for line in lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_at_the_end_all_that_was_accepted_is_answered(export, number):
    running = Server(export, "--workers=1", "--batch_size=1")
    workers = workers_of(running.process)
    assert len(workers) == 1
    count = 60  # sentences of a request; while some wait, the eighth request still comes
    body = {"instances": ["The house is old."] * count}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = [
            pool.submit(running.post, "/v1/models/default:predict", json=body) for _ in range(8)
        ]
        until = time.monotonic() + 60
        while accepted(running) < 8 * count - 1:  # and one that is being translated
            assert time.monotonic() < until
        assert running.stop(number) == 0
        assert [reply.result().status_code for reply in replies] == [200] * 8
    assert not any(os.path.exists(f"/proc/{pid}") for pid in workers)
    with pytest.raises(requests.ConnectionError):
        running.get("/healthz")
