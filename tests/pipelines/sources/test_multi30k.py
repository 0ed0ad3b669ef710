"""The builder downloads from a server on 127.0.0.1 that mirrors the layout of the source."""

import functools
import gzip
import hashlib
import http.server
import shutil
import threading

import pytest
import tensorflow_datasets as tfds
from paths import DATA

from pipelines.errors import BadInput
from pipelines.sources import multi30k, text_files

MULTI30K = DATA / "multi30k"
real_data = pytest.mark.skipif(not MULTI30K.exists(), reason="needs the real Multi30k files")
both_versions = pytest.mark.parametrize("tokenized", [False, True], ids=["raw", "tok"])
SIZES = {"train": 29_000, "dev": 1_014, "test": 1_000}


def made_up_text(name):
    """Return a distinct text for each of the twelve files: 12 train, 3 dev and 2 test lines."""
    count = 12 if "train" in name else 3 if "val" in name else 2
    return "".join(f"{name} Übung {n}\n" for n in range(count)).encode()


def expected_pairs(split, tokenized):
    names = multi30k._file_names(split, "tok" if tokenized else "raw")
    source, target = (made_up_text(name).decode().splitlines() for name in names)
    return [{"source": s, "target": t} for s, t in zip(source, target, strict=True)]


@pytest.fixture
def data_dir(tmp_path):
    """Write made-up files as in a --data_dir; the training files are gzipped."""
    directory = tmp_path / "files"
    (directory / "tok").mkdir(parents=True)
    for name in multi30k.SHA256:
        text = made_up_text(name)
        if "train" in name:
            (directory / f"{name}.gz").write_bytes(gzip.compress(text))
        else:
            (directory / name).write_bytes(text)
    return directory


@pytest.fixture
def served(tmp_path):
    """Run a server in place of the source repository, and return its directory."""
    directory = tmp_path / "served"
    for name in multi30k.SHA256:
        text = made_up_text(name)
        path = directory / (name if name.startswith("tok/") else f"raw/{name}.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if name.startswith("tok/") else gzip.compress(text))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(multi30k, "BASE_ADDRESS", f"http://127.0.0.1:{server.server_port}")
            yield directory
        server.shutdown()
        thread.join()


@pytest.fixture
def tfds_home(tmp_path, monkeypatch):
    """Return an empty directory for TFDS, with the digests of the made-up texts registered."""
    home = tmp_path / "tfds"
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(home))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    digests = {name: hashlib.sha256(made_up_text(name)).hexdigest() for name in multi30k.SHA256}
    monkeypatch.setattr(multi30k, "SHA256", digests)
    return home


def download(split="dev", tokenized=False):
    return list(multi30k.examples(split, data_dir=None, tokenized=tokenized))


def failure(data_dir=None, tokenized=False):
    with pytest.raises(BadInput) as raised:
        list(multi30k.examples("dev", data_dir=data_dir, tokenized=tokenized))
    message = str(raised.value)
    assert "\n" not in message
    return message


# From the files of --data_dir


@both_versions
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_files_plain_or_gzipped(data_dir, split, tokenized):
    pairs = list(multi30k.examples(split, data_dir=str(data_dir), tokenized=tokenized))
    assert pairs == expected_pairs(split, tokenized)


@real_data
@both_versions
def test_real_files_have_the_published_sizes(tokenized):
    for split, size in SIZES.items():
        pairs = multi30k.examples(split, data_dir=str(MULTI30K), tokenized=tokenized)
        assert sum(1 for _ in pairs) == size


@real_data
@pytest.mark.parametrize("name", multi30k.SHA256)
def test_known_digests_are_those_of_the_real_files(name):
    with text_files.open_bytes(multi30k._find(str(MULTI30K), name)) as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == multi30k.SHA256[name]


@both_versions
def test_a_directory_without_the_data(tmp_path, tokenized):
    message = failure(str(tmp_path), tokenized)
    assert message.startswith(f"--data_dir={tmp_path}: holds no Multi30k")
    expected = "tok/val.lc.norm.tok.de" if tokenized else "test_2016_flickr.de"
    assert expected in message


def test_a_missing_directory(tmp_path):
    assert "holds no Multi30k (raw); wanted train.en, " in failure(str(tmp_path / "nowhere"))


def test_one_file_of_a_pair_missing(data_dir):
    (data_dir / "val.de").unlink()
    assert failure(str(data_dir)).startswith(f"{data_dir / 'val.de'}: no such file")


