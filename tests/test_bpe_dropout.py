"""The same sentences in other pieces, at random but the same ones again."""

import dataclasses
from itertools import islice

import numpy as np
import pytest

from pipelines import toy
from pipelines.batching import Batching
from pipelines.bpe_dropout import BpeDropout
from pipelines.prepare import prepare
from pipelines.prepared import Prepared
from pipelines.vocabulary import EOS, PAD, Vocabulary
from t2t_repro import config
from t2t_repro.corpus import Corpus

MOST = 256


@pytest.fixture(scope="module")
def pairs():
    return list(islice(toy.examples("train"), 300))


@pytest.fixture(scope="module")
def vocabulary(pairs):
    return Vocabulary.learn((text for pair in pairs for text in pair.values()), 600)


@pytest.fixture(scope="module")
def prepared(pairs, vocabulary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared")
    prepare(lambda: pairs, vocabulary, MOST, directory)
    return Prepared.load(directory)


@pytest.fixture
def dropout(vocabulary):
    return BpeDropout(vocabulary, chance=0.1, batches=10**6, most=MOST, seed=1)


def batching(prepared, dropout=None):
    return Batching(
        prepared, tokens_per_batch=600, max_shapes=8, count_padding=True, seed=1, dropout=dropout
    )


def rows(split, epoch=0, first=0):
    """Of both sides, without padding, batch after batch."""
    return [
        [[i for i in row if i != PAD] for row in side.tolist()]
        for batch in split.batches(epoch, first).as_numpy_iterator()
        for side in batch
    ]


def pieces(batches):
    return sum(len(row) for batch in batches for row in batch)


def changed(before, after):
    """Whether each row is another."""
    sides = zip(before, after, strict=True)
    return [old != new for one, other in sides for old, new in zip(one, other, strict=True)]


def test_the_text_stays_and_its_pieces_do_not(prepared, vocabulary, dropout):
    plain, varied = rows(batching(prepared)), rows(batching(prepared, dropout))
    assert list(map(vocabulary.decode, varied)) == list(map(vocabulary.decode, plain))
    assert 0.5 < np.mean(changed(plain, varied)) < 1
    assert 1.1 < pieces(varied) / pieces(plain) < 2


def test_rows_end_with_eos_and_empty_rows_stay_empty(vocabulary, dropout):
    ids = vocabulary.encode(["The cat sees the house.", "The house."])
    width = max(map(len, ids))
    batch = np.array([row + [PAD] * (width - len(row)) for row in [*ids, []]], np.int32)
    source, target = dropout(0, batch, batch)
    for side in (source, target):
        assert side.dtype == np.int32
        assert not side[2].any()
        for row in side[:2]:
            length = np.count_nonzero(row)
            assert (row[length - 1], row[:length].tolist().count(EOS)) == (EOS, 1)
            assert not row[length:].any()
    # Both sides hold the same text here, in pieces drawn apart.
    assert source.tolist() != target.tolist()


def test_each_epoch_has_other_pieces_and_a_restart_the_same(prepared, dropout):
    first, second = batching(prepared, dropout), batching(prepared, dropout)
    epochs = [{tuple(row) for batch in rows(first, epoch) for row in batch} for epoch in range(2)]
    assert len(epochs[0] & epochs[1]) < len(epochs[0]) / 2
    assert rows(second, epoch=1, first=3) == rows(first, epoch=1)[2 * 3 :]
    other = dataclasses.replace(dropout, seed=2)
    assert rows(batching(prepared, other)) != rows(first)


def test_it_ends_at_a_batch_of_the_run_not_of_an_epoch(prepared, dropout):
    plain = batching(prepared)
    epoch = len(plain.plan(0))
    ending = batching(prepared, dataclasses.replace(dropout, batches=epoch + 2))
    assert rows(ending) == rows(batching(prepared, dropout))
    assert rows(ending, epoch=1, first=2) == rows(plain, epoch=1, first=2)
    assert rows(ending, epoch=1)[2] != rows(plain, epoch=1)[2]


def test_a_sentence_that_would_grow_too_long_stays(prepared, vocabulary, dropout):
    longest = int(prepared.lengths.max())
    bounded = dataclasses.replace(dropout, chance=0.9, most=longest)
    plain, varied = rows(batching(prepared)), rows(batching(prepared, bounded))
    lengths = [len(row) for batch in varied for row in batch]
    assert max(lengths) <= longest
    assert 0 < np.mean(changed(plain, varied)) < 1


def test_nothing_dropped_is_the_plain_encoding(prepared, dropout):
    none = dataclasses.replace(dropout, chance=0.0)
    assert rows(batching(prepared, none)) == rows(batching(prepared))


@pytest.mark.parametrize(("share", "last"), [(0.25, 75), (0.0, 100)])
def test_a_run_reads_plain_text_in_its_cool_down(tmp_path, share, last):
    settings = {"train_steps": 100, "cooldown_share": share, "bpe_dropout": 0.1, "max_length": 99}
    dropout = Corpus(config.resolve("toy_ende", overrides=settings), tmp_path).batching().dropout
    assert (dropout.chance, dropout.batches, dropout.most) == (0.1, last, 99)


def test_without_it_the_prepared_pieces_are_read(tmp_path):
    assert Corpus(config.resolve("toy_ende"), tmp_path).batching().dropout is None
