"""Encoded splits: which pairs are dropped, which shards are remade, what a kill leaves behind."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

from pipelines import encode, storage
from pipelines.encode import block_fingerprint, encode_split, fetch_split, find_manifest
from pipelines.errors import BadInput
from pipelines.filters import Filters
from pipelines.shard_files import MANIFEST, Damaged, npy
from pipelines.shards import EncodedSplit
from pipelines.vocabulary import Vocabulary
from pipelines.workers import in_order

PAIRS = [
    {"source": "The cat sees the dog.", "target": "Die Katze sieht den Hund."},
    {"source": "The dog sleeps.", "target": "Der Hund schläft."},
    {"source": "A cat sees a cat.", "target": "Eine Katze sieht eine Katze."},
]
MANY = [{"source": f"{n} cats", "target": f"{n} Katzen"} for n in range(50)]


@pytest.fixture(scope="module")
def vocabulary():
    return learn(size=300)


def learn(size):
    return Vocabulary.learn([text for pair in PAIRS for text in pair.values()], size)


def made(pairs, vocabulary, limit, directory):
    encode_split(lambda: iter(pairs), vocabulary, limit, directory)
    return EncodedSplit.load(directory)


def sentences(prepared, side):
    """Return the ids of every sentence on one side."""
    rows = prepared.padded(np.arange(len(prepared)), *prepared.lengths.max(axis=0))[side]
    return [row[:n].tolist() for row, n in zip(rows, prepared.lengths[:, side], strict=True)]


# Content


def test_ids_are_those_of_the_vocabulary(tmp_path, vocabulary):
    prepared = made(PAIRS, vocabulary, 99, tmp_path / "train")
    assert len(prepared) == 3
    for number, side in enumerate(("source", "target")):
        expected = vocabulary.encode([pair[side] for pair in PAIRS])
        assert sentences(prepared, number) == expected
        assert prepared.lengths[:, number].tolist() == [len(ids) for ids in expected]


def test_pairs_are_dropped_counted_and_reported_by_reason(tmp_path, vocabulary):
    empty = [{"source": "", "target": "Ein Hund."}, {"source": "A dog.", "target": " \t "}]
    long = [{"source": "cat " * 50, "target": "Katze"}]
    prepared = made([*empty, *PAIRS, *long], vocabulary, 40, tmp_path / "train")
    assert sentences(prepared, 0) == vocabulary.encode([pair["source"] for pair in PAIRS])
    report = prepared.report()
    assert report.endswith("dropped: 2 with an empty side, 1 longer than 40 pieces")
    tokens = prepared.lengths.sum(axis=0)
    assert report.startswith(f"3 pairs, {tokens[0]} source and {tokens[1]} target pieces")


def test_nothing_dropped_is_reported(tmp_path, vocabulary):
    assert made(PAIRS, vocabulary, 99, tmp_path / "train").report().endswith("dropped: none")


@pytest.mark.parametrize("side", ["source", "target"])
def test_max_length_counts_eos_and_is_allowed(tmp_path, vocabulary, side):
    other = {"source": "target", "target": "source"}[side]
    pair = {side: "The cat sees the dog.", other: "dog"}
    (ids,) = vocabulary.encode([pair[side]])
    assert len(made([pair], vocabulary, len(ids), tmp_path / "fits")) == 1
    with pytest.raises(BadInput):
        made([pair], vocabulary, len(ids) - 1, tmp_path / "does not")


def test_no_pair_left(tmp_path, vocabulary):
    with pytest.raises(BadInput, match=r"no sentence pair is left \(dropped: 1 with an empty"):
        made([{"source": "", "target": "x"}], vocabulary, 99, tmp_path / "train")
    with pytest.raises(BadInput, match=r"no sentence pair is left \(dropped: none, the text"):
        made([], vocabulary, 99, tmp_path / "train")


def test_manifest_records_text_settings_and_counts(tmp_path, vocabulary):
    prepared = made(MANY, vocabulary, 99, tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert manifest == prepared.manifest
    assert manifest["vocabulary"] == vocabulary.fingerprint
    assert (manifest["max_length"], manifest["pairs"], manifest["shards"]) == (99, 50, 1)
    tokens = [manifest["source_tokens"], manifest["target_tokens"]]
    assert tokens == prepared.lengths.sum(axis=0).tolist()
    swapped = [{"source": p["target"], "target": p["source"]} for p in MANY]
    texts = {
        made(pairs, vocabulary, 99, tmp_path).manifest["text"]
        for pairs in (MANY, MANY[:-1], MANY[::-1], swapped)
    }
    assert len(texts) == 4


def test_empty_and_long_is_counted_once(tmp_path, vocabulary):
    pair = {"source": "", "target": "Katze " * 50}
    assert made([pair, *PAIRS], vocabulary, 40, tmp_path).manifest["dropped"] == {
        "with an empty side": 1,
        "longer than 40 pieces": 0,
    }


def test_manifest_sums_up_all_shards(tmp_path, vocabulary, monkeypatch):
    pairs = [{"source": "", "target": "x"}, *MANY, {"source": "x", "target": ""}]
    one = made(pairs, vocabulary, 99, tmp_path / "one").manifest
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 10)
    many = made(pairs, vocabulary, 99, tmp_path / "many")
    same = {"vocabulary", "max_length", "pairs", "source_tokens", "target_tokens", "dropped"}
    assert {name: many.manifest[name] for name in same} == {name: one[name] for name in same}
    assert one["dropped"]["with an empty side"] == 2
    assert many.manifest["shards"] == len(many.manifest["bytes"]) == 6
    assert many.lengths.dtype == np.int32


FILTERS = Filters(max_ratio=2.0, drop_duplicates=True, drop_copies=True)


def test_filters_drop_count_and_report_what_they_find(tmp_path, vocabulary):
    unequal = [{"source": "cat", "target": "Katze " * 9}, {"source": "dog " * 9, "target": "Hund"}]
    copy = {"source": "dog", "target": "dog"}
    pairs = [*PAIRS, *unequal, copy, {"source": "", "target": ""}, *PAIRS[1:], copy]
    encode_split(lambda: pairs, vocabulary, 99, tmp_path, FILTERS)
    prepared = EncodedSplit.load(tmp_path)
    assert sentences(prepared, 1) == vocabulary.encode([pair["target"] for pair in PAIRS])
    assert prepared.report().endswith(
        "dropped: 1 with an empty side, 2 with a length ratio above 2, 2 copied from source to "
        "target, 2 repeated"
    )
    assert made(pairs, vocabulary, 99, tmp_path).manifest["dropped"] == {  # off again
        "with an empty side": 1,
        "longer than 99 pieces": 0,
    }


def test_ratio_at_its_limit_is_kept(tmp_path, vocabulary):
    pair = {"source": "The cat sees the dog.", "target": "Die Katze"}
    source, target = map(len, vocabulary.encode([pair["source"], pair["target"]]))
    assert source > target
    encode_split(lambda: [pair], vocabulary, 99, tmp_path, Filters(max_ratio=source / target))
    below = Filters(max_ratio=source / target - 0.01)
    with pytest.raises(BadInput, match="1 with a length ratio above"):
        encode_split(lambda: [pair], vocabulary, 99, tmp_path, below)


def test_duplicates_are_found_across_shards_and_after_a_change_before_them(
    tmp_path, vocabulary, monkeypatch
):
    """The third shard's text stays, but with another first shard it holds no repeated pair."""
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 3)
    first, second, third = PAIRS, MANY[:3], [PAIRS[2], MANY[1], MANY[9]]
    encode_split(lambda: first + second + third, vocabulary, 99, tmp_path, FILTERS)
    prepared = EncodedSplit.load(tmp_path)
    kept = [pair["source"] for pair in [*first, *second, MANY[9]]]
    assert sentences(prepared, 0) == vocabulary.encode(kept)
    changed = MANY[20:26]
    encode_split(lambda: changed + third, vocabulary, 99, tmp_path, FILTERS)
    assert EncodedSplit.load(tmp_path).manifest["dropped"]["repeated"] == 0


