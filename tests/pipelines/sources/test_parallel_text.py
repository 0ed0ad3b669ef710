import bz2
import gzip
import lzma

import pytest

from pipelines.errors import BadInput
from pipelines.sources import parallel_text, text_files

NO_FILES = {
    "source_files": [],
    "target_files": [],
    "tsv_files": [],
    "dev_source_files": [],
    "dev_target_files": [],
    "test_source_files": [],
    "test_target_files": [],
    "held_out_share": 0.0,
}


def read(split, **options):
    return list(parallel_text.examples(split, **{**NO_FILES, **options}))


def write(path, content):
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def one_line(raised):
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.fixture
def numbered(tmp_path):
    """Write 2,000 pairs (sN, tN)."""
    return {
        "source_files": [write(tmp_path / "s", "".join(f"s{n}\n" for n in range(2000)))],
        "target_files": [write(tmp_path / "t", "".join(f"t{n}\n" for n in range(2000)))],
    }


# Reading


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_only_newline_ends_a_line(tmp_path, name):
    path = write(tmp_path / name, "a\x85b\u2028c\x0cd\re\r\n\n\x1c \nlast")
    assert list(text_files.lines(path)) == ["a\x85b\u2028c\x0cd\re", "", "\x1c ", "last"]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = write(tmp_path / "text", "\ufeffa\n\ufeffb\n")
    assert list(text_files.lines(path)) == ["a", "\ufeffb"]


def test_only_one_carriage_return_belongs_to_the_line_end(tmp_path):
    assert list(text_files.lines(write(tmp_path / "text", "a\r\r\nb\r"))) == ["a\r", "b"]


def test_files_are_read_one_after_another(tmp_path):
    sources = [write(tmp_path / "a.en", "1\n2\n"), write(tmp_path / "b.en.gz", "3\n")]
    targets = [write(tmp_path / "a.de.gz", "I\nII\n"), write(tmp_path / "b.de", "III")]
    pairs = read("train", source_files=sources, target_files=targets)
    assert [(pair["source"], pair["target"]) for pair in pairs] == [
        ("1", "I"),
        ("2", "II"),
        ("3", "III"),
    ]


def test_tab_separated(tmp_path):
    files = [write(tmp_path / "a.tsv", "1\tI\r\n\t\n"), write(tmp_path / "b.tsv.gz", "3\tIII\n")]
    assert read("train", tsv_files=files) == [
        {"source": "1", "target": "I"},
        {"source": "", "target": ""},
        {"source": "3", "target": "III"},
    ]


def test_reading_streams(tmp_path):
    """The first pair is yielded before the broken third line is reached."""
    path = write(tmp_path / "a.tsv", "1\tI\n2\tII\nno tab\n")
    pairs = parallel_text.examples("train", **{**NO_FILES, "tsv_files": [path]})
    assert next(pairs) == {"source": "1", "target": "I"}


# Splitting


def test_own_files_are_used_and_nothing_is_split_off(tmp_path, numbered):
    own = {
        "dev_source_files": [write(tmp_path / "dev.s", "dev\n")],
        "dev_target_files": [write(tmp_path / "dev.t", "DEV\n")],
        "test_source_files": [write(tmp_path / "test.s", "test\n")],
        "test_target_files": [write(tmp_path / "test.t", "TEST\n")],
    }
    assert read("dev", **numbered, **own, held_out_share=0.2) == [
        {"source": "dev", "target": "DEV"}
    ]
    assert read("test", **numbered, **own) == [{"source": "test", "target": "TEST"}]
    assert len(read("train", **numbered, **own, held_out_share=0.2)) == 2000


def test_a_share_is_split_off_without_loss_or_overlap(numbered):
    splits = {name: read(name, **numbered, held_out_share=0.2) for name in ("train", "dev", "test")}
    # Binomial(2000, 0.2): 400 with a standard deviation of 18.
    assert 310 < len(splits["dev"]) < 490
    assert 310 < len(splits["test"]) < 490
    sources = [pair["source"] for pairs in splits.values() for pair in pairs]
    assert sorted(sources) == sorted(f"s{n}" for n in range(2000))
    assert all(pair["target"] == "t" + pair["source"][1:] for pair in splits["dev"])


def test_own_dev_files_leave_the_test_split_where_it_was(tmp_path, numbered):
    own_dev = {
        "dev_source_files": [write(tmp_path / "dev.s", "dev\n")],
        "dev_target_files": [write(tmp_path / "dev.t", "DEV\n")],
    }
    without, with_dev = (
        read("test", **numbered, **dev, held_out_share=0.2) for dev in ({}, own_dev)
    )
    assert with_dev == without
    assert len(read("train", **numbered, **own_dev, held_out_share=0.2)) == 2000 - len(without)


def test_a_repeated_source_is_never_on_both_sides(tmp_path):
    """Each of 100 sentences occurs five times, each time with another translation."""
    rows = "".join(f"s{n % 100}\tt{n}\n" for n in range(500))
    path = write(tmp_path / "a.tsv", rows)
    sides = [
        {pair["source"] for pair in read(name, tsv_files=[path], held_out_share=0.2)}
        for name in ("train", "dev", "test")
    ]
    assert sum(len(side) for side in sides) == len(set.union(*sides)) == 100


# Bad input


