"""The console scripts, `--version`, what a shell completes after Tab, and CITATION.cff."""

import importlib.metadata
import os
import re
import subprocess
import sys

import pytest
import yaml
from paths import ROOT

from t2t_repro import __version__, scripts

MODULES = sorted(
    path
    for path in (*ROOT.glob("t2t_repro/*.py"), ROOT / "t2t_repro/bench/__main__.py")
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
)
NAMES = [path.parent.name if path.stem == "__main__" else path.stem for path in MODULES]


def script(monkeypatch, name, *flags):
    """Call what pip's script in bin/ calls; return the exit status."""
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/t2t-{name}", *flags])
    with pytest.raises(SystemExit) as end:
        getattr(scripts, name)()
    return end.value.code


def test_every_command_has_a_script():
    (listed,) = re.findall(
        r"^COMMANDS = \((.*?)^\)", (ROOT / "setup.py").read_text(), re.DOTALL | re.MULTILINE
    )
    assert sorted(re.findall(r'"(\w+)"', listed)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_its_command(monkeypatch, capsys, name):
    assert script(monkeypatch, name, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: t2t-{name} [")
    assert script(monkeypatch, name, "--hlep") == 2
    stdout, stderr = capsys.readouterr()
    assert (stdout, stderr.count("\n")) == ("", 1)
    assert stderr.startswith("error: ")


@pytest.mark.parametrize("name", NAMES)
def test_version(monkeypatch, capsys, name):
    installed = {
        package: importlib.metadata.version(package) for package in ("tensorflow", "keras")
    }
    assert script(monkeypatch, name, "--version") == 0
    assert capsys.readouterr().out == (
        f"t2t_repro {__version__}, TensorFlow {installed['tensorflow']}, "
        f"Keras {installed['keras']}\n"
    )


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("t2t-train --bpe", {"--bpe_dropout"}),
        ("t2t-train --problem=wmt", {"wmt14_ende", "wmt14_enfr"}),
        ("t2t-train --problem=multi", {"multi30k_deen", "multi30k_ende", "multi30k_enfr"}),
        ("t2t-train --problem multi30k_ende --variant b", {"base", "big"}),
        ("t2t-train --problem multi30k_enfr --variant r", {"raw"}),
    ],
)
def test_completion_comes_without_the_slow_imports(tmp_path, line, completed):
    pytest.importorskip("argcomplete")
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    answer = {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "answer"), "_ARGCOMPLETE_IFS": "\n"}
    ended = subprocess.run(
        [
            sys.executable,
            "-X",
            "importtime",
            "-c",
            "from t2t_repro import scripts; scripts.train()",
        ],
        env=os.environ | asked | answer,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    imported = {line.split("|")[-1].strip() for line in ended.stderr.splitlines()}
    assert "argcomplete" in imported
    assert not imported & {"tensorflow", "keras", "sentencepiece"}
    words = (tmp_path / "answer").read_text().split("\n")
    assert {word.strip().removeprefix("--problem=") for word in words} == completed


def test_the_citation_names_the_paper_and_this_version():
    """The fields that CFF 1.2.0 requires, and the ones that could become wrong."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["version"] == __version__
    (paper,) = cited["references"]
    assert {"type", "title", "authors"} <= paper.keys()
    assert len(paper["authors"]) == 8
    assert paper["url"].endswith("1706.03762")