def test_fingerprint_tells_texts_apart():
    texts = [
        [("ab", "c")],
        [("zb", "c")],
        [("a", "bc")],
        [("a", "b"), ("c", "d")],
        [("a", "bc"), ("", "d")],
        [("a", "x"), ("c", "d")],
        [("c", "d"), ("a", "b")],
    ]
    found = {block_fingerprint([{"source": s, "target": t} for s, t in text]) for text in texts}
    assert len(found) == len(texts)


def test_lone_surrogates(tmp_path, vocabulary):
    assert len(made([{"source": "a \udc80 dog", "target": "x"}], vocabulary, 99, tmp_path)) == 1


# Storage


def test_ids_stay_on_disk(tmp_path, vocabulary):
    (ids,) = made(PAIRS, vocabulary, 99, tmp_path / "train").ids
    assert isinstance(ids.base, np.memmap)


@pytest.mark.parametrize(("size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_ids_take_two_bytes_if_they_fit(tmp_path, size, dtype):
    class Wide:
        """A vocabulary that uses its largest id."""

        fingerprint = "wide"

        def encode_flat(self, sentences):
            ids = np.tile(np.array([size - 1, 1], dtype), len(sentences))
            return ids, np.full(len(sentences), 2)

    prepared = made(PAIRS, Wide(), 99, tmp_path / "train")
    assert prepared.ids[0].dtype == dtype
    assert sentences(prepared, 0) == 3 * [[size - 1, 1]]


def test_shards_made_by_other_processes_keep_the_order(tmp_path, vocabulary, monkeypatch):
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 8)
    pairs = [{"source": "", "target": "dropped"}, *MANY]
    prepared = made(pairs, vocabulary, 99, tmp_path)
    assert prepared.manifest["shards"] == 7
    for number, side in enumerate(("source", "target")):
        assert sentences(prepared, number) == vocabulary.encode([pair[side] for pair in MANY])
    order = np.random.default_rng(0).permutation(50)
    source, _ = prepared.padded(order, *prepared.lengths.max(axis=0))
    assert [row[row > 0].tolist() for row in source] == vocabulary.encode(
        [MANY[index]["source"] for index in order]
    )


# Shards are reused


def test_same_text_makes_no_shard_again(tmp_path, vocabulary, monkeypatch):
    made(PAIRS, vocabulary, 99, tmp_path)
    monkeypatch.setattr(vocabulary, "encode_flat", lambda _: pytest.fail("encoded again"))
    assert len(made(PAIRS, vocabulary, 99, tmp_path)) == 3


def test_find_manifest_wants_a_complete_split_with_these_settings(tmp_path, vocabulary):
    first = tmp_path / "first"
    assert find_manifest(vocabulary, 99, first) is None
    made(PAIRS, vocabulary, 99, first)
    manifest = json.loads((first / MANIFEST).read_text())
    assert find_manifest(vocabulary, 99, first) == manifest
    assert find_manifest(vocabulary, 98, first) is None
    assert find_manifest(learn(size=290), 99, first) is None
    shutil.move(first, tmp_path / "moved")
    assert find_manifest(vocabulary, 99, tmp_path / "moved") == manifest
    for content in ("[1]", "{", json.dumps(manifest | {"format": 0})):
        (tmp_path / "moved" / MANIFEST).write_text(content)
        assert find_manifest(vocabulary, 99, tmp_path / "moved") is None


def test_another_max_length_encodes_anew(tmp_path, vocabulary):
    made(PAIRS, vocabulary, 99, tmp_path)
    both = [vocabulary.encode(list(pair.values())) for pair in PAIRS]
    shortest, *_ = sorted(max(len(ids) for ids in pair) for pair in both)
    assert len(made(PAIRS, vocabulary, shortest, tmp_path)) == 1


def test_another_vocabulary_encodes_anew(tmp_path, vocabulary):
    made(PAIRS, vocabulary, 99, tmp_path)
    other = learn(size=290)
    prepared = made(PAIRS, other, 99, tmp_path)
    assert sentences(prepared, 0) == other.encode([pair["source"] for pair in PAIRS])


def test_changed_text_makes_its_shards_anew_and_no_others(tmp_path, vocabulary, monkeypatch):
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 10)
    made(MANY, vocabulary, 99, tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*")}
    changed = [*MANY[:15], {"source": "a dog", "target": "ein Hund"}, *MANY[16:38]]
    prepared = made(changed, vocabulary, 99, tmp_path)
    assert sentences(prepared, 0) == vocabulary.encode([pair["source"] for pair in changed])
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*")}
    remade = {name.split(".")[0] for name, when in after.items() if when != before[name]}
    assert remade == {"shard-00001", "shard-00003"}
    assert {name.split(".")[0] for name in before.keys() - after.keys()} == {"shard-00004"}


def without_checksums(directory):
    """Make the manifest one of an earlier version."""
    manifest = json.loads((directory / MANIFEST).read_text())
    del manifest["checksums"]
    (directory / MANIFEST).write_text(json.dumps(manifest))


# Checksums


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["shard-00001.ids.npy", "shard-00001.lengths.npy"])
@pytest.mark.parametrize("place", [0.0, 0.1, 0.6, 0.99])
def test_one_flipped_bit_is_found_and_its_shard_alone_made_again(
    tmp_path, vocabulary, monkeypatch, capsys, name, place
):
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 20)
    monkeypatch.setattr(encode, "in_order", map)
    expected = sentences(made(MANY, vocabulary, 99, tmp_path), 0)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*")}
    flip(tmp_path / name, int(place * 8 * (tmp_path / name).stat().st_size))
    with pytest.raises(Damaged, match=f"{name}: damaged"):
        EncodedSplit.load(tmp_path)
    assert sentences(made(MANY, vocabulary, 99, tmp_path), 0) == expected
    assert capsys.readouterr().err == f"{tmp_path}/shard-00001: damaged; it is made again\n"
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shard-*")}
    assert {n.split(".")[0] for n in after if after[n] != before[n]} == {"shard-00001"}


