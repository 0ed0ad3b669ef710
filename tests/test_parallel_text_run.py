"""A run of parallel_text, from a user's files to scores."""

import gzip
import json
from itertools import islice

import commands
import numpy as np
import pytest

from pipelines.shards import EncodedSplit
from pipelines.sources import parallel_text
from pipelines.toy import toy_ende

pytestmark = pytest.mark.slow
SIZE = [
    *("--num_layers=1", "--d_model=16", "--d_ff=16", "--num_heads=2", "--d_k=8", "--d_v=8"),
    *("--vocabulary_size=400", "--tokens_per_batch=512", "--held_out_share=0.1"),
    *("--train_steps=3", "--checkpoint_steps=3", "--eval_sentences=4", "--beam_size=1"),
]
PAIRS = [(pair["source"], pair["target"]) for pair in islice(toy_ende.examples("train"), 400)]


def made(command, folder, name, *flags):
    """Prepare or train a run and return its work directory."""
    workdir = folder / name
    given = ["--problem=parallel_text", f"--workdir={workdir}", *SIZE, *flags]
    assert commands.call(command, *given) == 0
    return workdir


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of two source files, two gzipped target files, and the same pairs as TSV."""
    folder = tmp_path_factory.mktemp("parallel_text")
    for name, pairs in (("first", PAIRS[:250]), ("second", PAIRS[250:])):
        source, target = (
            "".join(f"{line}\n" for line in side) for side in zip(*pairs, strict=True)
        )
        (folder / f"{name}.en").write_text(source, encoding="utf-8")
        (folder / f"{name}.de.gz").write_bytes(gzip.compress(target.encode()))
    lines = (f"{source}\t{target}\r\n" for source, target in PAIRS)
    (folder / "all.tsv").write_bytes("".join(lines).encode())
    return folder


@pytest.fixture(scope="module")
def aligned(folder):
    sources = [str(folder / f"{name}.en") for name in ("first", "second")]
    targets = [str(folder / f"{name}.de.gz") for name in ("first", "second")]
    files = ("--source_files", *sources, "--target_files", *targets)
    return made("train", folder, "aligned", *files)


@pytest.fixture(scope="module")
def tab_separated(folder):
    return made("prepare", folder, "tab_separated", f"--tsv_files={folder / 'all.tsv'}")


def prepared(workdir):
    return {
        f"{path.parent.name}/{path.stem}": np.load(path).tolist()
        for path in workdir.glob("prepared/*/*.npy")
    }


def split_off(folder, split):
    pairs = parallel_text.examples(
        split,
        source_files=(),
        target_files=(),
        tsv_files=[folder / "all.tsv"],
        dev_source_files=(),
        dev_target_files=(),
        test_source_files=(),
        test_target_files=(),
        held_out_share=0.1,
    )
    return [(pair["source"], pair["target"]) for pair in pairs]


def test_both_kinds_of_files_make_the_same_run(aligned, tab_separated):
    model = "vocabulary.model"
    assert (aligned / model).read_bytes() == (tab_separated / model).read_bytes()
    assert prepared(aligned) == prepared(tab_separated)
    assert (aligned / "checkpoints/step-3.index").exists()


def test_a_share_is_split_off_for_dev_and_for_test(folder, aligned):
    splits = {split: split_off(folder, split) for split in ("train", "dev", "test")}
    assert sorted(pair for pairs in splits.values() for pair in pairs) == sorted(PAIRS)
    for split in ("train", "dev"):
        (directory,) = aligned.glob(f"prepared/{split}*")
        assert len(EncodedSplit.load(directory)) == len(splits[split])
    assert 20 < len(splits["dev"]) < 60


def test_evaluate(folder, aligned, capsys):
    scores = {}
    for split in ("test", "dev"):
        capsys.readouterr()
        flags = f"--workdir={aligned}", f"--split={split}", "--json", "--ter"
        assert commands.call("evaluate", *flags) == 0
        scores[split] = json.loads(capsys.readouterr().out)
        assert scores[split]["lines"] == len(split_off(folder, split))
        assert 0 < scores[split]["perplexity"] < 1000
        assert scores[split]["ter"] > 50
    assert scores["test"]["perplexity"] != scores["dev"]["perplexity"]
    results = json.loads((aligned / "results.json").read_text())
    assert results.pop("cost")
    assert results == scores
