"""Encoding on Apache Beam's local runner gives the same shards as encoding in local processes."""

import sys

import pytest

from pipelines import encode as preparation
from pipelines import storage
from pipelines.encode import encode_split
from pipelines.encode_on_beam import encode_split_on_beam
from pipelines.errors import BadInput
from pipelines.filters import Filters
from pipelines.shard_files import MANIFEST
from pipelines.vocabulary import Vocabulary

PAIRS = [{"source": f"{n} cats", "target": f"{n} Katzen"} for n in range(50)]
LOCAL = ["runner=DirectRunner", "direct_num_workers=2"]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.learn([text for pair in PAIRS for text in pair.values()], 290)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(preparation, "PAIRS_PER_SHARD", 8)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_files_are_those_of_encode_split(tmp_path, vocabulary):
    pairs, filters = PAIRS + PAIRS[:20], Filters(drop_duplicates=True)
    beam, here = tmp_path / "beam", tmp_path / "here"
    manifest = encode_split_on_beam(lambda: pairs, vocabulary, 99, str(beam), LOCAL, filters)
    assert manifest == encode_split(lambda: pairs, vocabulary, 99, here, filters)
    assert contents(beam) == contents(here)
    assert (manifest["shards"], manifest["pairs"], manifest["dropped"]["repeated"]) == (9, 50, 20)


def test_resumes_where_it_was_stopped(tmp_path, vocabulary):
    encode_split(lambda: PAIRS[:32], vocabulary, 99, tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*")}
    manifest = encode_split_on_beam(lambda: PAIRS, vocabulary, 99, str(tmp_path), LOCAL)
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*")}
    assert manifest["pairs"] == 50
    assert len(before) == 12
    assert before.items() <= after.items()


def test_shards_may_lie_at_an_address(tmp_path, vocabulary):
    address = f"file://{tmp_path}/far"
    encode_split_on_beam(lambda: PAIRS, vocabulary, 99, address, LOCAL)
    encode_split(lambda: PAIRS, vocabulary, 99, tmp_path / "here")
    assert contents(tmp_path / "far") == contents(tmp_path / "here")


def test_bad_text_is_reported_as_without_beam(tmp_path, vocabulary, caplog):
    pairs, told = [{"source": "", "target": "x"}], []
    for encode, options in ((encode_split, ()), (encode_split_on_beam, (LOCAL,))):
        with pytest.raises(BadInput, match=r"no sentence pair is left \(dropped: 1 with") as raised:
            encode(lambda: pairs, vocabulary, 99, str(tmp_path), *options)
        told.append(str(raised.value))
    assert told[0] == told[1]
    assert "Traceback" not in caplog.text


def test_failed_start_leaves_no_manifest(tmp_path, vocabulary):
    """A manifest would declare a mixture of old and new shards complete."""
    encode_split(lambda: PAIRS, vocabulary, 99, tmp_path)

    def broken():
        raise BadInput("no text")

    with pytest.raises(BadInput, match="no text"):
        encode_split_on_beam(broken, vocabulary, 99, str(tmp_path), LOCAL)
    assert not (tmp_path / MANIFEST).exists()


def test_directory_that_the_workers_do_not_share(tmp_path, vocabulary, monkeypatch):
    read = storage.read
    monkeypatch.setattr(storage, "read", lambda d, n: None if n == MANIFEST else read(d, n))
    with pytest.raises(BadInput, match="give a --prepared_dir that all of them reach"):
        encode_split_on_beam(lambda: PAIRS, vocabulary, 99, str(tmp_path), LOCAL)


def test_option_of_another_type(tmp_path, vocabulary):
    with pytest.raises(BadInput, match=r"--beam_pipeline_options: .*invalid int value: 'two'"):
        encode_split_on_beam(
            lambda: PAIRS, vocabulary, 99, str(tmp_path), ["direct_num_workers=two"]
        )


def test_unknown_runner(tmp_path, vocabulary):
    with pytest.raises(BadInput, match=r"--beam_pipeline_options: .*NoSuchRunner"):
        encode_split_on_beam(lambda: PAIRS, vocabulary, 99, str(tmp_path), ["runner=NoSuchRunner"])


def test_beam_is_not_installed(tmp_path, vocabulary, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(BadInput, match=r'not installed; pip install "t2t_repro\[beam\]"'):
        encode_split_on_beam(lambda: PAIRS, vocabulary, 99, str(tmp_path), LOCAL)