def test_a_split_of_an_earlier_version_is_loaded_and_found(tmp_path, vocabulary):
    made(PAIRS, vocabulary, 99, tmp_path)
    without_checksums(tmp_path)
    assert find_manifest(vocabulary, 99, tmp_path)
    assert len(EncodedSplit.load(tmp_path)) == 3


@pytest.mark.parametrize("ids", [[600, 1], [-1, 1]])
def test_ids_beyond_the_vocabulary(tmp_path, vocabulary, ids):
    made(PAIRS[:1], vocabulary, 99, tmp_path)
    path, manifest = tmp_path / "shard-00000.ids.npy", tmp_path / MANIFEST
    own = np.load(path)
    path.write_bytes(npy(np.array([*ids, *own[2:]], np.int32)))
    without_checksums(tmp_path)
    changed = json.loads(manifest.read_text())
    changed["bytes"][0][0] = path.stat().st_size
    manifest.write_text(json.dumps(changed))
    with pytest.raises(Damaged, match=r"ids\.npy: damaged \(an id beyond the vocabulary's 300"):
        EncodedSplit.load(tmp_path, vocabulary.size)


def test_a_copy_that_is_damaged_is_fetched_again(tmp_path, vocabulary):
    made(PAIRS, vocabulary, 99, tmp_path / "far")
    fetch_split(f"file://{tmp_path}/far", tmp_path / "near")
    flip(tmp_path / "near/shard-00000.ids.npy", 1100)
    fetch_split(f"file://{tmp_path}/far", tmp_path / "near")
    assert len(EncodedSplit.load(tmp_path / "near")) == 3
    flip(tmp_path / "far/shard-00000.ids.npy", 1100)
    flip(tmp_path / "near/shard-00000.ids.npy", 1100)
    with pytest.raises(Damaged, match=r"far/shard-00000\.ids\.npy: damaged \(its checksum"):
        fetch_split(f"file://{tmp_path}/far", tmp_path / "near")


