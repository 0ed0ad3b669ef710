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
from t2t_repro import config
from t2t_repro.problems import PROBLEMS
from t2t_repro.scoring import bleu

MULTI30K = DATA / "multi30k"
real_data = pytest.mark.skipif(not MULTI30K.exists(), reason="needs the real Multi30k files")
both_versions = pytest.mark.parametrize("tokenized", [False, True], ids=["raw", "tok"])
all_directions = pytest.mark.parametrize("direction", ["en-de", "de-en", "en-fr"])
NAMES = [*multi30k.SHA256, *multi30k.LINES]
SIZES = {"train": 29_000, "dev": 1_014, "test": 1_000}


def made_up_text(name):
    """Return a distinct text for each file: 12 train, 3 dev and 2 test lines."""
    count = 12 if "train" in name else 3 if "val" in name else 2
    return "".join(f"{name} Übung {n}\n" for n in range(count)).encode()


def file_names(split, tokenized, direction="en-de"):
    config = "tok" if tokenized else "raw"
    return [multi30k._file_name(split, config, language) for language in direction.split("-")]


def expected_pairs(split, tokenized, direction="en-de"):
    names = file_names(split, tokenized, direction)
    source, target = (made_up_text(name).decode().splitlines() for name in names)
    return [{"source": s, "target": t} for s, t in zip(source, target, strict=True)]


@pytest.fixture
def data_dir(tmp_path):
    """Write made-up files as in a --data_dir; the training files are gzipped."""
    directory = tmp_path / "files"
    (directory / "tok").mkdir(parents=True)
    for name in NAMES:
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
    for name in NAMES:
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
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    digests = {name: hashlib.sha256(made_up_text(name)).hexdigest() for name in multi30k.SHA256}
    monkeypatch.setattr(multi30k, "SHA256", digests)
    counts = {name: made_up_text(name).count(b"\n") for name in multi30k.LINES}
    monkeypatch.setattr(multi30k, "LINES", counts)
    return home


def read(split, data_dir, tokenized, direction="en-de"):
    source, target = direction.split("-")
    pairs = multi30k.examples(
        split, source=source, target=target, data_dir=data_dir, tokenized=tokenized
    )
    return list(pairs)


def download(split="dev", tokenized=False, direction="en-de"):
    return read(split, None, tokenized, direction)


def failure(data_dir=None, tokenized=False, direction="en-de"):
    with pytest.raises(BadInput) as raised:
        read("dev", data_dir, tokenized, direction)
    message = str(raised.value)
    assert "\n" not in message
    return message


# From the files of --data_dir


@all_directions
@both_versions
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_files_plain_or_gzipped(data_dir, split, tokenized, direction):
    pairs = read(split, str(data_dir), tokenized, direction)
    assert pairs == expected_pairs(split, tokenized, direction)


@all_directions
@pytest.mark.parametrize("variant", ["base", "raw"])
def test_problems(data_dir, variant, direction):
    problem = f"multi30k_{direction.replace('-', '')}"
    settings = config.resolve(problem, variant, {"data_dir": str(data_dir)})
    pairs = list(PROBLEMS[problem].examples("dev", settings))
    assert pairs == expected_pairs("dev", variant == "base", direction)
    assert settings.data.target_language == direction[-2:]


@real_data
@both_versions
def test_real_german_is_the_source_and_english_the_target(tokenized):
    """Told apart by letters and words, not by file names."""
    pairs = read("dev", str(MULTI30K), tokenized, "de-en")
    source, target = (" ".join(pair[side] for pair in pairs) for side in ("source", "target"))
    assert source.count("ü") > 100 > target.count("ü")
    assert target.count(" the ") > 100 > source.count(" the ")
    turned = [{"source": p["target"], "target": p["source"]} for p in pairs]
    assert turned == read("dev", str(MULTI30K), tokenized, "en-de")


@real_data
def test_german_files_alone_are_not_french(tmp_path):
    message = failure(str(MULTI30K), direction="en-fr")
    assert message.startswith(f"{MULTI30K / 'val.fr'}: no such file")


@real_data
@both_versions
def test_real_files_have_the_published_sizes(tokenized):
    for split, size in SIZES.items():
        assert len(read(split, str(MULTI30K), tokenized)) == size


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


def test_a_directory_without_french(tmp_path):
    message = failure(str(tmp_path), direction="en-fr")
    assert "wanted train.en, train.fr, val.en, val.fr, " in message
    assert "or multi30k_enfr/ prepared by TFDS" in message


def test_one_file_of_a_pair_missing(data_dir):
    (data_dir / "val.de").unlink()
    assert failure(str(data_dir)).startswith(f"{data_dir / 'val.de'}: no such file")


def test_given_files_are_taken_as_they_are(data_dir):
    """A user may shorten the files or correct a sentence: their digests are not checked."""
    for language in ("en", "de"):
        (data_dir / f"val.{language}").write_text("another\n", encoding="utf-8")
    assert read("dev", str(data_dir), tokenized=False) == [
        {"source": "another", "target": "another"}
    ]