@pytest.fixture
def message(tmp_path):
    """Read a pair of files with the given content, and return the one-line message raised."""

    def read_files(source, target, name="en"):
        files = {"source_files": [str(tmp_path / name)], "target_files": [str(tmp_path / "de")]}
        for path, content in zip((tmp_path / name, tmp_path / "de"), (source, target), strict=True):
            if content is not None:
                path.write_bytes(content)
        with pytest.raises(BadInput) as raised:
            read("train", **files)
        return one_line(raised)

    return read_files


def test_missing_file(message, tmp_path):
    assert message(None, b"a\n").startswith(f"{tmp_path / 'en'}: no such file; wanted")


def test_a_directory_is_no_file(message, tmp_path):
    (tmp_path / "folder").mkdir()
    assert f"{tmp_path / 'folder'}: cannot be read" in message(None, b"a\n", name="folder")


def test_empty_file(message, tmp_path):
    assert message(b"", b"a\n").startswith(f"{tmp_path / 'en'}: empty file; wanted")


@pytest.mark.parametrize(
    ("source", "target", "counts"),
    [(b"1\n2\n3\n4\n", b"I\n", (4, 1)), (b"1\n2\n", b"I\nII\nIII\nIV\nV", (2, 5))],
)
def test_unequal_lengths(message, tmp_path, source, target, counts):
    text = message(source, target)
    assert text.startswith(f"{tmp_path / 'en'}: {counts[0]} lines, but {tmp_path / 'de'}: ")
    assert f"{tmp_path / 'de'}: {counts[1]} lines; wanted" in text


def test_invalid_utf8_names_the_line(message, tmp_path):
    text = message(b"ok\nsch\xf6n\n", b"a\nb\n")
    assert text.startswith(f"{tmp_path / 'en'}, line 2: not UTF-8 (byte 0xf6 at byte 4 of")
    assert text.endswith("iconv -f LATIN1 -t UTF-8")


@pytest.mark.parametrize("order", ["le", "be"])
def test_utf16_is_recognised_by_its_mark(message, order):
    text = message("\ufeffa line\n".encode(f"utf-16-{order}"), b"a\n")
    assert text.endswith("iconv -f UTF-16 -t UTF-8")


@pytest.mark.parametrize("order", ["LE", "BE"])
def test_utf16_without_a_mark_is_recognised_by_its_nul_bytes(message, tmp_path, order):
    text = message("a line\n".encode(f"utf-16-{order}"), b"a\n")
    assert text.startswith(f"{tmp_path / 'en'}: NUL bytes in the first line")
    assert text.endswith(f"iconv -f UTF-16{order} -t UTF-8")


@pytest.mark.parametrize(
    "broken",
    [
        gzip.compress(b"a line\n" * 1000)[:-12],
        b"plain text\n",
        gzip.compress(b"a")[:12] + b"\xff" * 9,
    ],
    ids=["truncated", "not gzip", "damaged"],
)
def test_broken_gzip(message, tmp_path, broken):
    text = message(broken, b"a line\n" * 1000, name="en.gz")
    assert text.startswith(f"{tmp_path / 'en.gz'}: broken gzip file")


@pytest.mark.parametrize("packer", [gzip, bz2, lzma])
def test_a_compressed_file_with_a_plain_name(message, packer):
    names = {gzip: "gzip", bz2: "bzip2", lzma: "xz"}
    text = message(packer.compress(b"a line\n" * 9), b"a line\n" * 9)
    assert f"compressed by {names[packer]}; wanted plain text, or gzip in a file whose" in text


@pytest.mark.parametrize(("line", "tabs"), [("no tab", 0), ("a\tb\tc", 2), ("", 0)])
def test_tsv_needs_exactly_one_tab(tmp_path, line, tabs):
    path = write(tmp_path / "a.tsv", f"a\tb\n{line}\n")
    with pytest.raises(BadInput) as raised:
        read("train", tsv_files=[path])
    assert one_line(raised).startswith(f"{path}, line 2: {tabs} tabs; wanted exactly one")


@pytest.mark.parametrize(
    ("split", "options", "expected"),
    [
        ("train", {}, "nothing given; wanted one kind"),
        (
            "train",
            {"source_files": ["a"], "target_files": ["b"], "tsv_files": ["c"]},
            "both kinds given",
        ),
        ("train", {"source_files": ["a", "b"], "target_files": ["c"]}, "--target_files 1; wanted"),
        ("train", {"tsv_files": ["a"], "dev_source_files": ["b"]}, "--dev_target_files 0; wanted"),
        ("train", {"tsv_files": ["a"], "held_out_share": 0.5}, "--held_out_share=0.5: wanted"),
        ("train", {"tsv_files": ["a"], "held_out_share": -0.1}, "--held_out_share=-0.1: wanted"),
        ("test", {"tsv_files": ["a"]}, "give --test_source_files and --test_target_files"),
    ],
)
def test_flags_that_do_not_fit_together_raise_before_any_reading(split, options, expected):
    with pytest.raises(BadInput) as raised:
        parallel_text.examples(split, **{**NO_FILES, **options})
    assert expected in one_line(raised)


def test_an_empty_split_is_an_error(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tb\n")
    with pytest.raises(BadInput) as raised:
        read("dev", tsv_files=[path], held_out_share=0.0001)
    assert "no training pair falls into dev with --held_out_share=0.0001" in one_line(raised)
