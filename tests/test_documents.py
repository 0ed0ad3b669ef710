"""troubleshooting.md names lines that the code prints, coming-from.md flags that exist."""

import ast
import re

import pytest
from paths import ROOT

from t2t_repro import evaluate, export, prepare, score, serve, train, translate

HEADINGS = re.findall(
    r"^### `(.*)`$", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
)


def template(node):
    """Return the text of a string in the code, with NUL for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return "".join(parts)


@pytest.fixture(scope="module")
def templates():
    nodes = (
        node
        for package in ("pipelines", "t2t_repro")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
    return {template(node) for node in nodes if isinstance(node, ast.JoinedStr | ast.Constant)}


def is_printed(heading, templates):
    """Whether strings of the code contain the fixed words of a heading, in their order.

    A line may be made of several strings: a part that none has is divided at what is filled in.
    """
    words = [part for part in heading.split("...") if part.strip(" :;")]
    pattern = re.compile(".*".join(map(re.escape, words)), re.DOTALL)
    if any(pattern.search(text) for text in templates):
        return True
    return all(any(part in text for text in templates) for part in words)


def test_every_heading_is_a_line_of_the_code(templates):
    assert len(HEADINGS) > 30
    assert [heading for heading in HEADINGS if not is_printed(heading, templates)] == []


def test_a_line_that_the_code_does_not_print_is_noticed(templates):
    assert not is_printed("...: no run is there; train one", templates)


def test_every_flag_of_the_column_here_exists():
    page = (ROOT / "docs/coming-from.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    named = {flag for row in rows for flag in re.findall(r"--[\w-]+", row[1])}
    commands = (evaluate, export, prepare, score, serve, train, translate)
    helps = " ".join(command.parser().format_help() for command in commands)
    assert len(named) > 40
    assert named <= set(re.findall(r"--[\w-]+", helps))
