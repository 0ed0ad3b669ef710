"""TFDS really downloads, unpacks and prepares here, but from small archives in WMT's layout.

The archives contain other real text in place of each corpus. They are in TFDS's cache, or an HTTP
proxy on 127.0.0.1 serves them; this works because WMT's addresses are plain http.
"""

import dataclasses
import hashlib
import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from paths import DATA, ROOT
from wmt_archives import (
    CRAWL,
    DEV,
    EUROPARL,
    GIGA,
    NEWS,
    STAND_INS,
    archive,
    builder,
    corpus_files,
    lines,
    pack,
    put_into_cache,
    sides,
    small_archives,
)

from pipelines.errors import BadInput
from pipelines.sources import tfds_source, wmt
from pipelines.stream import read as read_records
from t2t_repro import config
from t2t_repro.problems import PROBLEMS
from t2t_repro.scoring import bleu

TEXTS = "libreoffice_help", "wmt_news", "wmt_train_sample"
HAS_TEXT = all((DATA / name).exists() for name in TEXTS)
pytestmark = pytest.mark.skipif(not HAS_TEXT, reason=f"needs real parallel text in {DATA}")
both_languages = pytest.mark.parametrize("languages", ["de-en", "fr-en"])

TRAIN_PAIRS = {"de-en": 2000 + 1000 + 990, "fr-en": 1900 + 1100 + 800 + 988 + 700}


def expected_pairs(split, languages):
    """Return the pairs in the order of the files; TFDS shuffles them."""
    other, english = sides(languages)
    files = {
        "dev": [("wmt_news/newstest2013.{}", None)],
        "test": [("wmt_news/newstest2012.{}", None)],
    }
    pairs = []
    for name, count in files.get(split, STAND_INS[languages].values()):
        both = zip(
            lines(name.format(english), count), lines(name.format(other), count), strict=True
        )
        pairs += [{"source": s.decode(), "target": t.decode()} for s, t in both]
    return pairs


def in_any_order(pairs):
    return sorted(pairs, key=lambda pair: (pair["source"], pair["target"]))


def read(split, data_dir, languages="de-en"):
    return list(wmt.examples(split, languages=languages, data_dir=str(data_dir)))


def failure(data_dir, languages="de-en", split="train"):
    with pytest.raises(BadInput) as raised:
        read(split, data_dir, languages)
    message = str(raised.value)
    assert "\n" not in message
    return message


