"""The file of a word alignment: read if it is good, and made anew if it is not."""

import numpy as np
import pytest

from pipelines.augmentation import links_file
from pipelines.augmentation.alignment import links
from pipelines.shard_files import checksum

WORDS = [
    (["the", "house"], ["das", "haus"]),
    ([], ["nichts"]),
    (["the", "book"], ["das", "buch"]),
]


def with_checksum(*rows):
    numbers = np.array(rows, "<i4").tobytes()
    return checksum(numbers).encode() + numbers


def read_or_align(path, words=WORDS):
    return links_file.read_or_align(path, words).tolist()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "prepared" / "links"


def test_links_are_computed_once(path, monkeypatch):
    found = links(WORDS).tolist()
    assert read_or_align(path) == found != []
    monkeypatch.delattr(links_file, "links")
    assert read_or_align(path) == found


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0" * 16,
        with_checksum((0, 0, 0))[:-1],
        with_checksum((3, 0, 0)),
        with_checksum((-1, 0, 0)),
        with_checksum((0, 2, 0)),
        with_checksum((0, 0, -1)),
        with_checksum((1, 0, 0)),
        b"0" + with_checksum((0, 0, 0))[1:],
    ],
)
def test_what_cannot_be_the_links_of_these_pairs_is_made_anew(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    assert read_or_align(path) == links(WORDS).tolist()
    assert len(path.read_bytes()) == 16 + 12 * len(links(WORDS))


def test_a_good_file_is_believed(path):
    path.parent.mkdir()
    path.write_bytes(with_checksum((2, 1, 0)))
    assert read_or_align(path) == [[2, 1, 0]]


def test_no_links(path):
    pairs = [([], []), (["alone"], [])]
    assert {pair for pair, _, _ in read_or_align(path, [*WORDS[:1], *pairs])} == {0}