def test_a_missing_text_leaves_the_manifest(tmp_path, vocabulary):
    made(PAIRS, vocabulary, 99, tmp_path)

    def missing():
        raise BadInput("no such file")
        yield

    with pytest.raises(BadInput, match="no such file"):
        encode_split(missing, vocabulary, 99, tmp_path)
    assert len(EncodedSplit.load(tmp_path)) == 3


# After a kill or on a full disk


def truncate(path):
    path.write_bytes(path.read_bytes()[:-2])


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [os.remove, truncate, empty])
@pytest.mark.parametrize("name", [MANIFEST, "shard-00000.ids.npy", "shard-00000.lengths.npy"])
def test_damaged_split_is_not_read_but_repaired(tmp_path, vocabulary, name, damage):
    expected = sentences(made(PAIRS, vocabulary, 99, tmp_path), 0)
    damage(tmp_path / name)
    with pytest.raises(Damaged, match=name):
        EncodedSplit.load(tmp_path)
    assert find_manifest(vocabulary, 99, tmp_path) is None
    assert sentences(made(PAIRS, vocabulary, 99, tmp_path), 0) == expected


# Encodes 400 pairs into 40 shards, which takes 8 s, since the pairs come slowly.
SLOW = """
import sys, time
from pipelines import encode
from pipelines.vocabulary import Vocabulary
def pairs():
    for n in range(400):
        time.sleep(0.02)
        yield {"source": f"{n} cats", "target": f"{n} Katzen"}
if __name__ == "__main__":
    encode.PAIRS_PER_SHARD = 10
    vocabulary = Vocabulary(open(sys.argv[1] + "/vocabulary.model", "rb").read())
    print("begins", flush=True)
    encode.encode_split(pairs, vocabulary, 99, sys.argv[1] + "/train")
"""