def files(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def unfinished(data_dir):
    """Return the paths with temporary names: partial downloads, unpackings and data sets."""
    return [
        path for path in data_dir.rglob("*") if ".tmp." in path.name or "incomplete" in path.name
    ]


real_disk_usage = shutil.disk_usage


@pytest.fixture(autouse=True)
def ample_disk(monkeypatch):
    """Pretend the disk is large: the real archives' sizes would require 47 GiB of free space."""
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: real_disk_usage(path)._replace(free=2**37)
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a function that gives a data directory with the small archives prepared by TFDS."""
    made = {}

    def prepared(languages):
        if languages not in made:
            made[languages] = tmp_path_factory.mktemp(languages)
            put_into_cache(made[languages], small_archives(languages), languages)
            read("dev", made[languages], languages)
        return made[languages]

    return prepared


@pytest.fixture
def copy(prepared, tmp_path):
    """Return a copy of the prepared German data, without archives, that a test may damage."""
    shutil.copytree(prepared("de-en") / "wmt14_translate", tmp_path / "copy" / "wmt14_translate")
    return tmp_path / "copy" / "wmt14_translate" / "de-en" / "1.0.0"


@pytest.fixture
def no_network(monkeypatch):
    """Send every request to a proxy that does not exist."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


class Proxy(http.server.BaseHTTPRequestHandler):
    """A proxy that serves `contents` for every host; `asked` lists the requests."""

    contents: dict
    asked: list

    def do_HEAD(self):
        self.asked.append(("HEAD", self.path))
        content = self.contents.get(self.path)
        self.send_response(503 if content is None else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        self.asked.append(("GET", self.path))
        content, promised = self.contents[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(promised))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def proxy(monkeypatch):
    handler = type("Handler", (Proxy,), {"contents": {}, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "")
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        yield handler
        server.shutdown()
        thread.join()


@pytest.fixture
def served(proxy, monkeypatch):
    """Serve the small archives by the proxy, with their checksums registered in TFDS."""
    contents = small_archives("de-en")
    registered = builder("unused").url_infos
    for url, content in contents.items():
        checksum, size = hashlib.sha256(content).hexdigest(), len(content)
        info = dataclasses.replace(
            registered[url], checksum=checksum, size=tfds.core.utils.Size(size)
        )
        monkeypatch.setitem(registered, url, info)
        proxy.contents[url] = (content, size)
    return proxy


# Preparing and reading


@both_languages
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_every_pair_with_two_sides_from_english(prepared, languages, split):
    pairs = read(split, prepared(languages), languages)
    assert in_any_order(pairs) == in_any_order(expected_pairs(split, languages))
    assert len(pairs) == {"train": TRAIN_PAIRS[languages], "dev": 3000, "test": 3003}[split]


def test_the_order_is_always_the_same(prepared, tmp_path):
    pairs = read("train", prepared("de-en"))
    assert read("train", prepared("de-en")) == pairs
    put_into_cache(tmp_path, small_archives("de-en"))
    assert read("train", tmp_path) == pairs  # prepared anew


def test_order_of_several_files(prepared):
    """40 million pairs have several shards, which are read one after another."""
    shards = builder(prepared("de-en")).info.splits["test"].filepaths * 3
    batches = tfds_source._batches(shards, "en", "de")
    sources = [text.decode() for batch in batches for text in batch["en"]]
    assert sources == [pair["source"] for pair in read("test", prepared("de-en"))] * 3


@both_languages
def test_prepared_data_are_read_without_archives_or_network(
    prepared, languages, tmp_path, no_network, capsys
):
    shutil.copytree(prepared(languages) / "wmt14_translate", tmp_path / "wmt14_translate")
    before = files(tmp_path)
    capsys.readouterr()  # discard the notes of a preparation that this test triggers
    assert read("test", tmp_path, languages) == read("test", prepared(languages), languages)
    assert files(tmp_path) == before
    assert capsys.readouterr() == ("", "")


def test_preparing_says_so_once_and_leaves_stdout_alone(tmp_path, no_network, capsys):
    put_into_cache(tmp_path, small_archives("de-en"))
    read("dev", tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    said = [line for line in err.splitlines() if line.startswith("wmt14_translate/de-en: ")]
    assert said == [
        "wmt14_translate/de-en: downloading 0 of 4 archives (0.00 GiB) to "
        f"{tmp_path}/downloads, then unpacking and preparing; total disk space needed: 9.03 GiB"
    ]
    assert not unfinished(tmp_path)
    read("dev", tmp_path)
    assert capsys.readouterr() == ("", "")


def test_without_a_data_directory_where_tfds_keeps_its_data(prepared, monkeypatch, no_network):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(prepared("de-en")))
    pairs = list(wmt.examples("dev", languages="de-en", data_dir=None))
    assert in_any_order(pairs) == in_any_order(expected_pairs("dev", "de-en"))


@pytest.mark.parametrize(
    ("problem", "languages"), [("wmt14_ende", "de-en"), ("wmt14_enfr", "fr-en")]
)
def test_problems(prepared, problem, languages):
    settings = config.resolve(problem, overrides={"data_dir": str(prepared(languages))})
    pairs = PROBLEMS[problem].examples("test", settings)
    assert in_any_order(pairs) == in_any_order(expected_pairs("test", languages))
    assert settings.data.target_language == sides(languages)[0]


def test_french_compounds_are_not_split():
    """With the paper's German step the parts `arrive`, `t` and `il` would match."""
    hypothesis, reference = ["Le porte-avions arrive-t-il ?"], ["Le porte-bateau arrive-t-il ?"]
    settings = config.resolve("wmt14_enfr")
    scores = PROBLEMS["wmt14_enfr"].score(hypothesis, reference, settings)
    assert scores["paper_bleu"] == bleu.paper_bleu(hypothesis, reference, "fr")
    assert scores["paper_bleu"] < bleu.paper_bleu(hypothesis, reference, "de")


# What TFDS knows of the archives


@both_languages
def test_every_archive_has_a_registered_size_and_checksum(languages, tmp_path):
    found = wmt.archives(builder(tmp_path, languages), languages)
    assert [a.url for a in found] == [*STAND_INS[languages], DEV]
    # TFDS's catalogue: 1.58 GiB and 6.20 GiB.
    assert sum(a.size for a in found) == {"de-en": 1_695_017_123, "fr-en": 6_655_754_089}[languages]
    assert all(len(a.sha256) == 64 and a.place is None for a in found)


def test_archives_that_count_as_fetched(tmp_path, served):
    """TFDS ignores an archive without its .INFO file and accepts one in the old cache layout."""
    put_into_cache(tmp_path, {url: content for url, (content, _) in served.contents.items()})
    cache, crawl = tmp_path / "downloads", archive(tmp_path, CRAWL).place
    Path(f"{archive(tmp_path, NEWS).place}.INFO").unlink()
    for path in (crawl, Path(f"{crawl}.INFO")):
        path.rename(cache / path.name)
    assert archive(tmp_path, NEWS).place is None
    assert archive(tmp_path, CRAWL).place == cache / crawl.name
    assert len(read("dev", tmp_path)) == 3000
    assert [url for verb, url in served.asked] == [NEWS, NEWS]  # asked for, then fetched


def test_disk_that_is_needed(tmp_path):
    """An archive that is present needs no more space; neither does its content once unpacked."""

    def needed():
        return wmt.needed_bytes(wmt.archives(builder(tmp_path, "fr-en"), "fr-en"), "fr-en")

    gzipped = 657_632_379 + 918_311_367 + 2_365_634_246 + 80_418_416 + 38_654_961
    plain = 2_595_102_720
    whole = 5 * gzipped + 2 * plain + 2 * int(14.65 * 2**30)
    assert needed() == whole
    put_into_cache(tmp_path, {CRAWL: b"", GIGA: b""}, "fr-en")
    assert needed() == whole - 918_311_367 - plain
    name = archive(tmp_path, CRAWL, "fr-en").place.name
    (tmp_path / "downloads" / "extracted" / f"TAR_GZ.{name}").mkdir(parents=True)
    assert needed() == whole - 5 * 918_311_367 - plain


# Failures


def test_a_disk_too_small(tmp_path, monkeypatch, no_network):
    monkeypatch.setitem(wmt.PREPARED_BYTES, "de-en", 10**18)
    message = failure(tmp_path)
    needed = (2 * 10**18 + 5 * 1_695_017_123) / 2**30  # archives and four times that, unpacked
    wanted = f"128.00 GiB free; wanted {needed:,.2f} GiB to download, unpack and prepare "
    assert message.startswith(f"{tmp_path}: {wanted}")
    assert "--data_dir on another disk" in message
    assert "--problem=parallel_text" in message
    assert not files(tmp_path)


def ways_out(message, archive_name, data_dir):
    assert f"or put {archive_name} into {data_dir}/downloads/manual, or give" in message
    assert "a --data_dir in which TFDS has prepared wmt14_translate/de-en, or" in message
    assert message.endswith("--problem=parallel_text --source_files ... --target_files ...")
    return True


def test_no_network(tmp_path, no_network):
    put_into_cache(tmp_path, {EUROPARL: b"whatever"})
    before, start = files(tmp_path), time.monotonic()
    message = failure(tmp_path)
    assert time.monotonic() - start < 100  # TFDS would try for over three minutes
    assert "cannot be downloaded (ProxyError); wanted" in message
    assert f"wanted {CRAWL}: connect to the network and run again" in message
    assert ways_out(message, "training-parallel-commoncrawl.tgz", tmp_path)
    assert files(tmp_path) == before


def test_a_server_answers_503(tmp_path, served):
    """The last server asked fails: nothing is downloaded before all have answered."""
    served.contents[DEV] = None
    message = failure(tmp_path)
    assert f"cannot be downloaded (503 Server Error: Service Unavailable for url: {DEV})" in message
    assert f"wanted {DEV}: connect to the network" in message
    assert ways_out(message, "dev.tgz", tmp_path)
    assert served.asked == [("HEAD", url) for url in (EUROPARL, CRAWL, NEWS, DEV)]
    assert not files(tmp_path)


def test_download_prepare_and_read(prepared, tmp_path, served, capsys):
    assert read("train", tmp_path) == read("train", prepared("de-en"))
    assert "downloading 4 of 4 archives (0.00 GiB) to" in capsys.readouterr().err
    assert [url for verb, url in served.asked if verb == "GET"] == [EUROPARL, CRAWL, NEWS, DEV]


def test_a_download_that_breaks_off(tmp_path, served):
    """Finished downloads are kept; the partial one is deleted."""
    content, size = served.contents[CRAWL]
    served.contents[CRAWL] = (content[:-100], size)
    message = failure(tmp_path)
    assert f"cannot be downloaded (the connection broke off); wanted {CRAWL}: connect" in message
    assert not unfinished(tmp_path)
    served.contents[CRAWL] = (content, size)
    served.asked.clear()
    assert len(read("dev", tmp_path)) == 3000
    assert [url for verb, url in served.asked if verb == "GET"] == [CRAWL, NEWS, DEV]


def test_a_download_with_another_checksum(tmp_path, served):
    content, size = served.contents[CRAWL]
    served.contents[CRAWL] = (b"another", 7)
    message = failure(tmp_path)
    assert message.startswith(
        f"{CRAWL}: its checksum is not the one that TFDS knows; wanted {size:,} bytes"
    )
    assert hashlib.sha256(content).hexdigest() in message
    assert "run again" in message
    assert ways_out(message, "training-parallel-commoncrawl.tgz", tmp_path)
    assert not unfinished(tmp_path)
    served.contents[CRAWL] = (content, size)
    assert len(read("dev", tmp_path)) == 3000


def test_an_archive_put_there_by_hand(tmp_path, served):
    """Error messages advise this; the archive is checked like the others and never deleted."""
    content, _ = served.contents.pop(CRAWL)
    by_hand = tmp_path / "downloads" / "manual" / "training-parallel-commoncrawl.tgz"
    by_hand.parent.mkdir(parents=True)
    by_hand.write_bytes(b"another")
    message = failure(tmp_path)
    assert message.startswith(f"{by_hand}: its checksum is not the one that TFDS knows")
    assert "delete it and run again" in message
    assert by_hand.exists()
    by_hand.write_bytes(content)
    assert len(read("dev", tmp_path)) == 3000


def test_an_address_without_a_checksum_is_not_trusted(tmp_path, served, monkeypatch):
    """If TFDS lost a checksum, it would accept any bytes."""
    known = wmt.archives(builder(tmp_path), "de-en")
    monkeypatch.setattr(wmt, "archives", lambda builder, languages: known)
    monkeypatch.delitem(builder("unused").url_infos, NEWS)
    monkeypatch.delitem(tfds.download.checksums.get_all_url_infos(), NEWS)
    assert f"Missing checksums url: {NEWS}" in failure(tmp_path)


OUTSIDE = Path(f"/tmp/t2t_repro-{os.getpid()}")


def damaged_archives():
    europarl = pack(EUROPARL, corpus_files(EUROPARL, "de-en")) if HAS_TEXT else b""
    return {
        "cut short": europarl[:20_000],
        "no archive": b"<html>not found</html>",
        "empty": b"",
        "without its files": pack(EUROPARL, {"training/other": b"text\n"}),
        "a file above it": pack(EUROPARL, {"../../../outside": b"text\n"}),
        "a file at the root": pack(EUROPARL, {f"{OUTSIDE}/text": b"text\n"}),
        "a link out of it": linked("training/europarl-v7.de-en.de", "/etc/hostname"),
    }


def linked(name, target):
    """Return an archive with a symbolic link."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, target
        archive.addfile(member)
    return packed.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        "cut short",
        *(pytest.param(name, marks=pytest.mark.slow) for name in [*damaged_archives()][1:]),
    ],
)
def test_a_damaged_archive_in_the_cache(tmp_path, served, damage):
    """TFDS never checks its cache again, so the archive and its unpacked content are deleted."""
    good = {url: content for url, (content, _) in served.contents.items()}
    put_into_cache(tmp_path, good | {EUROPARL: damaged_archives()[damage]})
    place = archive(tmp_path, EUROPARL).place
    message = failure(tmp_path)
    assert message.startswith(f"{place}: damaged (")
    assert f"and now deleted; wanted {EUROPARL} with sha256" in message
    assert ways_out(message, "training-parallel-europarl-v7.tgz", tmp_path)
    assert not [name for name in files(tmp_path) if place.name in name]
    assert not unfinished(tmp_path)
    assert not (tmp_path / "outside").exists()
    assert not OUTSIDE.exists()
    assert len(read("dev", tmp_path)) == 3000
    assert [url for verb, url in served.asked if verb == "GET"] == [EUROPARL]


def test_other_failures_of_the_preparation(tmp_path, served):
    """Intact archives are kept."""
    good = {url: content for url, (content, _) in served.contents.items()}
    put_into_cache(tmp_path, good)
    before = files(tmp_path)
    (tmp_path / "wmt14_translate").write_text("a file, where TFDS wants a directory")
    message = failure(tmp_path)
    assert message.startswith("wmt14_translate/de-en cannot be prepared (")
    assert before <= files(tmp_path)


def test_an_interrupted_preparation_leaves_nothing_half_prepared(tmp_path, monkeypatch):
    def interrupt(self, **arguments):
        raise KeyboardInterrupt

    put_into_cache(tmp_path, small_archives("de-en"))
    with monkeypatch.context() as patch:
        patch.setattr(tfds.builder_cls(wmt.NAME), "_generate_examples", interrupt)
        with pytest.raises(KeyboardInterrupt):
            read("dev", tmp_path)
    assert not unfinished(tmp_path)
    assert not builder(tmp_path).data_path.exists()
    assert len(read("dev", tmp_path)) == 3000


# What a data directory can be


def test_a_missing_data_directory(tmp_path):
    message = failure(tmp_path / "absent")
    assert message.startswith(
        f"--data_dir={tmp_path}/absent: no such directory; wanted TFDS's data"
    )
    assert not (tmp_path / "absent").exists()


def test_a_data_directory_one_level_too_deep(copy, no_network):
    message = failure(copy.parent)
    assert "inside wmt14_translate/; wanted the directory that holds" in message
    assert message.endswith(f"--data_dir={copy.parents[2]}")


def _cut(name, size):
    return lambda directory: os.truncate(directory / name, size)


def _remove(name):
    return lambda directory: (directory / name).unlink()


def _pipe(name):
    def replace(directory):
        (directory / name).unlink()
        os.mkfifo(directory / name)

    return replace


def _cut_between_records(directory):
    """A TFRecord has 12 bytes, which begin with the data's length, its data, and 4 bytes."""
    path = directory / TRAIN_FILE
    size = int.from_bytes(path.read_bytes()[:8], "little")
    os.truncate(path, 12 + size + 4)


def _exchange(old, new):
    def exchange(directory):
        path = directory / "dataset_info.json"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return exchange


TRAIN_FILE = "wmt14_translate-train.tfrecord-00000-of-00001"


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_cut(TRAIN_FILE, 1000), "damaged (truncated record at"),
        (_cut(TRAIN_FILE, 0), "damaged (train has 0 of 3990 pairs)"),
        (_cut_between_records, "damaged (train has 1 of 3990 pairs)"),
        (_remove(TRAIN_FILE), "No such file or directory)"),
        (_pipe(TRAIN_FILE), f"{TRAIN_FILE} is not a file)"),
        (_pipe("dataset_info.json"), "dataset_info.json is not a file)"),
        (_exchange('"train"', '"training"'), "damaged (Unknown split 'train'."),
        (_cut("dataset_info.json", 100), "damaged (Failed to load JSON"),
        (_exchange("1.0.0", "0.9.9"), "Proto version: 0.9.9)"),
        (_remove("dataset_info.json"), "incomplete, without dataset_info.json"),
        (lambda directory: directory.rename(directory.with_name("0.0.3")), "holds version 0.0.3; "),
    ],
)
def test_unusable_prepared_data(copy, no_network, spoil, expected):
    spoil(copy)
    message = failure(copy.parents[2])
    assert message.startswith(str(copy.parent))
    assert expected in message
    assert "{{" not in message
    assert "[Op:" not in message
    assert message.endswith("prepared anew, or give another --data_dir")


