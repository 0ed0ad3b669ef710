"""constraints.txt pins what CI installs, and the audit of these versions."""

import importlib.metadata
import json
import subprocess
from types import SimpleNamespace

import audit
import commands
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT

LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = dict(line.split("==") for line in LINES if not line.startswith("#"))


def required(name, extras=(), seen=None):
    """Return the requirements of a distribution, and of all that it needs, {(name, extras)}."""
    seen = {} if seen is None else seen
    for text in importlib.metadata.requires(name) or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            continue
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key not in seen:
            seen[key] = []
            required(requirement.name, requirement.extras, seen)
        seen[key].append(requirement.specifier)
    return seen


def test_every_package_that_the_developers_extra_needs_is_pinned():
    try:
        found = required("t2t_repro", ["dev"])
    except importlib.metadata.PackageNotFoundError as error:
        pytest.skip(f"not installed: {error}")
    assert len(found) > 150
    for (name, _), specifiers in found.items():
        if name != "pip":  # which installs the others
            version = PINS[name]
            assert all(specifier.contains(version) for specifier in specifiers), name


def test_a_pin_is_one_version_of_a_package():
    assert list(PINS) == sorted({canonicalize_name(name) for name in PINS})
    assert not [version for version in PINS.values() if "+" in version or " " in version]


def test_what_is_installed_is_what_is_pinned():
    names = ("tensorflow", "keras", "numpy", "fastapi", "pytest", "ruff")
    assert {name: PINS[name] for name in names} == {
        name: importlib.metadata.version(name) for name in names
    }


def test_make_installs_with_the_constraints():
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    (pip,) = [line for line in lines if line.startswith("PIP = ")]
    assert pip.endswith(" --constraint constraints.txt")
    installing = [line for line in lines if "--editable" in line]
    assert len(installing) == 2
    assert all("$(PIP)" in line for line in installing)
    targets = [line for line in lines if line.startswith(".venv/installed")]
    assert len(targets) == 2
    assert all("constraints.txt" in line for line in targets)


def reported(monkeypatch, capsys, stdout, returncode=1, stderr=""):
    """Return the status and the output of an audit to which pip-audit reports `stdout`."""
    done = SimpleNamespace(stdout=stdout, stderr=stderr, returncode=returncode)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    return audit.main(), capsys.readouterr().out


def package(*vulnerabilities, name="numpy"):
    found = [{"id": each, "fix_versions": ["9.9"]} for each in vulnerabilities]
    return {"name": name, "version": "1.0", "vulns": found}


UNKNOWN = {"name": "torch", "skip_reason": "not found"}


def test_a_vulnerability_fails_the_audit(monkeypatch, capsys):
    report = json.dumps({"dependencies": [package("CVE-1"), UNKNOWN]})
    status, out = reported(monkeypatch, capsys, report)
    assert status == 1
    assert "numpy 1.0: CVE-1, mended in 9.9\n" in out
    assert "not known to the index: torch" in out


def test_none_passes(monkeypatch, capsys):
    report = json.dumps({"dependencies": [package()]})
    assert reported(monkeypatch, capsys, report, 0) == (
        0,
        "audit: 0 vulnerabilities in 1 packages\n",
    )


@pytest.mark.parametrize(
    ("stdout", "stderr", "reason"),
    [
        ("", "Traceback\nConnectionError: no route to host\n", "ConnectionError: no route to host"),
        ("", "", "no reason given"),
        (json.dumps({"dependencies": [UNKNOWN]}), "", "knows none of the 1 packages"),
    ],
)
def test_a_service_that_cannot_be_asked_is_one_line(monkeypatch, capsys, stdout, stderr, reason):
    status, out = reported(monkeypatch, capsys, stdout, stderr=stderr)
    assert status == 0
    assert out.startswith("audit: skipped, the vulnerability service could not be asked: ")
    assert reason in out
    assert out.count("\n") == 1


def test_a_flag_that_pip_audit_does_not_know_fails(monkeypatch, capsys):
    assert reported(monkeypatch, capsys, "", 2, "unrecognized arguments")[0] == 1


@pytest.mark.slow
def test_without_a_network(tmp_path):
    """Nothing listens at the discard port, to which every question goes."""
    pytest.importorskip("pip_audit")
    nowhere = dict.fromkeys(("https_proxy", "HTTPS_PROXY", "http_proxy"), "http://127.0.0.1:9")
    nowhere |= {"NO_PROXY": "", "no_proxy": "", "XDG_CACHE_HOME": str(tmp_path)}
    done = commands.python(ROOT / "tests" / "audit.py", **nowhere)
    assert done.stdout.decode().startswith("audit: skipped, ")
    assert done.stdout.count(b"\n") == 1
