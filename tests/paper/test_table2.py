"""The listing of Table 2 with a row for a run."""

import json
import sys

import pytest

from pipelines.errors import BadInput
from t2t_repro import config, evaluate
from t2t_repro.model import flops
from t2t_repro.paper import cost, table2

SCORES = {
    "sacrebleu": 26.123,
    "sacrebleu_signature": "nrefs:1|tok:13a",
    "paper_bleu": 27.456,
    "lines": 3003,
}


def spent(device):
    where = flops.positions([(4, 6, 9)])
    return cost.run_cost(config.Model(), 40960, "float32", where, 3600.0, [device] * 8)


def listing(problem="wmt14_ende", device="Tesla P100", scores=SCORES, **changes):
    return list(table2.listing(config.resolve(problem, **changes), scores, spent(device)))


def cells(line):
    return line.split()[-4:]


def test_the_papers_rows():
    lines = {line.split("  ")[0]: cells(line) for line in listing()[1:12]}
    assert lines["GNMT + RL"] == ["24.60", "39.92", "2.3e+19", "1.4e+20"]
    assert lines["Transformer base"] == ["27.30", "38.10", "3.3e+18", "3.3e+18"]
    assert lines["Transformer big"] == ["28.40", "41.80", "2.3e+19", "2.3e+19"]
    assert lines["ByteNet"] == ["23.75", "-", "-", "-"]
    for name, key in (("base", "flops_de"), ("big", "flops_fr")):
        assert table2.printed()[f"Transformer {name}"][key] == cost.PAPER[name]


def test_ours_stands_in_the_columns_of_its_language():
    german, french = listing()[11], listing("wmt14_enfr", variant="big")[11]
    assert german.startswith("here: wmt14_ende, base")
    assert cells(german) == ["27.46", "-", f"{3600 * 8 * 9.5e12:.1e}", "-"]
    assert french.startswith("here: wmt14_enfr, big")
    assert cells(french) == ["-", "27.46", "-", f"{3600 * 8 * 9.5e12:.1e}"]


def test_a_run_into_a_language_that_the_paper_has_not_stands_in_no_column():
    english = listing("multi30k_deen")
    assert english[11].startswith("here: multi30k_deen, base")
    assert cells(english[11]) == ["-"] * 4
    assert "another test set" in "\n".join(english)


def test_notes_below_the_table():
    text = "\n".join(listing())
    assert "proceedings and section 6.1: 41.0" in text
    assert "sacreBLEU 26.12 (nrefs:1|tok:13a)" in text
    assert "the paper's runs base 9.8e+17, big 9.9e+18" in text
    assert "another test set" not in text
    text = "\n".join(listing("toy_ende", device="CPU"))
    assert "another test set than newstest2014" in text
    assert "the sustained speed of CPU is unknown" in text


def test_which_lines_were_scored_is_said():
    def said(lines):
        return "\n".join(listing(scores=SCORES | {"lines": lines}))

    assert "on all 3,003 lines of newstest2014, like the paper's" in said(3003)
    assert "on 2,737 lines (sacreBLEU's `wmt14`) and cannot be compared" in said(2737)
    assert "on 100 lines and cannot be compared" in said(100)


def test_a_run_without_its_cost():
    lines = list(table2.listing(config.resolve("wmt14_ende"), SCORES, None))
    assert cells(lines[11])[2:] == ["-", "-"]
    assert lines[-1] == "cost: unknown, because training is not finished"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flops", "many"),
        ("flops", 10**400),
        ("formula_flops", float("nan")),
        ("paper_flops", 3),
        ("paper_flops", {"base": None}),
        ("device", "\ud800"),
        ("device", None),
    ],
)
def test_a_damaged_cost(name, value):
    with pytest.raises(
        BadInput, match=rf"results\.json is damaged, 'cost': '{name}' is .*t2t_repro"
    ):
        table2.check("toy_ende", True, spent("CPU") | {name: value})


def test_a_cost_without_its_values():
    with pytest.raises(BadInput, match="'cost': no 'flops' in it"):
        table2.check("toy_ende", True, {})


@pytest.mark.parametrize(
    ("problem", "flag", "message"),
    [
        ("toy_parsing", "--table2", "Table 2 is about translation, which toy_parsing is not"),
        ("toy_ende", "--table4", "Table 4 is about parsing, which toy_ende is not"),
        ("toy_ende", "--table2", "results.json is damaged, 'cost': no 'flops' in it"),
        ("toy_ende", "--test_source_files=a", "--test_source_files: toy_ende does not read it"),
    ],
)
def test_what_does_not_suit_the_run_is_refused_before_it_translates(
    tmp_path, monkeypatch, problem, flag, message
):
    config.save(config.resolve(problem), tmp_path / "config.yaml")
    (tmp_path / "results.json").write_text('{"cost": {}}')
    monkeypatch.setattr(evaluate, "_score_run", lambda *_: pytest.fail("it translates"))
    monkeypatch.setattr(sys, "argv", ["evaluate", f"--workdir={tmp_path}", flag])
    with pytest.raises(BadInput, match=message):
        evaluate.main()


def test_the_command(tmp_path, monkeypatch, capsys):
    config.save(config.resolve("toy_ende"), tmp_path / "config.yaml")
    (tmp_path / "results.json").write_text(json.dumps({"cost": spent("CPU")}))
    monkeypatch.setattr(evaluate, "_score_run", lambda *_: SCORES)
    monkeypatch.setattr(sys, "argv", ["evaluate", f"--workdir={tmp_path}", "--table2"])
    evaluate.main()
    assert capsys.readouterr().out.splitlines() == listing("toy_ende", device="CPU")
