"""Look up the known vulnerabilities of the versions in constraints.txt; `make audit` calls this.

Exit status: 1 if there is one that IGNORED does not name, else 0. A machine without a network, or
whose package index knows nothing of vulnerabilities, gets a line that says so, and status 0.
"""

import json
import subprocess
import sys

from paths import ROOT

# {vulnerability: why it cannot hurt here}
IGNORED: dict[str, str] = {}

COMMAND = [
    *(sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / "constraints.txt")),
    # Every version is in the file: nothing has to be resolved or installed.
    *("--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json"),
    *(f"--ignore-vuln={name}" for name in IGNORED),
]


def main() -> int:
    """Print what was found, and return the exit status."""
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return skipped("no answer in 10 minutes")
    if done.returncode > 1:  # pip-audit does not know a flag
        print(done.stderr, file=sys.stderr)
        return 1
    try:
        report = json.loads(done.stdout)["dependencies"]
    except ValueError:  # it prints a report only if every question was answered
        return skipped((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    asked = [package for package in report if "skip_reason" not in package]
    if not asked:
        return skipped(f"the package index knows none of the {len(report)} packages")
    found = [
        f"{package['name']} {package['version']}: {vulnerability['id']}, mended in "
        f"{', '.join(vulnerability['fix_versions']) or 'no version yet'}"
        for package in asked
        for vulnerability in package["vulns"]
    ]
    print(*found, f"audit: {len(found)} vulnerabilities in {len(asked)} packages", sep="\n")
    if unknown := [package["name"] for package in report if package not in asked]:
        print(f"audit: not known to the index: {', '.join(unknown)}")
    return 1 if found else 0


def skipped(reason: str) -> int:
    """Say why nothing was looked up."""
    print(f"audit: skipped, the vulnerability service could not be asked: {reason[:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