def children(process):
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in listed]


def alive(process):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_killed_preparation_leaves_no_process_and_goes_on(tmp_path, vocabulary, monkeypatch):
    vocabulary.save(tmp_path)
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    train = tmp_path / "train"
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        wait_for(lambda: len(list(train.glob("shard-*.json"))) >= 5)
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
    assert workers
    wait_for(lambda: not any(map(alive, workers)))
    with pytest.raises(Damaged, match=rf"{MANIFEST}: damaged \(missing\)"):
        EncodedSplit.load(train)
    whole = {path.name: path.stat().st_mtime_ns for path in train.glob("shard-*.json")}
    assert 5 <= len(whole) < 40
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 10)
    pairs = [{"source": f"{n} cats", "target": f"{n} Katzen"} for n in range(400)]
    prepared = made(pairs, vocabulary, 99, train)
    assert sentences(prepared, 1) == vocabulary.encode([pair["target"] for pair in pairs])
    assert whole == {name: (train / name).stat().st_mtime_ns for name in whole}, "made again"


def test_killed_worker_is_told(tmp_path, vocabulary):
    vocabulary.save(tmp_path)
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    command = [sys.executable, str(script), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: len(list((tmp_path / "train").glob("shard-*.json"))) >= 5)
        worker = next(
            child
            for child in children(process.pid)
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
        )
        os.kill(worker, signal.SIGKILL)
        told = process.communicate(timeout=60)[1]
    assert "BadInput: a worker process that encodes text was killed" in told


def test_few_blocks_are_in_memory():
    drawn = []
    made = in_order(str, (drawn.append(n) or n for n in range(100)))
    assert next(made) == "0"
    assert len(drawn) <= (os.cpu_count() or 1) + 3
    made.close()


def test_killed_change_of_text_is_not_read(tmp_path, vocabulary, monkeypatch):
    """The old manifest would declare a mixture of old and new shards complete."""
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 10)
    made(MANY, vocabulary, 99, tmp_path)

    def killed():
        yield from MANY[::-1][:25]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_split(killed, vocabulary, 99, tmp_path)
    with pytest.raises(Damaged, match=rf"{MANIFEST}: damaged \(missing\)"):
        EncodedSplit.load(tmp_path)


def test_lengths_that_do_not_fit_their_ids(tmp_path, vocabulary):
    made(PAIRS, vocabulary, 99, tmp_path)
    np.save(tmp_path / "shard-00000.lengths.npy", np.ones((3, 2), np.int32))
    without_checksums(tmp_path)
    with pytest.raises(Damaged, match=r"lengths\.npy: damaged \(the sum of its lengths is 6, but"):
        EncodedSplit.load(tmp_path)


def test_shards_of_fewer_pairs_than_the_manifest_says(tmp_path, vocabulary):
    made(PAIRS, vocabulary, 99, tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | {"pairs": 4}))
    with pytest.raises(Damaged, match="4 pairs, but its shards have 3"):
        EncodedSplit.load(tmp_path)


def test_summary_is_written_last(tmp_path, vocabulary, monkeypatch):
    """The summary comes last because a shard that has one counts as complete."""
    order = []
    write = storage.write
    monkeypatch.setattr(storage, "write", lambda d, n, c: (order.append(n), write(d, n, c)))
    made(PAIRS, vocabulary, 99, tmp_path)
    assert order[2:] == ["shard-00000.json", MANIFEST]
    order.clear()
    made(PAIRS[:2], vocabulary, 99, tmp_path)
    assert order[2:] == ["shard-00000.json", MANIFEST]


