"""The report on a training text: every count is that of a plain loop over the text."""

import json
import statistics

import commands
import pytest

from pipelines import encode
from pipelines.corpus_report import report_on
from pipelines.vocabulary import Vocabulary

PAIRS = [
    {"source": f"the {animal} number {n} " + "sees " * (n % 5), "target": f"das {animal} {n}"}
    for n in range(30)
    for animal in ("cat", "dog")
]
COPIES = [{"source": "cat", "target": "cat"}] * 3
ODD = [
    {"source": "", "target": "das"},
    {"source": "cat " * 40, "target": "das\u00a0\u00a0dog "},
    {"source": "das", "target": "cat " * 9},
]
TEXT = [*PAIRS, *COPIES, *ODD, *PAIRS[:7]]
LIMIT = 30


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.learn([text for pair in PAIRS for text in pair.values()], 290)


@pytest.mark.parametrize(
    "shard", [pytest.param(16, marks=pytest.mark.slow), 1000]
)  # by workers, and in this process
def test_counts_are_those_of_a_plain_loop(vocabulary, monkeypatch, shard):
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", shard)
    values = report_on(lambda: iter(TEXT), vocabulary, LIMIT).values()
    lengths = {}
    for side in ("source", "target"):
        lines = [pair[side] for pair in TEXT]
        lengths[side] = [len(ids) for ids in vocabulary.encode(lines)]
        found = values[side]
        assert found["lengths"] == {
            str(length): lengths[side].count(length) for length in sorted(set(lengths[side]))
        }
        assert found["pieces"] == sum(lengths[side])
        assert found["longest"] == max(lengths[side])
        assert found["median"] == statistics.median_low(lengths[side])
        words = [word for line in lines for word in line.split(" ") if word]
        several = [word for word in words if len(vocabulary.encode([word])[0]) > 2]
        assert (found["words"], found["split_words"]) == (len(words), len(several))
        assert found["split_rate"] == len(several) / len(words) > 0
    both = list(zip(lengths["source"], lengths["target"], strict=True))
    too_long = sum(max(pair) > LIMIT for pair in both)
    counted = {"all": len(TEXT), "empty": 1, "too_long": too_long, "repeated": 9, "copied": 3}
    assert values["pairs"] == counted
    assert values["ratios"]["more"] == sum(max(pair) > 9 * min(pair) for pair in both) > 0
    assert values["ratios"]["2"] == sum(1.5 < max(pair) / min(pair) <= 2 for pair in both) > 0
    assert sum(values["ratios"].values()) == len(TEXT)


@pytest.mark.slow
def test_the_command_reports_on_the_text_before_its_filters(tmp_path, capsys):
    path = tmp_path / "text.tsv"
    path.write_text("".join("{source}\t{target}\n".format(**pair) for pair in PAIRS + COPIES))
    given = ["--problem=parallel_text", f"--tsv_files={path}", "--vocabulary_size=290"]
    given += [f"--workdir={tmp_path / 'run'}", "--drop_copies", "--drop_duplicates"]
    assert commands.call("prepare", *given, "--report", "--json") == 0
    out, err = capsys.readouterr()
    pairs = json.loads(out)["pairs"]
    assert pairs["all"] > 50
    assert pairs["copied"] == 3
    assert f"train: {pairs['all'] - 3} pairs" in err
    assert "dropped: 3 copied from source to target" in err
    assert commands.call("prepare", f"--workdir={tmp_path / 'run'}", "--report") == 0
    table = capsys.readouterr().out.splitlines()
    assert table[1].split() == ["all", str(pairs["all"]), "100.00", "%"]
    assert table[5].split()[:-2] == ["copied", "from", "source", "to", "target", "3"]


def test_json_without_a_report(capsys, tmp_path):
    assert commands.call("prepare", f"--workdir={tmp_path / 'run'}", "--json") == 2
    assert "--json: wanted --report with it" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
