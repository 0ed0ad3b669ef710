"""The listing of Table 4 with a row for a run."""

import sys

import pytest

from t2t_repro import cli, config, evaluate
from t2t_repro.paper import table4

SCORES = {
    **{"f1": 90.126, "f1_40": 91.5, "lines_40": 2_245, "lines": 2_416},
    **{"skipped": 0, "f1_punished": 90.126},
}


def listing(problem="wsj_parsing", scores=SCORES, **changes):
    return list(table4.listing(config.resolve(problem, overrides=changes), scores))


def row(line):
    """Return a line's cells, separated by two or more spaces: (parser, training, F1)."""
    return tuple(cell.strip() for cell in line.split("  ") if cell)


def test_the_papers_rows():
    rows = list(map(row, listing()[1:13]))
    assert rows[4] == ("Transformer (4 layers)", "WSJ only, discriminative", "91.30")
    assert rows[9] == ("Transformer (4 layers)", "semi-supervised", "92.70")
    of = {kind: [f1 for _, training, f1 in rows if training.startswith(kind)] for kind in "Wsmg"}
    assert of == {
        "W": ["88.30", "90.40", "90.40", "91.70", "91.30"],
        "s": ["91.30", "91.30", "92.10", "92.10", "92.70"],
        "m": ["93.00"],
        "g": ["93.30"],
    }


def test_ours_stands_below():
    assert row(listing()[13]) == ("here: wsj_parsing, base", "treebank only", "90.13")
    more = listing(extra_tree_files=["more.ptb"])[13]
    assert row(more) == ("here: wsj_parsing, base", "semi-supervised", "90.13")


def test_notes_below_the_table():
    assert listing()[14:] == [
        "here F1 91.50 on the 2,245 sentences of at most 40 words",
        "here 2,416 sentences; section 23 has 2,416",
    ]
    lines = listing(scores=SCORES | {"skipped": 3, "f1_punished": 90.0, "lines": 2_415})
    assert lines[15].startswith("EVALB leaves out 3 sentences; ")
    assert lines[15].endswith(" F1 is 90.00")
    assert lines[-2:] == [
        "here 2,415 sentences; section 23 has 2,416",
        "F1 here is on another test set than WSJ section 23 and cannot be compared",
    ]
    assert "another test set" in listing("toy_parsing")[-1]


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Return a function that runs `evaluate` on SCORES and returns (status, stdout, stderr)."""
    config.save(config.resolve("toy_parsing"), tmp_path / "config.yaml")
    monkeypatch.setattr(evaluate, "_score_run", lambda *_: SCORES)

    def printed(*flags):
        monkeypatch.setattr(sys, "argv", ["evaluate", f"--workdir={tmp_path}", *flags])
        with pytest.raises(SystemExit) as end:
            cli.run(evaluate.main)
        return end.value.code, *capsys.readouterr()

    return printed


def test_the_command(printed):
    status, stdout, _ = printed("--table4")
    assert status == 0
    assert stdout.split("\n")[:-1] == listing("toy_parsing")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--table4 --json", "error: --table4: wanted --workdir, --split=test and no --json"),
        ("--table2 --split=dev", "error: --table2: wanted --workdir, --split=test and no --json"),
        ("--table2 --table4", "--table4: not allowed with argument --table2"),
    ],
)
def test_flags_that_do_not_go_together(printed, flags, expected):
    status, stdout, stderr = printed(*flags.split())
    assert (status, stdout) == (2, "")
    assert expected in stderr
