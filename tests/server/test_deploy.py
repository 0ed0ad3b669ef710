"""The files in docs/deploy fit the server: flags, routes, ports, times, packages.

Neither Docker nor Kubernetes runs here. The slow test does what the Dockerfile says in a fresh
virtual environment, and asks the server there what compose's health checks and docs/serving.md ask.
"""

import contextlib
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time

import pytest
import requests
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from paths import ROOT

import t2t_repro.serve
from t2t_repro.workdir import Workdir

pytest.importorskip("fastapi")
from starlette.routing import Match

from t2t_repro.server.app import make_app
from t2t_repro.server.metrics import Metrics
from t2t_repro.server.options import Options

DEPLOY = ROOT / "docs" / "deploy"
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
KUBERNETES = {
    document["kind"]: document
    for document in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
}
POD = KUBERNETES["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
PREDICT_BODIES = re.findall(r":predict (?:\\\n *)?-d '(.*)'", PAGE)


def dockerfile():
    """Return the Dockerfile's instructions in order, as (name, words)."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    lines = text.replace("\\\n", " ").splitlines()
    named = (line.split(maxsplit=1) for line in lines if line)
    return [
        (name, json.loads(rest) if rest.startswith("[") else shlex.split(rest))
        for name, rest in named
    ]


DOCKERFILE = dockerfile()
(ENTRYPOINT,) = (words for name, words in DOCKERFILE if name == "ENTRYPOINT")
(CMD,) = (words for name, words in DOCKERFILE if name == "CMD")
# What follows `python -m t2t_repro.serve`, for each place that starts it.
FLAGS = {
    "Dockerfile": [*ENTRYPOINT[3:], *CMD],
    "compose.yaml": [*ENTRYPOINT[3:], *COMPOSE["serve"]["command"]],
    "kubernetes.yaml": [*ENTRYPOINT[3:], *CONTAINER["args"]],
}


@pytest.fixture(scope="module")
def app():
    class Empty:
        current, failures = None, {}

    return make_app(Empty(), Options(export_dir=ROOT), Metrics())


def is_route(app, path, method="GET"):
    """Whether a route other than the one for malformed requests answers."""
    scope = {"type": "http", "path": path, "method": method, "headers": []}
    matching = [route for route in app.routes if route.matches(scope)[0] is Match.FULL]
    return any("path:path" not in route.path for route in matching)


# Flags


def test_the_entry_point_is_the_command():
    assert ENTRYPOINT[:3] == ["python", "-m", "t2t_repro.serve"]


@pytest.mark.parametrize("place", FLAGS)
def test_flags(place):
    """The parser refuses unknown flags and values of the wrong type."""
    options = t2t_repro.serve.parser().parse_args(FLAGS[place])
    assert options.host == "0.0.0.0"
    assert (options.port, options.model_name) == (8501, "ende")
    assert str(options.export_dir) == "/models/ende"


def test_kserve():
    """The InferenceService of the documentation fits the server and itself."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    (container,) = yaml.safe_load(block)["spec"]["predictor"]["containers"]
    options = t2t_repro.serve.parser().parse_args([*ENTRYPOINT[3:], *container["args"]])
    probe = container["readinessProbe"]["httpGet"]
    assert options.port == container["ports"][0]["containerPort"] == probe["port"]
    assert options.workers == int(container["resources"]["limits"]["cpu"])
    assert probe["path"] == CONTAINER["readinessProbe"]["httpGet"]["path"]


def test_a_worker_for_each_cpu():
    workers = {
        place: t2t_repro.serve.parser().parse_args(flags).workers for place, flags in FLAGS.items()
    }
    assert workers["compose.yaml"] == COMPOSE["serve"]["cpus"]
    resources = CONTAINER["resources"]
    assert resources["requests"] == resources["limits"]
    assert workers["kubernetes.yaml"] == int(resources["limits"]["cpu"])


def test_flags_of_the_documentation():
    known = set(t2t_repro.serve.parser().format_help().replace(",", " ").split())
    section = PAGE[PAGE.index("## This server") : PAGE.index("## SavedModel")]
    others = {
        "--format",
        "--weights",
        "--workdir",
        "--no-deps",
        "--max_source_length",
        "--ids_only",
    }
    named = set(re.findall(r"--[a-z][a-z_-]+", section)) - others
    assert len(named) > 15
    assert named <= known


# Routes, ports and times


def test_routes_of_the_documentation(app):
    rows = re.findall(r"^\| (`(?:GET|POST) .*?) \|", PAGE, flags=re.MULTILINE)
    named = set()
    for method, path in re.findall(r"`(GET|POST) (\S+)`", " ".join(rows)):
        named.add((method, re.sub("NAME", "{name}", re.sub(r"\bN\b", "{number}", path))))
    expected = set()
    for route in app.routes:
        expected |= {(method, route.path) for method in route.methods - {"HEAD"}}
    assert named == expected


def test_metrics_of_the_documentation():
    names = {metric.name for metric in Metrics().registry.collect()}
    ours = {name for name in names if name.startswith("t2t_")}
    named = set(re.findall(r"`(t2t_[a-z_]+?)(?:_total)?`", PAGE))
    assert named == ours


def test_probes(app):
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    options = t2t_repro.serve.parser().parse_args(FLAGS["kubernetes.yaml"])
    paths = {}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        request = CONTAINER[probe]["httpGet"]
        assert is_route(app, request["path"])
        assert ports[request["port"]] == options.port
        paths[probe] = request["path"]
    assert paths == {
        "startupProbe": "/readyz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
    }
    (port,) = KUBERNETES["Service"]["spec"]["ports"]
    assert port["targetPort"] in ports


def test_labels_agree():
    labels = POD["metadata"]["labels"]
    selectors = [
        KUBERNETES["Deployment"]["spec"]["selector"]["matchLabels"],
        KUBERNETES["Service"]["spec"]["selector"],
        KUBERNETES["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        *(
            each["labelSelector"]["matchLabels"]
            for each in POD["spec"]["topologySpreadConstraints"]
        ),
    ]
    assert all(selector == labels for selector in selectors)


def test_volumes_agree():
    volumes = {volume["name"] for volume in POD["spec"]["volumes"]}
    mounts = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
    assert mounts.keys() == volumes
    assert all(mount["readOnly"] for mount in mounts.values())
    options = t2t_repro.serve.parser().parse_args(FLAGS["kubernetes.yaml"])
    assert str(options.export_dir) == mounts["export"]["mountPath"]
    assert str(options.token_file.parent) == mounts["token"]["mountPath"]


def test_what_was_accepted_is_answered_before_the_end():
    options = t2t_repro.serve.parser().parse_args(FLAGS["kubernetes.yaml"])
    sleep, seconds = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    # One second more is the server's own, see `timeout_graceful_shutdown`.
    assert POD["spec"]["terminationGracePeriodSeconds"] > int(seconds) + options.timeout_s + 1
    options = t2t_repro.serve.parser().parse_args(FLAGS["compose.yaml"])
    assert int(COMPOSE["serve"]["stop_grace_period"].removesuffix("s")) > options.timeout_s + 1


def test_not_root():
    (user,) = (words for name, words in DOCKERFILE if name == "USER")
    user, group = map(int, user[0].split(":"))
    security = POD["spec"]["securityContext"]
    assert security["runAsNonRoot"]
    assert (security["runAsUser"], security["runAsGroup"]) == (user, group)
    assert user
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]


