"""A run that starts from another one: its weights, its vocabulary, and then its own way."""

import dataclasses
import shutil
from itertools import islice
from types import SimpleNamespace

import commands
import numpy as np
import pytest
import tensorflow as tf

from pipelines.errors import BadInput
from pipelines.toy import toy_ende
from t2t_repro import config as configs
from t2t_repro import experiment, launch
from t2t_repro.training.init_from import OtherRun
from t2t_repro.workdir import Workdir

pytestmark = pytest.mark.slow
SIZE = [
    *("--problem=parallel_text", "--num_layers=1", "--d_model=8", "--d_ff=16", "--num_heads=2"),
    *("--d_k=4", "--d_v=4", "--embedding_rows=none", "--vocabulary_size=400"),
    *("--tokens_per_batch=512", "--held_out_share=0.1", "--warmup_steps=20"),
    *("--checkpoint_steps=1", "--eval_share=1", "--eval_sentences=0", "--beam_size=1"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two texts, of which "other" is learnt in 3 steps."""
    folder = tmp_path_factory.mktemp("init_from")
    for name, first in (("other", 0), ("own", 300)):
        pairs = islice(toy_ende.examples("train"), first, first + 300)
        lines = (f"{pair['source']}\t{pair['target']}\n" for pair in pairs)
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    assert train(folder, "other", "--train_steps=3", "--average_last=2") == 0
    return folder


def train(folder, name, *flags):
    text = f"--tsv_files={folder / name}.tsv"
    return commands.call("train", f"--workdir={folder / name}", text, *SIZE, *flags)


def weights(folder, name, *steps):
    """Return the mean over checkpoints of each weight, by name."""
    readers = [
        tf.train.load_checkpoint(str(folder / name / f"checkpoints/step-{n}")) for n in steps
    ]
    names = [n for n in readers[0].get_variable_to_shape_map() if n.startswith("weights/")]
    return {n: np.mean([reader.get_tensor(n) for reader in readers], axis=0) for n in names}


def test_weights_and_vocabulary_come_from_there_and_are_needed_once(folder, capsys):
    flags = ("--init_from", folder / "other", "--freeze=embedding,encoder", "--ema=0.5")
    # Another seed: without --init_from the weights would begin elsewhere.
    flags = (*map(str, flags), "--keep_best=1", "--keep_checkpoints=1", "--seed=2")
    assert train(folder, "own", "--train_steps=2", *flags) == 0
    for name in ("vocabulary.model", "vocabulary.vocab"):
        assert (folder / "own" / name).read_bytes() == (folder / "other" / name).read_bytes()
    shutil.move(folder / "other", folder / "away")
    assert train(folder, "own", "--train_steps=4", *flags) == 0
    before, after = weights(folder, "away", 2, 3), weights(folder, "own", 4)
    assert before.keys() == after.keys()
    for name, value in before.items():
        is_frozen = "embedding" in name or "encoder_" in name
        np.testing.assert_allclose(after[name], value, rtol=1e-6, atol=0 if is_frozen else 0.1)
        assert is_frozen or "key.Sbias" in name or np.abs(after[name] - value).max() > 1e-6
    capsys.readouterr()
    for checkpoint in ("best", "last", "4"):
        run = (f"--workdir={folder / 'own'}", f"--checkpoint={checkpoint}")
        assert commands.call("translate", *run, stdin=b"hello\n") == 0
        assert "weights: step-" in capsys.readouterr().err
    shutil.move(folder / "away", folder / "other")


def test_checkpoints_from_before_a_cooldown_are_not_averaged(folder):
    """As `evaluate` does it: of steps 2, 3 and 4 only the last is in the cool-down."""
    flags = "--train_steps=4", "--cooldown_share=0.25", "--average_last=3"
    shutil.copy(folder / "other.tsv", folder / "cooled.tsv")
    assert train(folder, "cooled", *flags) == 0
    run = experiment.restore(Workdir(folder / "cooled"), {}, checkpoint="2")
    assert OtherRun(folder / "cooled").check_shape(run.config.model) is None
    OtherRun(folder / "cooled").copy_weights(run.model, run.vocabulary, strict=True)
    matrix = run.model.embedding.matrix.numpy()
    (expected,) = (
        value for name, value in weights(folder, "cooled", 4).items() if value.shape == matrix.shape
    )
    np.testing.assert_array_equal(matrix, expected)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--d_ff=20"], "another shape; give --d_ff=16 (got: d_ff 20)"),
        (["--vocabulary=any"], "--vocabulary with --init_from: "),
        (["--freeze=encodr"], "no part is called 'encodr'; wanted some of embedding, encoder"),
    ],
)
def test_what_does_not_suit_is_refused_and_leaves_no_run(folder, capsys, flags, message):
    start = f"--init_from={folder / 'other'}"
    shutil.copy(folder / "own.tsv", folder / "refused.tsv")
    capsys.readouterr()
    assert train(folder, "refused", start, *flags) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (folder / "refused" / "config.yaml").exists()


def test_another_dropout_is_no_other_shape(folder):
    other = OtherRun(folder / "other")
    model = Workdir(other.path).config().model
    other.check_shape(dataclasses.replace(model, dropout=0.3, attention_dropout=0.2))


def test_weights_are_not_copied_for_another_vocabulary(folder):
    """As where that run has been made anew since this one took over its vocabulary."""
    run = experiment.restore(Workdir(folder / "other"), {})
    vocabulary = SimpleNamespace(fingerprint="another")
    with pytest.raises(BadInput, match="is not the vocabulary that this run took over from there"):
        OtherRun(folder / "other").copy_weights(run.model, vocabulary, strict=True)


def settings_of(flags):
    pairs = (flag[2:].split("=") for flag in flags if "problem" not in flag)
    return {name: configs.parse(name, value) for name, value in pairs}


def prepare(workdir, given):
    experiment.prepare(configs.resolve("parallel_text", overrides=given), workdir)


def begin_with_two_workers(workdir, given):
    chief = SimpleNamespace(size=2, by_chief=lambda action: action())
    launch.agree_on_config("parallel_text", None, workdir, given, chief)


@pytest.mark.parametrize("start", [prepare, begin_with_two_workers])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("d_ff", 20, "another shape; give --d_ff=16"),
        ("freeze", "encodr", "no part is called 'encodr'"),
        ("embedding_rows", 100, "embedding_rows: wanted at least the vocabulary's"),
    ],
)
def test_what_does_not_suit_is_refused_before_a_run_is_written(
    folder, tmp_path, start, name, value, message
):
    """Otherwise the flag that the error asks for would be refused next."""
    given = settings_of(SIZE)
    given |= {"init_from": str(folder / "other")} if name == "d_ff" else {}
    given |= {name: value, "tsv_files": [f"{folder}/own.tsv"]}
    with pytest.raises(BadInput, match=message):
        start(Workdir(tmp_path), given)
    assert not Workdir(tmp_path).holds_run


def test_the_chief_aligns_the_words_for_all_workers(folder, tmp_path):
    chief = SimpleNamespace(size=2, names=["chief", "worker 1"], by_chief=lambda action: action())
    chief.share = lambda *values: SimpleNamespace(numpy=lambda: np.array([values, values]))
    given = settings_of(SIZE) | {"auxiliary_tasks": True, "tsv_files": [f"{folder}/own.tsv"]}
    launch.agree_on_config("parallel_text", None, Workdir(tmp_path), given, chief)
    assert list((tmp_path / "prepared").glob("links-*"))
