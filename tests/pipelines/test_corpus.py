"""A run's vocabulary and splits are made once, shared by runs, never mixed with another text's."""

import dataclasses
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

from pipelines import corpus as corpus_module
from pipelines import encode
from pipelines.errors import BadInput
from pipelines.vocabulary import Vocabulary
from t2t_repro import config as configs
from t2t_repro import experiment, run_text
from t2t_repro.distributed.strategy import default_strategy
from t2t_repro.problems import PROBLEMS
from t2t_repro.workdir import Workdir

SENTENCES = [f"{animal} number {n} sees {n + 7} dogs" for n in range(40) for animal in ("a", "b")]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.fixture
def text(tmp_path):
    """Write 80 pairs, of which about 16 are held out, and return their settings."""
    source = write(tmp_path / "text.en", SENTENCES)
    target = write(tmp_path / "text.de", [line.upper() for line in SENTENCES])
    return {"source_files": [source], "target_files": [target], "held_out_share": 0.2}


def corpus(workdir, text, **changes):
    settings = {"vocabulary_size": 320} | text | changes
    config = configs.resolve("parallel_text", overrides=settings)
    return run_text.corpus_of(config, Workdir(workdir))


def begin(of):
    """Write the file that a run writes once all text is read."""
    of.train()
    (of.workdir / "config.yaml").touch()


def not_again(*_):
    pytest.fail("the text was read again")


def replace_examples(monkeypatch, examples):
    changed = dataclasses.replace(PROBLEMS["parallel_text"], examples=examples)
    monkeypatch.setitem(PROBLEMS, "parallel_text", changed)


def test_vocabulary_is_learnt_once_on_training_text_alone(tmp_path, text, monkeypatch):
    first = corpus(tmp_path / "run", text)
    begin(first)
    assert first.vocabulary.size == 320
    replace_examples(monkeypatch, not_again)
    again = corpus(tmp_path / "run", text)
    assert again.vocabulary.fingerprint == first.vocabulary.fingerprint
    assert again.train().report() == first.train().report()

    monkeypatch.undo()
    pairs = first.examples("train")
    own = Vocabulary.learn((pair[side] for pair in pairs for side in ("source", "target")), 320)
    assert own.fingerprint == first.vocabulary.fingerprint


def test_killed_start_keeps_its_vocabulary(tmp_path, text, monkeypatch):
    fingerprint = corpus(tmp_path / "run", text).vocabulary.fingerprint
    monkeypatch.setattr(Vocabulary, "learn", not_again)
    again = corpus(tmp_path / "run", text)
    assert again.vocabulary.fingerprint == fingerprint
    assert len(again.train()) == again.train().manifest["pairs"] > 40


def test_text_is_read_for_the_vocabulary_and_for_the_split_alone(tmp_path, text):
    of, reads = corpus(tmp_path / "run", text), []
    examples = of.examples
    of.examples = lambda split: reads.append(split) or examples(split)
    of.prepare_train()
    pairs = [of.vocabulary.encode([pair["source"], pair["target"]]) for pair in examples("train")]
    source, target = (sum(map(len, side)) for side in zip(*pairs, strict=True))
    assert of.length_ratio() == target / source
    assert len(of.train()) == len(pairs)
    assert reads == ["train", "train"]


def test_a_split_that_is_a_link_elsewhere_is_no_hindrance(tmp_path, text):
    corpus(tmp_path / "run", text).prepare_train()
    (split,) = (tmp_path / "run" / "prepared").glob("train-*")
    split.rename(tmp_path / "elsewhere")
    split.symlink_to(tmp_path / "elsewhere")
    corpus(tmp_path / "run", text, vocabulary_size=300).prepare_train()
    (new,) = (tmp_path / "run" / "prepared").glob("train-*")
    assert new.name != split.name
    assert list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("change", ["text", "vocabulary_size"])
def test_failed_start_with_something_else_leaves_nothing_behind(tmp_path, text, change):
    corpus(tmp_path / "run", text).train()
    changes = {}
    if change == "text":
        write(Path(text["source_files"][0]), [f"the {line}" for line in SENTENCES])
    else:
        changes = {"vocabulary_size": 300}
    second = corpus(tmp_path / "run", text, **changes)
    fresh = corpus(tmp_path / "fresh", text, **changes)
    assert second.train().manifest == fresh.train().manifest
    assert second.vocabulary.fingerprint == fresh.vocabulary.fingerprint


