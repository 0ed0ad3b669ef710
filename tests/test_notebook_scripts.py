"""The scripts of docs/notebook do what they say."""

import gzip
import itertools
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import sacrebleu
from paths import DATA, ROOT

from pipelines.toy import toy_ende
from t2t_repro.bench.train import WORKLOADS
from t2t_repro.model import flops
from t2t_repro.model.layers import sinusoids

MULTI30K = DATA / "multi30k"


def script(name, *arguments, stdin=""):
    command = [sys.executable, ROOT / "docs/notebook" / name, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, input=stdin
    )
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


def test_one_word_of_a_sentence_is_misspelt():
    sentences = ["a dog is on it .", *["two letters : the committee runs home ."] * 500]
    printed = script("misspell.py", stdin="".join(f"{line}\n" for line in sentences))
    short, *misspelt = printed.splitlines()
    assert short == sentences[0]
    assert len(misspelt) == 500
    lengths = set()
    for line in misspelt:
        pairs = zip(sentences[1].split(), line.split(), strict=True)
        ((right, wrong),) = ((right, wrong) for right, wrong in pairs if right != wrong)
        assert right in ("letters", "committee", "runs", "home")
        assert wrong[0] == right[0]
        assert set(wrong) <= set(right)
        lengths.add(len(wrong) - len(right))
        assert len(wrong) != len(right) or sorted(wrong) == sorted(right)
    assert lengths == {-1, 0, 1}


