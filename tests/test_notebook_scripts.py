"""The scripts of docs/notebook do what they say."""

import gzip
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from paths import DATA, ROOT

from t2t_repro.model import flops
from t2t_repro.model.layers import sinusoids

MULTI30K = DATA / "multi30k"


def script(name, *arguments):
    command = [sys.executable, ROOT / "docs/notebook" / name, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout


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
    plain = tmp_path / "plain"
    shutil.copytree(MULTI30K / "tok", plain / "tok")
    subprocess.run(["gunzip", *(plain / "tok").glob("*.gz")], check=True)
    script("held_out.py", plain, tmp_path / "again")
    for path in (tmp_path / "sets").iterdir():
        assert (tmp_path / "again/sets" / path.name).read_bytes() == path.read_bytes()


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


@pytest.mark.parametrize("size", ["base", "tiny"])
def test_the_peer_that_is_timed_is_the_papers_model(size, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(ROOT / "docs/notebook")
    import peer_training

    workload = peer_training.WORKLOADS[size]
    peer = peer_training.TorchTransformer(workload)
    weights = sum(weight.numel() for weight in peer.parameters())
    assert weights == flops.trainable_parameters(workload.model, workload.rows)
    ours = np.asarray(sinusoids(workload.length, workload.model.d_model))
    np.testing.assert_allclose(peer.positions, ours, atol=1e-5)
    rates = [m.p for m in peer.modules() if isinstance(m, torch.nn.Dropout)]
    # The embeddings, two sub-layers of each encoder layer and three of each decoder layer; inside
    # the feed-forward layers it is off.
    assert rates.count(0.1) == 1 + 5 * workload.model.num_layers
    assert rates.count(0.0) == 2 * workload.model.num_layers


def test_a_peers_training_step_is_timed():
    pytest.importorskip("torch")
    printed = script("peer_training.py", "torch", "tiny", "--bfloat16", "--repeats=1")
    (loss,) = re.fullmatch(
        r"torch tiny bfloat16: [\d,]+ target tokens per second, [\d,]+ ms a step, loss (\S+)\n",
        printed,
    ).groups()
    # 10,000 pieces at random: log(10,000) = 9.2, and a little more for what the model believes.
    assert 9.0 < float(loss) < 10.0