def test_a_corpus_of_an_earlier_version_lacks_settings_that_were_off(tmp_path, text):
    shared = tmp_path / "shared"
    corpus(tmp_path / "first", text, prepared_dir=str(shared)).train()
    described = json.loads((shared / "corpus.json").read_text())
    for name in ("spell_words", "altered_copies"):
        assert not described.pop(name)
    described["own_dev_files"] = described.pop("dev_source_files")
    described["extra_trees"] = described.pop("extra_tree_files")
    (shared / "corpus.json").write_text(json.dumps(described))
    assert corpus(tmp_path / "second", text, prepared_dir=str(shared)).train()
    with pytest.raises(BadInput, match=r"spell_words: True \(there not set\)"):
        corpus(tmp_path / "third", text, prepared_dir=str(shared), spell_words=True).train()
    described["own_dev_files"] = True
    (shared / "corpus.json").write_text(json.dumps(described))
    with pytest.raises(BadInput, match=r"dev_source_files: False \(there True\)"):
        corpus(tmp_path / "fourth", text, prepared_dir=str(shared)).train()


@pytest.mark.parametrize("scheme", ["{folder}/shared", "{folder}/shared/", "ram://{name}"])
def test_runs_share_a_prepared_dir(tmp_path, text, monkeypatch, scheme):
    shared = scheme.format(folder=tmp_path, name=tmp_path.name)
    first = corpus(tmp_path / "first", text, prepared_dir=shared)
    begin(first)
    monkeypatch.setattr(Vocabulary, "learn", not_again)
    monkeypatch.setattr(corpus_module, "encode_split", not_again)
    second = corpus(tmp_path / "second", text, prepared_dir=shared)
    assert second.train().manifest == first.train().manifest
    for name in ("vocabulary.model", "corpus.json"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    assert (tmp_path / "second/prepared").exists() == shared.startswith("ram")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"vocabulary_size": 300}, "vocabulary_size: 300 (there 320)"),
        ({"max_length": 9}, "max_length: 9 (there 256)"),
        ({"held_out_share": 0.1}, "held_out_share: 0.1 (there 0.2)"),
        (
            {"test_source_files": ["d"], "test_target_files": ["e"]},
            "test_source_files: True (there F",
        ),
        ({"tokenized": True}, "tokenized: True (there False)"),
        ({"spell_words": True}, "spell_words: True (there False)"),
        ({"altered_copies": 1}, "altered_copies: 1 (there 0)"),
        (
            {"dev_source_files": ["d"], "dev_target_files": ["e"]},
            "dev_source_files: True (there Fa",
        ),
    ],
)
def test_shared_corpus_of_other_settings_is_refused(tmp_path, text, changes, told):
    shared = str(tmp_path / "shared")
    corpus(tmp_path / "first", text, prepared_dir=shared).train()
    before = {path: path.read_bytes() for path in Path(shared).rglob("*") if path.is_file()}
    with pytest.raises(BadInput) as error:
        corpus(tmp_path / "second", text | changes, prepared_dir=shared).train()
    assert told in str(error.value)
    assert before == {path: path.read_bytes() for path in Path(shared).rglob("*") if path.is_file()}


def test_another_problem(tmp_path, text):
    shared = str(tmp_path / "shared")
    corpus(tmp_path / "first", text, prepared_dir=shared).train()
    same = {"vocabulary_size": 320, "prepared_dir": shared} | text
    other = run_text.corpus_of(configs.resolve("toy_ende", overrides=same), Workdir(tmp_path))
    with pytest.raises(BadInput, match=r"problem: toy_ende \(there parallel_text\)"):
        other.train()


def test_shared_corpus_of_another_text_is_refused(tmp_path, text):
    shared = str(tmp_path / "shared")
    corpus(tmp_path / "first", text, prepared_dir=shared).train()
    write(Path(text["source_files"][0]), [f"the {line}" for line in SENTENCES])
    with pytest.raises(BadInput, match="holds another text; use another directory"):
        corpus(tmp_path / "second", text, prepared_dir=shared).train()