def test_health_checks_of_compose(app):
    serving, serve = (
        COMPOSE[name]["healthcheck"]["test"] for name in ("tensorflow-serving", "serve")
    )
    (path,) = re.findall(r"GET (\S+) HTTP", serving[-1])
    assert path == "/v1/models/" + COMPOSE["tensorflow-serving"]["environment"]["MODEL_NAME"]
    assert is_route(app, path)
    assert "/dev/tcp/127.0.0.1/8501 " in serving[-1]
    ((port, path),) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", serve[-1])
    assert is_route(app, path)
    assert int(port) == t2t_repro.serve.parser().parse_args(FLAGS["compose.yaml"]).port
    published = [port.split(":") for each in COMPOSE.values() for port in each["ports"]]
    assert all(host == "127.0.0.1" for host, _, _ in published)
    assert len({outside for _, outside, _ in published}) == len(published)
    assert {inside for _, _, inside in published} == {"8500", "8501"}


# Packages


def pip_lines():
    """Return the arguments of each `pip`, without the option for images."""
    for name, words in DOCKERFILE:
        if name == "RUN":
            assert words[:3] == ["pip", "install", "--no-cache-dir"]
            yield words[3:]


def test_packages_are_those_of_setup(monkeypatch):
    import setuptools

    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    exec(compile(text, "setup.py", "exec"), {"__file__": str(ROOT / "setup.py")})
    extras = given["extras_require"]
    wanted = [*given["install_requires"], *extras["serve"], *extras["litert"]]
    wanted = {r.name: str(r.specifier) for r in map(Requirement, wanted)}
    packages, this = pip_lines()
    asked = {r.name: str(r.specifier) for r in map(Requirement, packages)}
    assert asked.items() <= wanted.items()
    assert {
        Requirement(each).name for each in (*extras["serve"], *extras["litert"])
    } <= asked.keys()
    assert this == ["--no-deps", "/src"]
    ((image,),) = (words for name, words in DOCKERFILE if name == "FROM")
    (version,) = re.fullmatch(r"python:([\d.]+)-slim", image).groups()
    assert SpecifierSet(given["python_requires"]).contains(version)