def test_old_summary_does_not_cover_new_files(tmp_path, vocabulary, monkeypatch):
    """A kill may come after a replacement shard's files are written and before its summary is."""
    made(PAIRS, vocabulary, 99, tmp_path)
    write = storage.write

    def killed(directory, name, content):
        if name.endswith(".json"):
            raise KeyboardInterrupt
        write(directory, name, content)

    monkeypatch.setattr(storage, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        made(PAIRS[::-1], vocabulary, 99, tmp_path)
    monkeypatch.undo()
    prepared = made(PAIRS, vocabulary, 99, tmp_path)
    assert sentences(prepared, 0) == vocabulary.encode([pair["source"] for pair in PAIRS])


# At an address for tf.io.gfile


@pytest.mark.parametrize("scheme", ["ram://bucket", "file://{folder}"])
def test_shards_at_an_address_are_fetched(tmp_path, vocabulary, monkeypatch, scheme):
    monkeypatch.setattr(encode, "in_order", map)  # other processes do not see ram://
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 8)
    address = scheme.format(folder=tmp_path / "far") + f"/{os.getpid()}/train"
    encode_split(lambda: MANY, vocabulary, 99, address)
    fetch_split(address, tmp_path / "near")
    expected = vocabulary.encode([pair["target"] for pair in MANY])
    assert sentences(EncodedSplit.load(tmp_path / "near"), 1) == expected
    assert find_manifest(vocabulary, 99, address)["pairs"] == 50


def test_fetching_again_copies_what_is_missing_or_has_changed(tmp_path, vocabulary, monkeypatch):
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 25)
    address, near = f"file://{tmp_path}/far", tmp_path / "near"
    made(MANY, vocabulary, 99, tmp_path / "far")
    fetch_split(address, near)
    read, copied = storage.read, []
    monkeypatch.setattr(storage, "read", lambda d, n: (copied.append((d, n)), read(d, n))[1])
    (near / "shard-00001.ids.npy").write_bytes(b"half")
    fetch_split(address, near)
    files = [name for directory, name in copied if directory == address]
    assert files == [MANIFEST, "shard-00001.ids.npy"]
    # As many pairs and pieces as before, so no file's size shows the change.
    other = [{"source": pair["target"], "target": pair["source"]} for pair in MANY]
    made(other, vocabulary, 99, tmp_path / "far")
    fetch_split(address, near)
    expected = vocabulary.encode([pair["source"] for pair in other])
    assert sentences(EncodedSplit.load(near), 0) == expected


def test_killed_fetch_is_not_read_but_goes_on(tmp_path, vocabulary, monkeypatch):
    monkeypatch.setattr(encode, "PAIRS_PER_SHARD", 25)
    address, near = f"file://{tmp_path}/far", tmp_path / "near"
    made(MANY, vocabulary, 99, tmp_path / "far")
    read = storage.read

    def killed(directory, name):
        if name == "shard-00001.ids.npy":
            raise KeyboardInterrupt
        return read(directory, name)

    monkeypatch.setattr(storage, "read", killed)
    with pytest.raises(KeyboardInterrupt):
        fetch_split(address, near)
    with pytest.raises(Damaged, match=rf"{MANIFEST}: damaged \(missing\)"):
        EncodedSplit.load(near)
    monkeypatch.setattr(storage, "read", read)
    fetch_split(address, near)
    assert len(EncodedSplit.load(near)) == 50


def test_copy_of_another_split_is_not_trusted_after_a_kill(tmp_path, vocabulary, monkeypatch):
    address, near = f"file://{tmp_path}/far", tmp_path / "near"
    made(MANY, vocabulary, 99, tmp_path / "far")
    fetch_split(address, near)
    other = [{"source": pair["target"], "target": pair["source"]} for pair in MANY]
    made(other, vocabulary, 99, tmp_path / "far")
    remove = storage.remove

    def killed(directory, name):
        if name.startswith("shard"):
            raise KeyboardInterrupt
        remove(directory, name)

    monkeypatch.setattr(storage, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        fetch_split(address, near)
    monkeypatch.setattr(storage, "remove", remove)
    fetch_split(address, near)
    expected = vocabulary.encode([pair["source"] for pair in other])
    assert sentences(EncodedSplit.load(near), 0) == expected


def test_shard_that_is_cut_short_at_an_address(tmp_path, vocabulary):
    made(MANY, vocabulary, 99, tmp_path / "far")
    truncate(tmp_path / "far/shard-00000.ids.npy")
    with pytest.raises(BadInput, match=r"far/shard-00000\.ids\.npy: damaged \(missing"):
        fetch_split(f"file://{tmp_path}/far", tmp_path / "near")


def test_nothing_to_fetch(tmp_path):
    with pytest.raises(BadInput, match=r"no finished split there, manifest\.json is missing"):
        fetch_split(f"file://{tmp_path}/far", tmp_path / "near")


def test_address_that_tensorflow_does_not_know(tmp_path, vocabulary):
    with pytest.raises(BadInput, match=r"^gopher://hole: .*not implemented.*; wanted an address"):
        encode_split(lambda: PAIRS, vocabulary, 99, "gopher://hole")
