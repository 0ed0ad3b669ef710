"""Apply small mistakes to a copy of the code, one at a time: do the fast tests notice each?

Slow tests are tried where mutations.yaml names one by itself, as in "file.py::test".

    .venv/bin/python tests/mutations.py                  # all of mutations.yaml
    .venv/bin/python tests/mutations.py "no sqrt(d_model)" "seed ignored"

It prints a line per mistake, "caught" with the first test that failed, or "SURVIVED", and exits
with status 1 if one survived.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from paths import DATA, ROOT


def survives(mutation, tree):
    """Run the mutation's tests in a copy of the code; return None, or the first failing test."""
    path = tree / mutation["file"]
    original = path.read_text(encoding="utf-8")
    if original.count(mutation["old"]) != 1:
        sys.exit(f"{mutation['file']}: wanted this text once: {mutation['old']}")
    path.write_text(original.replace(mutation["old"], mutation["new"]), encoding="utf-8")
    tier = "" if any("::" in test for test in mutation["tests"]) else "not slow"
    command = [sys.executable, "-m", "pytest", "-x", "-m", tier, "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(
        [*command, *mutation["tests"]], cwd=tree, env=environment, capture_output=True, text=True
    )
    path.write_text(original, encoding="utf-8")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    passed = done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return None if passed else (failed or ["(no test could run)"])[0]


def main(names):
    """Try the named mutations, or all of them."""
    known = yaml.safe_load((ROOT / "tests/mutations.yaml").read_text(encoding="utf-8"))
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "code"
        ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=ignored)
        if DATA.exists():
            (Path(folder) / "shared").symlink_to(DATA.parent)
        for name in names or known:
            test = survives(known[name], tree)
            survivors += test is None
            print(f"caught   | {name} | {test}" if test else f"SURVIVED | {name}", flush=True)
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