def test_run_resumes_in_a_shared_directory_of_another_vocabulary(tmp_path, text):
    """Each run has its own split there, named after its vocabulary."""
    shared = str(tmp_path / "shared")
    first = corpus(tmp_path / "first", text)
    begin(first)
    corpus(tmp_path / "second", text, vocabulary_size=300, prepared_dir=shared).train()
    moved = corpus(tmp_path / "first", text, vocabulary_size=300, prepared_dir=shared)
    assert moved.train().manifest == first.train().manifest
    assert len(list(Path(shared).glob("prepared/train-*"))) == 2


@pytest.mark.parametrize("file", ["", "vocabulary.model"])
def test_vocabulary_of_another_run(tmp_path, text, monkeypatch, file):
    first = corpus(tmp_path / "first", text)
    begin(first)
    write(Path(text["source_files"][0]), [f"the {line}" for line in SENTENCES])
    monkeypatch.setattr(Vocabulary, "learn", not_again)
    shared = str(tmp_path / "shared")
    given = text | {"vocabulary": str(tmp_path / "first" / file), "prepared_dir": shared}
    second = corpus(tmp_path / "second", given, vocabulary_size=999)
    assert second.train().manifest["vocabulary"] == first.vocabulary.fingerprint
    begin(second)
    corpus(tmp_path / "same", given, vocabulary_size=500).train()  # the size has no effect
    shutil.rmtree(tmp_path / "first")  # a run that has begun has its own copy
    assert len(corpus(tmp_path / "second", given, vocabulary_size=999).train()) > 40

    with pytest.raises(BadInput, match=r"given_vocabulary: None \(there [0-9a-f']+"):
        corpus(tmp_path / "third", text, vocabulary_size=999, prepared_dir=shared).train()
    with pytest.raises(BadInput, match=r"vocabulary of .* cannot be read \(No such file"):
        corpus(tmp_path / "fourth", given).train()


def test_runs_with_other_filters_have_other_splits(tmp_path, text):
    for side in ("source_files", "target_files"):
        write(Path(text[side][0]), Path(text[side][0]).read_text().splitlines() * 2)
    shared = {"prepared_dir": str(tmp_path / "shared")}
    plain = corpus(tmp_path / "plain", text | shared).train()
    with pytest.raises(BadInput, match=r"drop_duplicates: True \(there False\)"):
        corpus(tmp_path / "filtered", text | shared, drop_duplicates=True).train()
    of = corpus(tmp_path / "filtered", text, drop_duplicates=True)
    filtered = of.train()
    assert len(filtered) + filtered.manifest["dropped"]["repeated"] == len(plain)
    assert len(filtered) < 0.7 * len(plain)
    assert of._train_directory != corpus(tmp_path / "filtered", text)._train_directory
    dev, same = (of.held_out("dev"), corpus(tmp_path / "plain", text).held_out("dev"))
    assert len(dev) == len(same)


def test_text_in_another_order_is_prepared_anew(tmp_path, text):
    """The vocabulary of the reordered text is the same."""
    first = corpus(tmp_path / "run", text)
    first.train()
    for flag in ("source_files", "target_files"):
        path = Path(text[flag][0])
        write(path, path.read_text().splitlines()[::-1])
    second = corpus(tmp_path / "run", text)
    assert second.vocabulary.fingerprint == first.vocabulary.fingerprint
    assert second.train().manifest == corpus(tmp_path / "fresh", text).train().manifest
    assert len(list(tmp_path.glob("run/prepared/train-*"))) == 1


def test_begun_run_takes_no_other_text(tmp_path, text):
    """This holds even if the encoded text is gone; with the old text back, the run resumes."""
    first = corpus(tmp_path / "run", text)
    begin(first)
    before = first.train().manifest
    shutil.rmtree(tmp_path / "run/prepared")
    path = Path(text["source_files"][0])
    own = path.read_text().splitlines()
    write(path, [f"the {line}" for line in own])
    for _ in range(2):
        with pytest.raises(BadInput, match="the training text is not the text that"):
            corpus(tmp_path / "run", text).train()
    write(path, own)
    assert corpus(tmp_path / "run", text).train().manifest == before


