"""docs/reproduction.md names code and tests that exist."""

import re

from paths import ROOT

TEXT = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
NAMES = set(re.findall(r"`([^`\n]+)`", TEXT))


def test_its_tests_are_there():
    files = list(ROOT.glob("tests/**/test_*.py"))
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    modules = {path.stem for path in files}
    mentioned = {name for name in NAMES if name.startswith("test_")}
    assert len(mentioned) > 40
    for name in mentioned:
        assert f"def {name}(" in code or name in modules, name


def test_its_files_and_classes_are_there():
    sources = [*ROOT.glob("t2t_repro/**/*.py"), *ROOT.glob("pipelines/**/*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    for name in NAMES:
        if re.fullmatch(r"[\w/]+\.(py|yaml)", name):
            assert any((ROOT / folder / name).exists() for folder in (".", "t2t_repro")), name
        elif re.fullmatch(r"[A-Z]\w+|[a-z]+(_[a-z]+)+", name) and not name.startswith("test_"):
            assert re.search(rf"(class|def) {name}\b|\b{name}\b:", code), name