def copied(directory):
    """Copy what the Dockerfile's COPY lines name, as they do."""
    for name, (*sources, target) in DOCKERFILE:
        if name != "COPY":
            continue
        place = directory / target.removeprefix("/src").strip("/")
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(
                    ROOT / source,
                    place,
                    ignore=shutil.ignore_patterns("__pycache__"),
                    dirs_exist_ok=True,
                )
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    return directory


def test_the_copied_files_exist(tmp_path):
    names = {path.name for path in copied(tmp_path).iterdir()}
    assert names == {
        *("setup.py", "pyproject.toml", "README.md", "configs", "pipelines", "t2t_repro")
    }
    assert (tmp_path / "t2t_repro/server/page.html").exists()


@pytest.fixture(scope="module")
def export(tiny_run, tmp_path_factory):
    litert = pytest.importorskip("t2t_repro.serving.litert")
    from t2t_repro import experiment

    directory = tmp_path_factory.mktemp("deployed")
    litert.save(experiment.restore(Workdir(tiny_run), {"beam_size": 3}), directory / "1")
    return directory


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_dockerfile_in_a_fresh_environment(export, tmp_path):
    """Its packages are all that the server needs; TensorFlow is not there."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    source = str(copied(tmp_path / "src"))
    for words in pip_lines():
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        words = [source if word == "/src" else word for word in words]
        subprocess.run([*pip, *words], check=True, timeout=900)
    assert subprocess.run([python, "-c", "import tensorflow"], capture_output=True).returncode

    replaced = {
        "python": python,
        "--host=0.0.0.0": "--host=127.0.0.1",
        "--export_dir=/models/ende": f"--export_dir={export}",
    }
    command = [replaced.get(word, word) for word in (*ENTRYPOINT, *CMD)]
    server = subprocess.Popen(
        [*command, "--port=0", "--workers=1"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
    )
    with server:
        try:
            found = (
                re.search(r"serving .* at http://127\.0\.0\.1:(\d+)", line)
                for line in server.stderr
            )
            port = next(match[1] for match in found if match)
            wait_for(port)
            asked_alike(port, python)
        finally:
            server.terminate()
        assert server.wait(timeout=60) == 0


def wait_for(port):
    """Wait until the port accepts connections, which may be after the line that names it."""
    for _ in range(100):
        with contextlib.suppress(ConnectionError):
            socket.create_connection(("127.0.0.1", int(port))).close()
            return
        time.sleep(0.1)


def asked_alike(port, python):
    """Ask the server at a port what compose and the documentation ask."""
    for service in COMPOSE.values():
        kind, program, *rest = service["healthcheck"]["test"]
        assert kind == "CMD"
        program = python if program == "python" else program
        rest = [word.replace("8501", port) for word in rest]
        assert subprocess.run([program, *rest], timeout=10).returncode == 0
        elsewhere = [word.replace("/ende", "/other").replace("/readyz", "/other") for word in rest]
        assert subprocess.run([program, *elsewhere], timeout=10, capture_output=True).returncode

    assert len(PREDICT_BODIES) >= 3
    for body in PREDICT_BODIES:
        url = f"http://127.0.0.1:{port}/v1/models/ende:predict"
        answer = requests.post(url, data=body.encode(), timeout=60)
        assert answer.status_code == 200, answer.text
        request = json.loads(body)
        if "instances" in request:
            assert len(answer.json()["predictions"]) == len(request["instances"])
        else:
            columns = answer.json()["outputs"].values()
            assert {len(column) for column in columns} == {len(request["inputs"]["text"])}
    page = requests.get(f"http://127.0.0.1:{port}/", timeout=60)
    assert page.headers["content-type"].startswith("text/html")