@pytest.mark.parametrize("shared", [False, True])
def test_another_text_replaces_no_good_shard_when_one_is_damaged(
    tmp_path, text, monkeypatch, shared
):
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 16)
    where = {"prepared_dir": str(tmp_path / "shared")} if shared else {}
    begin(corpus(tmp_path / "run", text, **where))
    (folder,) = (tmp_path / ("shared" if shared else "run")).glob("prepared/train-*")
    damaged = folder / "shard-00001.ids.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    files = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(files) > 9
    write(Path(text["source_files"][0]), [f"the {line}" for line in SENTENCES])
    with pytest.raises(BadInput, match="the training text is not the text that"):
        corpus(tmp_path / "run", text, **where).train()
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


def test_a_report_is_on_the_text_of_the_run(tmp_path, text):
    begin(corpus(tmp_path / "run", text))
    pairs = corpus(tmp_path / "run", text).report().pairs["all"]
    assert pairs > 9
    write(Path(text["source_files"][0]), [f"the {line}" for line in SENTENCES])
    with pytest.raises(BadInput, match="the training text is not the text that"):
        corpus(tmp_path / "run", text).report()


def test_begun_run_without_its_description(tmp_path, text):
    begin(corpus(tmp_path / "run", text))
    (tmp_path / "run/corpus.json").unlink()
    with pytest.raises(BadInput, match=r"corpus\.json: missing; copy it back"):
        corpus(tmp_path / "run", text).train()
    (tmp_path / "run/corpus.json").write_text("{")
    with pytest.raises(BadInput, match=r"corpus\.json: damaged"):
        corpus(tmp_path / "run", text).train()


def test_text_that_changes_between_vocabulary_and_shards_is_noticed(tmp_path, text):
    of = corpus(tmp_path / "run", text)
    assert of.vocabulary
    write(Path(text["source_files"][0]), [f"the {line}" for line in SENTENCES])
    with pytest.raises(BadInput, match="the training text is not the text that"):
        of.train()


def test_prepared_dir_without_its_vocabulary(tmp_path, text):
    shared = tmp_path / "shared"
    corpus(tmp_path / "first", text, prepared_dir=str(shared)).train()
    (shared / "vocabulary.model").unlink()
    with pytest.raises(BadInput, match=r"no vocabulary\.model beside corpus\.json"):
        corpus(tmp_path / "second", text, prepared_dir=str(shared)).train()


def test_held_out_text_has_the_decoders_limit(tmp_path, text):
    of = corpus(tmp_path / "run", text, max_length=12)
    assert of.held_out("dev").lengths.max() > 12
    short = corpus(tmp_path / "run", text, max_length=12, max_source_length=9)
    with pytest.raises(BadInput, match="longer than 9 pieces"):
        short.held_out("dev")


@pytest.mark.parametrize(
    "make",
    [lambda of: of.train(), lambda of: list(Path(of.prepare_train()).iterdir())],
    ids=["train", "prepare"],
)
def test_damaged_split_is_made_again_from_the_text(tmp_path, text, capsys, make):
    of = corpus(tmp_path / "run", text)
    begin(of)
    (lengths,) = tmp_path.glob("run/prepared/train-*/*.lengths.npy")
    expected = lengths.read_bytes()
    lengths.write_bytes(expected[:-1] + b"x")  # as long as before
    waiting = dataclasses.replace(corpus(tmp_path / "run", text), read_only=True)
    with pytest.raises(BadInput, match=r"lengths\.npy: damaged .*run the same command again"):
        waiting.train()
    Path(text["source_files"][0]).rename(tmp_path / "away")
    with pytest.raises(BadInput, match=r"text\.en: no such file"):
        corpus(tmp_path / "run", text).train()
    told = capsys.readouterr().err
    assert "lengths.npy: damaged (checksum" in told
    assert "reading the training text to make it again" in told
    (tmp_path / "away").rename(text["source_files"][0])
    assert len(make(corpus(tmp_path / "run", text)))
    assert lengths.read_bytes() == expected