@pytest.mark.parametrize("size", ["base", "tiny"])
def test_the_peer_that_is_timed_is_the_papers_model(size, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(ROOT / "docs/notebook")
    import peer_training
    import pytorch_peers

    workload, ours = peer_training.WORKLOADS[size], WORKLOADS[size]
    model = ours.model
    sizes = model.num_layers, model.d_model, model.d_ff, model.num_heads
    assert workload == (*sizes, ours.rows, ours.batch, ours.length)
    peer = pytorch_peers.TorchTransformer(workload)
    weights = sum(weight.numel() for weight in peer.parameters())
    assert weights == flops.trainable_parameters(model, ours.rows)
    positions = np.asarray(sinusoids(ours.length, model.d_model))
    np.testing.assert_allclose(peer.positions, positions, atol=1e-5)
    rates = [m.p for m in peer.modules() if isinstance(m, torch.nn.Dropout)]
    # The embeddings, two sub-layers of each encoder layer and three of each decoder layer; inside
    # the feed-forward layers it is off.
    assert rates.count(0.1) == 1 + 5 * model.num_layers
    assert rates.count(0.0) == 2 * model.num_layers


@pytest.mark.slow
def test_a_peers_training_step_is_timed():
    pytest.importorskip("torch")
    printed = script("peer_training.py", "torch", "tiny", "--bfloat16", "--repeats=1")
    (loss,) = re.fullmatch(
        r"torch tiny bfloat16: [\d,]+ target tokens per second, [\d,]+ ms a step, loss (\S+)\n",
        printed,
    ).groups()
    # 10,000 pieces at random: log(10,000) = 9.2, and a little more for what the model believes.
    assert 9.0 < float(loss) < 10.0


SETTINGS = (
    *("--num_layers=1", "--d_model=32", "--d_ff=64", "--num_heads=2", "--d_k=16", "--d_v=16"),
    *("--vocabulary_size=1000", "--tokens_per_batch=1024", "--held_out_share=0.01"),
    *("--train_steps=40", "--warmup_steps=10", "--weight_decay=0.1", "--checkpoint_steps=10"),
    *("--bpe_dropout=0.1", "--altered_share=0.75"),
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A run of 2,000 generated pairs that is prepared; 30 of its 40 updates alter them.

    Of similar lengths: a step for each length of batches is compiled.
    """
    workdir = tmp_path_factory.mktemp("prepared")
    alike = (p for p in toy_ende.examples("train") if 9 <= len(p["source"].split()) <= 11)
    pairs = list(itertools.islice(alike, 2000))
    for side in ("source", "target"):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (workdir / side).write_text(text, encoding="utf-8")
    files = (f"--{side}_files={workdir / side}" for side in ("source", "target"))
    command = [sys.executable, "-m", "t2t_repro.prepare", "--problem=parallel_text", *files]
    workdir = workdir / "run"
    subprocess.run([*command, *SETTINGS, f"--workdir={workdir}"], check=True, cwd=ROOT)
    return workdir


def test_each_seed_reads_the_whole_text_and_ends_with_its_own_pieces(prepared, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/notebook")
    import many_seeds

    text = many_seeds.Text(prepared)
    assert len(text.lengths) > 2
    train = text.corpus.train()
    sources, _ = train.padded(np.arange(len(train)), 65, 65)
    plain = {row[row > 0].tobytes() for row in sources}

    def is_plain(rows):
        return all(row[row > 0].tobytes() in plain for row in rows if row.any())

    for is_altered in (False, True):
        epoch = text.epoch(1, 0, is_altered)
        rows = [
            row for sources, _ in epoch.values() for row in sources.reshape(-1, sources.shape[2])
        ]
        assert sum(row.any() for row in rows) == len(train)
        assert is_plain(rows) == (not is_altered)
    steps = list(many_seeds.batches_of([1, 2], text))
    assert len(steps) == 40
    for number, (shape, sources, targets) in enumerate(steps):
        expected = 2, text.rows[shape], text.lengths[shape]
        assert sources.shape == targets.shape == expected
        assert not (sources[0] == sources[1]).all()
        assert is_plain(sources.reshape(-1, sources.shape[2])) == (number >= 30)


@pytest.mark.slow
def test_seeds_that_train_together_learn_and_translate(prepared, tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "three.en").write_text("the cat sees the dog\nthe dog\na red house\n")
    out = tmp_path / "out"
    command = [sys.executable, ROOT / "docs/notebook/many_seeds.py", prepared, out]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax"}
    done = subprocess.run(
        [*command, "--seeds", "3", "4", "--translate", tmp_path / "three.en"],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"JAX_PLATFORMS": "cpu"},
    )
    (perplexities,) = re.findall(r"^40: perplexity \[(.*)\]", done.stderr, re.M)
    first, second = map(float, perplexities.split())
    assert first != second
    assert max(first, second) < 700  # of 1,000 pieces, which are about equally likely at first
    outputs = {path.name: path.read_text() for path in out.iterdir()}
    assert set(outputs) == {"three.en.3", "three.en.4", "three.en.3+4"}
    assert all(text.count("\n") == 3 for text in outputs.values())


def test_seeds_are_compared_by_captions(tmp_path):
    random = np.random.default_rng(0)
    words = ["ein", "hund", "katze", "haus", "läuft", "steht", "rot", "blau", "und", "auf"]
    reference = [" ".join(random.choice(words, 8)) for _ in range(200)]

    def worse(share):
        """Return the reference with a share of its lines shuffled."""
        lines = (line.split() for line in reference)
        return [" ".join(random.permutation(x) if random.random() < share else x) for x in lines]

    shares = {"a1": 0.5, "a2": 0.5, "b1": 0.1, "b2": 0.1}
    systems = {"reference": reference} | {name: worse(share) for name, share in shares.items()}
    for name, lines in systems.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    reference_file, *files = (tmp_path / name for name in systems)
    seeds = ["--first", *files[:2], "--second", *files[2:]]
    printed = script("compare_seeds.py", reference_file, *seeds)
    expected = {}
    for system in "ab":
        outputs = [line for seed in "12" for line in systems[f"{system}{seed}"]]
        references = [reference * 2]
        bleu = sacrebleu.corpus_bleu(outputs, references, tokenize="none", force=True).score
        chrf = sacrebleu.corpus_chrf(outputs, references).score
        expected[system] = f"{bleu:.2f}", f"{chrf:.2f}"
    for row, one, other in zip(printed.splitlines(), expected["a"], expected["b"], strict=True):
        assert row.split()[1:3] == [one, f"{other},"]
        assert row.endswith("p 0.0000")
    reference_file.write_text("\n".join([*reference, "one more"]), encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError):
        script("compare_seeds.py", reference_file, *seeds)
