"""A split as ids on disk: what is dropped, what is reused, and what a kill leaves behind."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import BadInput
from pipelines.prepare import prepare
from pipelines.vocabulary import Vocabulary

PAIRS = [
    {"source": "The cat sees the dog.", "target": "Die Katze sieht den Hund."},
    {"source": "The dog sleeps.", "target": "Der Hund schläft."},
    {"source": "A cat sees a cat.", "target": "Eine Katze sieht eine Katze."},
]


@pytest.fixture(scope="module")
def vocabulary():
    return learn(size=300)


def learn(size):
    return Vocabulary.learn([text for pair in PAIRS for text in pair.values()], size)


def once(pairs):
    """Examples that may be read; reading `never` fails the test."""
    return iter(pairs)


def never():
    pytest.fail("the examples were read again")
    yield


def sentences(side):
    """The ids of every sentence of a side."""
    return [ids.tolist() for ids in np.split(side.tokens, side.offsets[1:-1])]


# What is kept


def test_ids_are_those_of_the_vocabulary(tmp_path, vocabulary):
    prepared = prepare(once(PAIRS), vocabulary, 99, tmp_path / "train")
    assert len(prepared) == 3
    for side in ("source", "target"):
        expected = vocabulary.encode([pair[side] for pair in PAIRS])
        assert sentences(getattr(prepared, side)) == expected
        assert getattr(prepared, side).lengths.tolist() == [len(ids) for ids in expected]


def test_pairs_are_dropped_counted_and_reported_by_reason(tmp_path, vocabulary):
    empty = [{"source": "", "target": "Ein Hund."}, {"source": "A dog.", "target": " \t "}]
    long = [{"source": "cat " * 50, "target": "Katze"}]
    prepared = prepare(once([*empty, *PAIRS, *long]), vocabulary, 40, tmp_path / "train")
    assert sentences(prepared.source) == vocabulary.encode([pair["source"] for pair in PAIRS])
    report = prepared.report()
    assert report.endswith("dropped: 2 with an empty side, 1 longer than 40 pieces")
    assert report.startswith(f"3 pairs, {len(prepared.source.tokens)} source and ")


def test_nothing_dropped_is_reported(tmp_path, vocabulary):
    assert prepare(PAIRS, vocabulary, 99, tmp_path / "train").report().endswith("dropped: none")


@pytest.mark.parametrize("side", ["source", "target"])
def test_max_length_counts_eos_and_is_allowed(tmp_path, vocabulary, side):
    other = {"source": "target", "target": "source"}[side]
    pair = {side: "The cat sees the dog.", other: "dog"}
    (ids,) = vocabulary.encode([pair[side]])
    assert len(prepare([pair], vocabulary, len(ids), tmp_path / "fits")) == 1
    with pytest.raises(BadInput):
        prepare([pair], vocabulary, len(ids) - 1, tmp_path / "does not")


def test_no_pair_left(tmp_path, vocabulary):
    with pytest.raises(BadInput, match="no sentence pair is left, dropped: 1 with an empty side"):
        prepare([{"source": "", "target": "x"}], vocabulary, 99, tmp_path / "train")
    assert not list(tmp_path.iterdir())


# How it is kept


def test_ids_stay_on_disk(tmp_path, vocabulary):
    prepared = prepare(PAIRS, vocabulary, 99, tmp_path / "train")
    for side in (prepared.source, prepared.target):
        assert isinstance(side.tokens, np.memmap)
        assert isinstance(side.offsets, np.memmap)


@pytest.mark.parametrize(("size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_ids_take_two_bytes_if_they_fit(tmp_path, size, dtype):
    class Wide:
        """A vocabulary that uses its largest id."""

        fingerprint = "wide"

        def encode(self, sentences):
            return [[size - 1, 1] for _ in sentences]

    Wide.size = size
    prepared = prepare(PAIRS, Wide(), 99, tmp_path / "train")
    assert prepared.source.tokens.dtype == dtype
    assert prepared.source.tokens.tolist() == 3 * [size - 1, 1]


# Once is enough


def test_same_settings_read_what_is_there(tmp_path, vocabulary):
    first = prepare(once(PAIRS), vocabulary, 99, tmp_path / "train")
    second = prepare(never(), vocabulary, 99, tmp_path / "train")
    assert sentences(second.target) == sentences(first.target)
    assert second.report() == first.report()


def test_another_max_length_prepares_anew(tmp_path, vocabulary):
    prepare(PAIRS, vocabulary, 99, tmp_path / "train")
    both = [vocabulary.encode(list(pair.values())) for pair in PAIRS]
    shortest, *_ = sorted(max(len(ids) for ids in pair) for pair in both)
    assert len(prepare(PAIRS, vocabulary, shortest, tmp_path / "train")) == 1


def test_another_vocabulary_prepares_anew(tmp_path, vocabulary):
    prepare(PAIRS, vocabulary, 99, tmp_path / "train")
    other = learn(size=290)
    prepared = prepare(PAIRS, other, 99, tmp_path / "train")
    assert sentences(prepared.source) == other.encode([pair["source"] for pair in PAIRS])


# What a kill or a full disk leaves


def truncate(path):
    path.write_bytes(path.read_bytes()[:-2])


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [os.remove, truncate, empty])
@pytest.mark.parametrize("name", ["manifest.json", "source_tokens.npy", "target_offsets.npy"])
def test_damaged_folder_is_prepared_anew(tmp_path, vocabulary, name, damage):
    expected = sentences(prepare(PAIRS, vocabulary, 99, tmp_path / "train").source)
    damage(tmp_path / "train" / name)
    assert sentences(prepare(PAIRS, vocabulary, 99, tmp_path / "train").source) == expected


# Kills itself when the sides are written and the manifest is not yet.
KILLED = """
import json, os, signal, sys
from pathlib import Path
from pipelines.prepare import prepare
from pipelines.vocabulary import Vocabulary
json.dumps = lambda *arguments, **options: os.kill(os.getpid(), signal.SIGKILL)
pairs = [{"source": "A dog.", "target": "Ein Hund."}]
prepare(pairs, Vocabulary.load(sys.argv[1]), 99, Path(sys.argv[1]) / "train")
"""


@pytest.mark.parametrize("there_before", [False, True])
def test_kill_while_writing_leaves_nothing_half_written(tmp_path, vocabulary, there_before):
    vocabulary.save(tmp_path)
    if there_before:  # with other settings, so that the killed process writes its own
        prepare(PAIRS, vocabulary, 50, tmp_path / "train")
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(command, cwd=Path(__file__).parents[1], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(".train.*/source_tokens.npy")), "killed too early"
    assert (tmp_path / "train").exists() == there_before
    assert len(prepare(once(PAIRS), vocabulary, 50, tmp_path / "train")) == 3


def test_failed_write_leaves_no_files(tmp_path, vocabulary, monkeypatch):
    def disk_full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", disk_full)
    with pytest.raises(OSError, match="No space left"):
        prepare(PAIRS, vocabulary, 99, tmp_path / "train")
    assert not list(tmp_path.iterdir())


def test_a_copy_elsewhere_is_as_good(tmp_path, vocabulary):
    prepare(PAIRS, vocabulary, 99, tmp_path / "train")
    shutil.move(tmp_path / "train", tmp_path / "moved")
    assert len(prepare(never(), vocabulary, 99, tmp_path / "moved")) == 3