def test_damage_is_reported_when_it_is_reached(copy, no_network):
    """Reading streams: the pairs before the damage are yielded."""
    size = (copy / TRAIN_FILE).stat().st_size
    os.truncate(copy / TRAIN_FILE, size - 1)
    pairs = wmt.examples("train", languages="de-en", data_dir=str(copy.parents[2]))
    arrived = []
    with pytest.raises(BadInput, match="truncated record"):
        arrived.extend(pairs)
    assert len(arrived) >= 3072


# A whole process


@pytest.mark.slow
def test_train_without_network(tmp_path, no_network):
    needed = wmt.needed_bytes(wmt.archives(builder(tmp_path), "de-en"), "de-en")
    if real_disk_usage(tmp_path).free < needed:
        pytest.skip(f"the disk is asked for before the network: needs {needed:,} bytes free")
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-m", "t2t_repro.train", "--problem=wmt14_ende", "--data_dir=."],
        capture_output=True,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: wmt14_translate/de-en cannot be downloaded (ProxyError)")
    assert files(tmp_path) == {"runs/wmt14_ende/.lock"}


@both_languages
@pytest.mark.slow
def test_train(prepared, tmp_path, languages):
    """Train a tiny model for two updates in a separate process."""
    problem = {"de-en": "wmt14_ende", "fr-en": "wmt14_enfr"}[languages]
    flags = {
        "num_layers": 1,
        "d_model": 16,
        "d_ff": 16,
        "num_heads": 2,
        "vocabulary_size": 2000,
        "tokens_per_batch": 4000,
        "train_steps": 2,
        "eval_sentences": 2,
        "beam_size": 1,
    }
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "t2t_repro.train", "--workdir=run", f"--problem={problem}"),
            f"--data_dir={prepared(languages)}",
            *(f"--{name}={value}" for name, value in flags.items()),
        ],
        capture_output=True,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for split in ("train", "dev"):
        (path,) = tmp_path.glob(f"run/prepared/{split}*/manifest.json")
        manifest = json.loads(path.read_text())
        text = list(read(split, prepared(languages), languages))
        assert manifest["pairs"] + sum(manifest["dropped"].values()) == len(text) > 1000
    assert (tmp_path / "run/checkpoints/step-2.index").exists()


@pytest.mark.parametrize("languages", ["de-en", "fr-en"])
def test_streamed_records_are_the_examples(prepared, languages):
    directory = str(prepared(languages))
    run = config.resolve(
        {"de-en": "wmt14_ende", "fr-en": "wmt14_enfr"}[languages], overrides={"data_dir": directory}
    )
    text = PROBLEMS[run.problem].training_files(run)
    sides = next(iter(read_records(text, seed=1).batch(1_000_000)))
    streamed = zip(*(side.numpy().tolist() for side in text.parse(sides)), strict=True)
    pairs = read("train", directory, languages)
    expected = [(pair["source"].encode(), pair["target"].encode()) for pair in pairs]
    assert sorted(streamed) == sorted(expected)