def test_given_files_are_taken_as_they_are(data_dir):
    """A user may shorten the files or correct a sentence: their digests are not checked."""
    for language in ("en", "de"):
        (data_dir / f"val.{language}").write_text("another\n", encoding="utf-8")
    pairs = multi30k.examples("dev", data_dir=str(data_dir), tokenized=False)
    assert list(pairs) == [{"source": "another", "target": "another"}]


# Through TFDS


def test_addresses():
    root = (
        "https://raw.githubusercontent.com/multi30k/dataset/"
        "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1"
    )
    assert multi30k._address("val.de") == f"{root}/raw/val.de.gz"
    assert multi30k._address("tok/val.lc.norm.tok.de") == f"{root}/tok/val.lc.norm.tok.de"


@both_versions
def test_download_prepare_and_read(served, tfds_home, tokenized, capsys):
    assert download("train", tokenized) == expected_pairs("train", tokenized)
    assert capsys.readouterr().out == ""  # Standard output is reserved for results.
    shutil.rmtree(served)  # From here on, the data TFDS has prepared are read.
    for split in ("dev", "test"):
        assert download(split, tokenized) == expected_pairs(split, tokenized)
    prepared = multi30k.examples("dev", data_dir=str(tfds_home), tokenized=tokenized)
    assert list(prepared) == expected_pairs("dev", tokenized)


def test_info_of_the_prepared_data(served, tfds_home):
    download()
    info = multi30k.Multi30kEnde(config="raw").info
    assert info.full_name == "multi30k_ende/raw/1.0.0"
    sizes = {name: split.num_examples for name, split in info.splits.items()}
    assert sizes == {"train": 12, "validation": 3, "test": 2}


@both_versions
def test_an_altered_file_fails_and_is_downloaded_anew(served, tfds_home, tokenized):
    name = multi30k._file_names("dev", "tok" if tokenized else "raw")[0]
    path = served / multi30k._address(name).removeprefix(f"{multi30k.BASE_ADDRESS}/")
    good = path.read_bytes()
    altered = made_up_text(name).replace(b"Y", b"Z") + b"one more\n"
    path.write_bytes(altered if tokenized else gzip.compress(altered))
    message = failure(tokenized=tokenized)
    assert message.startswith(multi30k._address(name))
    assert hashlib.sha256(altered).hexdigest() in message
    assert multi30k.SHA256[name] in message
    path.write_bytes(good)
    assert download(tokenized=tokenized) == expected_pairs("dev", tokenized)


def test_a_truncated_download_fails_and_is_downloaded_anew(served, tfds_home):
    path = served / "raw" / "train.de.gz"
    good = path.read_bytes()
    path.write_bytes(good[:-9])
    message = failure()
    assert message.startswith(multi30k._address("train.de"))
    assert "sha256 none, being cut short or damaged; wanted" in message
    path.write_bytes(good)
    assert download() == expected_pairs("dev", tokenized=False)


def test_a_file_that_the_server_lacks(served, tfds_home):
    (served / "raw" / "val.en.gz").unlink()
    message = failure()
    assert "HTTP code: 404" in message
    assert "--data_dir=D" in message


def test_no_network(tfds_home, monkeypatch):
    monkeypatch.setattr(multi30k, "BASE_ADDRESS", "http://127.0.0.1:9")  # Nobody listens there.
    # TFDS would retry for over three minutes, so it must not be called.
    monkeypatch.setattr(tfds.download.DownloadManager, "download", None)
    message = failure()
    assert message.startswith("Multi30k cannot be downloaded (ConnectionError); wanted")
    assert "wanted the files of http://127.0.0.1:9/raw: " in message
    assert "D/test_2016_flickr.de (each plain or .gz)" in message


@real_data
def test_the_real_text_passes_the_real_digests(tmp_path, served, monkeypatch):
    """29,000 pairs through TFDS equal the files."""
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for split in SIZES:
        for name in multi30k._file_names(split, "raw"):
            with text_files.open_bytes(multi30k._find(str(MULTI30K), name)) as file:
                (served / "raw" / f"{name}.gz").write_bytes(gzip.compress(file.read()))
    for split in SIZES:
        from_files = multi30k.examples(split, data_dir=str(MULTI30K), tokenized=False)
        assert download(split) == list(from_files)