# Through TFDS


def test_addresses():
    root = (
        "https://raw.githubusercontent.com/multi30k/dataset/"
        "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1"
    )
    assert multi30k._address("val.de") == f"{root}/raw/val.de.gz"
    assert multi30k._address("tok/val.lc.norm.tok.de") == f"{root}/tok/val.lc.norm.tok.de"
    assert multi30k._address("train.fr") == f"{root}/raw/train.fr.gz"


@both_versions
@pytest.mark.parametrize("direction", ["en-de", "en-fr"])
def test_download_prepare_and_read(served, tfds_home, tokenized, direction, capsys):
    assert download("train", tokenized, direction) == expected_pairs("train", tokenized, direction)
    assert capsys.readouterr().out == ""  # Standard output is reserved for results.
    shutil.rmtree(served)  # From here on, the data TFDS has prepared are read.
    for split in ("dev", "test"):
        expected = expected_pairs(split, tokenized, direction)
        assert download(split, tokenized, direction) == expected
    prepared = read("dev", str(tfds_home), tokenized, direction)
    assert prepared == expected_pairs("dev", tokenized, direction)


def test_both_directions_share_what_is_prepared(served, tfds_home):
    download(direction="en-de")
    shutil.rmtree(served)
    expected = expected_pairs("dev", tokenized=False, direction="de-en")
    assert download(direction="de-en") == expected
    assert read("dev", str(tfds_home), False, "de-en") == expected


def test_info_of_the_prepared_data(served, tfds_home):
    download()
    info = multi30k.Multi30kEnde(config="raw").info
    assert info.full_name == "multi30k_ende/raw/1.0.0"
    sizes = {name: split.num_examples for name, split in info.splits.items()}
    assert sizes == {"train": 12, "validation": 3, "test": 2}


@both_versions
def test_an_altered_file_fails_and_is_downloaded_anew(served, tfds_home, tokenized):
    name = file_names("dev", tokenized)[0]
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
    assert "has no end, being cut short or damaged; wanted sha256 " in message
    path.write_bytes(good)
    assert download() == expected_pairs("dev", tokenized=False)


@both_versions
def test_too_few_lines_of_french_fail_and_are_downloaded_anew(served, tfds_home, tokenized):
    """No digest of the French files is known."""
    name = file_names("dev", tokenized, "en-fr")[1]
    path = served / multi30k._address(name).removeprefix(f"{multi30k.BASE_ADDRESS}/")
    good = path.read_bytes()
    short = made_up_text(name).partition(b"\n")[0] + b"\n"
    path.write_bytes(short if tokenized else gzip.compress(short))
    message = failure(tokenized=tokenized, direction="en-fr")
    assert message.startswith(f"{multi30k._address(name)}: the downloaded text has 1 lines; wanted")
    assert "; wanted 3 lines: run again" in message
    path.write_bytes(good)
    expected = expected_pairs("dev", tokenized, "en-fr")
    assert download(tokenized=tokenized, direction="en-fr") == expected


def test_french_has_as_many_lines_as_the_splits_have_pairs():
    for split, size in SIZES.items():
        for config_name in ("raw", "tok"):
            assert multi30k.LINES[multi30k._file_name(split, config_name, "fr")] == size


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
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    for split in SIZES:
        for name in file_names(split, tokenized=False):
            with text_files.open_bytes(multi30k._find(str(MULTI30K), name)) as file:
                (served / "raw" / f"{name}.gz").write_bytes(gzip.compress(file.read()))
    for split in SIZES:
        assert download(split) == read(split, str(MULTI30K), tokenized=False)


# Scores in the target language


def paper_bleu(problem, variant, hypothesis, reference):
    settings = config.resolve(problem, variant)
    return PROBLEMS[problem].score([hypothesis], [reference], settings)["paper_bleu"]


def test_only_german_compounds_are_split():
    """With German's step the part `tee` matches."""
    hypothesis, reference = "une table avec un tee-shirt", "une table avec un tee-shirts"
    into = {
        problem: paper_bleu(problem, "base", hypothesis, reference)
        for problem in ("multi30k_ende", "multi30k_deen", "multi30k_enfr")
    }
    assert into["multi30k_deen"] == into["multi30k_enfr"] < into["multi30k_ende"]


@pytest.mark.parametrize(
    ("problem", "hypothesis", "reference"),
    [
        ("multi30k_deen", "The man's big dog barks at a tree.", "The man big dog barks at a tree."),
        ("multi30k_enfr", "Il peint un arbre dans la rue.", "Il peint l'arbre dans la rue."),
    ],
)
def test_raw_text_is_tokenised_as_the_target_language(problem, hypothesis, reference):
    """Moses keeps the apostrophe with `'s` in English and with `l'` in French."""
    found = paper_bleu(problem, "raw", hypothesis, reference)
    of = {
        language: bleu.paper_bleu([hypothesis], [reference], language)
        for language in ("en", "fr", "de")
    }
    assert found == of.pop(problem[-2:])
    assert found > max(of.values())
