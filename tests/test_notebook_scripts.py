"""The scripts of docs/notebook hold out what they say, and group sentences by their rarest word."""

import gzip
import subprocess
import sys

import pytest
from paths import DATA, ROOT

MULTI30K = DATA / "multi30k"


def script(name, *arguments):
    command = [sys.executable, ROOT / "docs/notebook" / name, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"needs Multi30k in {MULTI30K}")
def test_held_out_captions_are_not_trained_on(tmp_path):
    script("held_out.py", MULTI30K, tmp_path)
    training, source = (
        gzip.decompress((folder / "tok/train.lc.norm.tok.en.gz").read_bytes()).decode().splitlines()
        for folder in (tmp_path, MULTI30K)
    )
    sets = [
        (tmp_path / f"sets/{name}.en").read_text().splitlines() for name in ("rare", "held_out")
    ]
    assert [len(lines) for lines in sets] == [1000, 1000]
    assert sorted([*training, *sets[0], *sets[1]]) == sorted(source)
    known = {word for line in training for word in line.split()}
    assert all(set(line.split()) - known for line in sets[0])
    assert not all(set(line.split()) - known for line in sets[1])


def test_sentences_are_grouped_by_their_rarest_word(tmp_path):
    texts = {
        "training": "a dog\n" * 50 + "a cat\n" * 5,
        "source": "a dog\na cat\na bird\na dog\n",
        "reference": "ein hund läuft schnell\neine nette katze läuft\nein vogel singt\nein hund\n",
        "output": "ein hund läuft schnell\neine katze\nein vogel singt\nein hund\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    rows = script("by_rarest_word.py", *(tmp_path / name for name in texts)).splitlines()
    assert [row.split()[-4::3] for row in rows] == [["1", "1.000"], ["1", "0.500"], ["2", "1.000"]]
    assert rows[0].split()[0] == "never"
    assert rows[2].split()[-3] == "100.0"