def test_a_vocabulary_that_is_not_the_described_one(tmp_path, text):
    begin(corpus(tmp_path / "run", text))
    corpus(tmp_path / "other", text, vocabulary_size=300).train()
    shutil.copy(tmp_path / "other/vocabulary.model", tmp_path / "run")
    with pytest.raises(BadInput, match=r"run/vocabulary\.model: not the vocabulary that corpus"):
        corpus(tmp_path / "run", text).train()


@pytest.mark.parametrize("content", [b"null", b"[]", b"3", b"{}", b'{"text": 3}', b"[" * 100_000])
def test_a_damaged_description(tmp_path, text, content):
    """A failed start begins anew; a run and a shared directory say what is damaged."""
    shared = tmp_path / "shared"
    for place, options in (("new", {}), ("run", {}), ("user", {"prepared_dir": str(shared)})):
        corpus(tmp_path / place, text, **options).train()
    for folder in ("new", "run", "shared"):
        (tmp_path / folder / "corpus.json").write_bytes(content)
    (tmp_path / "run/config.yaml").touch()
    assert corpus(tmp_path / "new", text).train()
    with pytest.raises(BadInput, match=r"run/corpus\.json: damaged \("):
        corpus(tmp_path / "run", text).train()
    with pytest.raises(BadInput, match=r"shared/corpus\.json: damaged \("):
        corpus(tmp_path / "second", text, prepared_dir=str(shared)).train()


def test_held_out_text_is_not_trained_on(tmp_path, text):
    of = corpus(tmp_path / "run", text)
    counts = [len(of.train()), *(len(of.held_out(s)) for s in ("dev", "test"))]
    assert sum(counts) == 80
    assert min(counts) > 5


# The command


def prepare(*flags):
    return subprocess.run(
        [sys.executable, "-m", "t2t_repro.prepare", "--problem=parallel_text", *flags],
        cwd=ROOT,
        env={name: v for name, v in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.parametrize("beam", [False, True])
def test_prepare_does_all_that_train_does_before_its_first_step(tmp_path, text, beam):
    packed = tmp_path / "text.en.gz"
    packed.write_bytes(gzip.compress(Path(text["source_files"][0]).read_bytes()))
    workdir = tmp_path / "run"
    ended = prepare(
        f"--workdir={workdir}",
        f"--source_files={packed}",
        f"--target_files={text['target_files'][0]}",
        "--held_out_share=0.2",
        "--vocabulary_size=320",
        *(["--beam_pipeline_options=runner=DirectRunner"] if beam else []),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
    assert f"now: python -m t2t_repro.train --workdir={workdir}" in ended.stderr
    of = run_text.corpus_of(Workdir(workdir).config(), Workdir(workdir))
    assert of.is_settled
    fresh = corpus(tmp_path / "fresh", text)
    assert of.train().manifest == fresh.train().manifest
    assert json.loads((workdir / "prepared/dev/manifest.json").read_text())["pairs"] > 5


@pytest.mark.slow
def test_unknown_beam_runner(tmp_path, text):
    ended = prepare(
        f"--workdir={tmp_path / 'run'}",
        f"--source_files={text['source_files'][0]}",
        f"--target_files={text['target_files'][0]}",
        "--vocabulary_size=320",
        "--beam_pipeline_options=runner=Nothing",
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("error: --beam_pipeline_options: Unexpected")


def test_initial_weights_are_of_the_seed_alone(tmp_path, text, monkeypatch):
    """Reading may draw random numbers, as TFDS does when it prepares text."""
    examples = PROBLEMS["parallel_text"].examples

    def drawing(*given):
        random.random()
        np.random.random()
        return examples(*given)

    size = {"num_layers": 1, "d_model": 8, "d_ff": 8, "embedding_rows": None}
    settings = configs.resolve("parallel_text", overrides={"vocabulary_size": 320} | text | size)

    def weights():
        return experiment.build(
            settings, Workdir(tmp_path / "run"), default_strategy()
        ).model.get_weights()

    expected = weights()
    replace_examples(monkeypatch, drawing)
    for ours, theirs in zip(weights(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
