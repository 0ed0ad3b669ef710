"""The workflow for GitHub, the Dockerfiles and the development container fit the project."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from paths import ROOT

WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TRAIN = (ROOT / "docs/deploy/Dockerfile.train").read_text(encoding="utf-8")
(PYTHONS,) = re.findall(r"^PYTHONS = \((.*)\)", (ROOT / "setup.py").read_text(), re.MULTILINE)


def runs(job):
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


def test_the_jobs_run_what_ci_runs():
    targets = {
        word
        for job in JOBS
        for run in runs(job)
        for word in re.findall(r"^make ([\w-]+) PYTHON=python$", run)
    }
    assert targets == set(re.findall(r"^make ([\w-]+)$", (ROOT / ".ci/run").read_text(), re.M))
    assert targets <= set(re.findall(r"^([\w-]+):", MAKEFILE, re.M))


def test_the_fast_tests_run_on_every_python_of_setup():
    assert JOBS["fast"]["strategy"]["matrix"]["python"] == re.findall(r'"([\d.]+)"', PYTHONS)


def test_every_job_ends_and_has_a_checkout_and_actions_of_one_major_version():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    for job in JOBS.values():
        assert job["timeout-minutes"] <= 90
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        assert used[0].startswith("actions/checkout@")
        assert all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in used)


def test_the_image_for_training_has_what_setup_reads_and_a_python_that_setup_names():
    copied = re.findall(r"^COPY (.*) /src/", TRAIN, re.M)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
    assert {"setup.py", "README.md", "configs", "t2t_repro"} <= {*" ".join(copied).split()}
    (version,) = re.findall(r"has Python ([\d.]+\d)", TRAIN)
    assert version in PYTHONS


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.train"])
def test_hadolint_finds_nothing(name):
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run(
        [hadolint, ROOT / "docs/deploy" / name], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_development_container_makes_the_developers_environment():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    target = container["postCreateCommand"].removeprefix("make ")
    assert f"\n{target}:" in MAKEFILE


def test_neither_images_nor_packages_come_from_a_host_that_is_named():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    images = [container["image"]]
    for path in (ROOT / "docs/deploy").glob("Dockerfile*"):
        images += re.findall(r"^FROM (\S+)", path.read_text(encoding="utf-8"), re.M)
    assert len(images) >= 3
    hosts = [image.split("/")[0] for image in images if "/" in image]
    assert not [host for host in hosts if "." in host or ":" in host]
    assert "://" not in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
