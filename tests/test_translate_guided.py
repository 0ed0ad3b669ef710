"""The translate command with several runs, samples, prefixes, alignments and JSON."""

import json
import os
import shutil
import subprocess
from itertools import islice

import commands
import numpy as np
import pytest

from pipelines.toy import toy_ende
from pipelines.vocabulary import Vocabulary

pytestmark = pytest.mark.slow

LINES = [*(pair["source"] for pair in islice(toy_ende.examples("dev"), 8)), "", "Yes."]


@pytest.fixture
def translated(tiny_run, capfd):
    """Return a function that translates lines with the run, and returns stdout's lines."""

    def translated(*flags, lines=LINES, workdirs=(tiny_run,), status=0):
        stdin = "".join(f"{line}\n" for line in lines).encode()
        assert commands.call("translate", "--workdir", *workdirs, *flags, stdin=stdin) == status
        out, err = capfd.readouterr()
        return err if status else out.split("\n")[:-1]

    return translated


def test_a_run_twice_is_the_run(translated, tiny_run):
    alone = translated("--score", "--nbest=3")
    twice = translated("--score", "--nbest=3", workdirs=(tiny_run, tiny_run))
    for one, other in zip(alone, twice, strict=True):
        scores, texts = zip(*(line.split("\t") for line in (one, other)), strict=True)
        assert texts[0] == texts[1]
        assert float(scores[0]) == pytest.approx(float(scores[1]), abs=2e-4)


def test_runs_with_two_vocabularies_are_refused(translated, tiny_run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(tiny_run / "config.yaml", other)
    Vocabulary.learn(["an other text"], 280).save(other)
    error = translated(workdirs=(tiny_run, other), status=2)
    assert f"{other}: another vocabulary than {tiny_run}" in error


def test_samples_depend_on_the_seed_and_the_number_of_the_line(translated):
    flags = "--sampling_topk=0", "--sampling_temperature=2", "--nbest=3"
    first = translated(*flags, "--seed=1")
    others = [*LINES[:3], "Yes.", LINES[1] + " " + LINES[2]]
    assert translated(*flags, "--seed=1", lines=others)[:9] == first[:9]
    assert translated(*flags, "--seed=2")[:9] != first[:9]
    assert len(set(first[:9])) == 9
    assert len(first) == 3 * len(LINES)
    more = translated(*flags[:2], "--nbest=5", "--seed=1")  # the same three, and two more
    assert [more[5 * i + j] for i in range(3) for j in range(3)] == first[:9]


def test_translations_begin_with_their_prefixes(translated, tmp_path):
    prefixes = tmp_path / "prefixes"
    wanted = ["Der König", "", "Am Sonntag", *[""] * 5, "Die", ""]
    prefixes.write_text("".join(f"{line}\n" for line in wanted))
    free, guided = translated(), translated(f"--prefixes={prefixes}")
    for prefix, one, other in zip(wanted, free, guided, strict=True):
        assert other.startswith(prefix) if prefix else other == one
    sampled = translated(f"--prefixes={prefixes}", "--sampling_topk=5")
    assert sampled[2].startswith("Am Sonntag")
    for lines in (LINES[:-1], [*LINES, "No."]):
        error = translated(f"--prefixes={prefixes}", lines=lines, status=2)
        assert "wanted one for each line of the input" in error


def test_alignments_and_json(translated, tmp_path):
    path = tmp_path / "alignments"
    plain = translated("--nbest=2", "--score")
    rows = list(map(json.loads, translated("--nbest=2", "--json", f"--alignments={path}")))
    assert [row["source"] for row in rows] == LINES
    found = [line.split("\t") for line in plain if line != "-1000000000.0000\t"]
    texts = [(f"{t['score']:.4f}", t["text"]) for row in rows for t in row["translations"]]
    assert texts == list(map(tuple, found))

    links = path.read_text().split("\n")[:-1]
    assert len(links) == 2 * len(LINES)
    for row, line in zip(rows, links[::2], strict=True):
        words = len(row["source"].split()), len(row["translations"][0]["text"].split())
        places = np.array([link.split("-") for link in line.split()], int).reshape(-1, 2)
        assert places[:, 1].tolist() == list(range(words[1]))
        assert (places[:, 0] < max(1, words[0])).all()


def test_alignments_replace_nothing_that_is_read(translated, tmp_path):
    path = tmp_path / "text"
    path.write_text("Der\n" * len(LINES))
    both = f"--prefixes={path}", f"--alignments={path}"
    assert "it is read, too" in translated(*both, status=2)
    missing = f"--prefixes={tmp_path / 'none'}", f"--alignments={path}"
    assert "no such file" in translated(*missing, status=2)
    (tmp_path / "one").write_text("Der\n")
    few = f"--prefixes={tmp_path / 'one'}", f"--alignments={path}"
    assert "wanted one for each line" in translated(*few, status=2)
    assert path.read_text() == "Der\n" * len(LINES)
    new = tmp_path / "new"
    assert "no such file" in translated(missing[0], f"--alignments={new}", status=2)
    assert not new.exists()
    (link := tmp_path / "link").symlink_to(new)
    assert "no such file" in translated(missing[0], f"--alignments={link}", status=2)
    assert link.is_symlink()
    folder = f"--alignments={tmp_path}"
    assert f"{folder}: Is a directory" in translated(folder, status=2)
    translated(f"--alignments={path}")
    assert len(path.read_text().splitlines()) == len(LINES)
    assert "Der" not in path.read_text()


def test_alignments_go_into_a_pipe(translated, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        translated(f"--alignments={tmp_path / 'pipe'}")
        assert len(reader.stdout.read().splitlines()) == len(LINES)
