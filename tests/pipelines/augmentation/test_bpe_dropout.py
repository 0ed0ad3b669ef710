"""BPE dropout: the same sentences in other pieces, which are random but reproducible."""

import dataclasses
import gc
import weakref

import numpy as np
import pytest
from pieces import pieces, toy_batches

from pipelines.augmentation.bpe_dropout import BpeDropout
from pipelines.batching import Batching
from pipelines.encode import encode_split
from pipelines.shards import EncodedSplit
from pipelines.vocabulary import EOS

MOST = 256


@pytest.fixture
def dropout(toy_vocabulary):
    return BpeDropout(toy_vocabulary, dropout=0.1, max_length=MOST, seed=1)


def batching(prepared, *alterations, updates=10**6):
    return Batching(
        prepared,
        tokens_per_batch=600,
        max_shapes=8,
        count_padding=True,
        seed=1,
        alterations=alterations,
        altered_updates=updates,
    )


def rows(own, epoch, updates_before=0, first=0):
    """Return the rows of an epoch's batches, both sides of each."""
    split = own.for_epoch(epoch, updates_before)
    return [
        side.tolist() for batch in split.batches(epoch, first).as_numpy_iterator() for side in batch
    ]


def test_the_text_stays_and_its_pieces_do_not(toy_pairs, toy_split, toy_vocabulary, dropout):
    varied = dropout(toy_split, epoch=0)
    texts = [tuple(pair.values()) for pair in toy_pairs]
    assert [tuple(toy_vocabulary.decode(pair)) for pair in pieces(varied)] == texts
    changed = [old != new for old, new in zip(pieces(toy_split), pieces(varied), strict=True)]
    assert np.mean(changed) > 0.95  # 0.997
    assert 1.1 < varied.lengths.sum() / toy_split.lengths.sum() < 2
    for ids in (ids for pair in pieces(varied) for ids in pair):
        assert (ids[-1], ids.count(EOS)) == (EOS, 1)


def test_sides_and_blocks_have_pieces_drawn_apart(toy_vocabulary, dropout, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.augmentation.blocks._BLOCK", 10)
    text = "The teacher does not want to close the small window."
    encode_split(lambda: [{"source": text, "target": text}] * 20, toy_vocabulary, MOST, tmp_path)
    drawn = pieces(dropout(EncodedSplit.load(tmp_path), epoch=0))
    assert np.mean([s == t for s, t in drawn]) < 0.5
    assert drawn[:10] != drawn[10:]


def test_blocks_are_put_together(toy_split, dropout, monkeypatch):
    monkeypatch.setattr("pipelines.augmentation.blocks._BLOCK", 70)
    varied = dropout(toy_split, epoch=0)
    assert len(varied.ids) == 5
    decoded = dropout.vocabulary.decode
    texts = [[decoded(pair) for pair in pieces(split)] for split in (toy_split, varied)]
    assert texts[0] == texts[1]


def test_each_epoch_has_other_pieces_and_a_restart_the_same(toy_split, dropout):
    first, second = batching(toy_split, dropout), batching(toy_split, dropout)
    zero, one = (pieces(dropout(toy_split, epoch)) for epoch in range(2))
    assert np.mean([old == new for old, new in zip(zero, one, strict=True)]) < 0.5
    assert rows(second, epoch=1, first=3) == rows(first, epoch=1)[2 * 3 :]
    other = dataclasses.replace(dropout, seed=2)
    assert rows(batching(toy_split, other), epoch=0) != rows(first, epoch=0)


def test_its_batches_are_as_full_as_those_without(toy_split, dropout):
    def filled(own):
        cells = sum(len(batch.pairs) * sum(batch[1:]) for batch in own.plan(0))
        return own.split.lengths.sum() / cells

    varied = batching(toy_split, dropout).for_epoch(epoch=0, updates_before=0)
    assert filled(varied) > filled(batching(toy_split)) - 0.05


@pytest.mark.slow
def test_an_epoch_is_let_go_of_when_it_has_been_read(toy_split, dropout):
    """TensorFlow keeps the functions that read batches; they must not keep the text."""
    own = batching(toy_split, dropout).for_epoch(epoch=0, updates_before=0)
    split, batches = weakref.ref(own.split), own.batches(epoch=0)
    del own
    gc.collect()
    assert len(list(batches)) > 1
    del batches
    gc.collect()
    assert split() is None


def test_it_ends_with_the_epochs_that_begin_before_an_update(toy_split, dropout):
    plain, own = batching(toy_split), batching(toy_split, dropout, updates=10)
    assert rows(own, epoch=1, updates_before=9) == rows(batching(toy_split, dropout), epoch=1)
    assert rows(own, epoch=1, updates_before=10) == rows(plain, epoch=1)
    assert rows(own, epoch=1, updates_before=9) != rows(plain, epoch=1)


def test_a_sentence_that_would_grow_too_long_stays(toy_split, dropout):
    longest = int(toy_split.lengths.max())
    bounded = dataclasses.replace(dropout, dropout=0.9, max_length=longest)(toy_split, epoch=0)
    assert bounded.lengths.max() <= longest
    same = [old == new for old, new in zip(pieces(toy_split), pieces(bounded), strict=True)]
    assert 0 < np.mean(same) < 1


def test_nothing_left_out_is_the_plain_encoding(toy_split, dropout):
    none = dataclasses.replace(dropout, dropout=1e-12)
    assert pieces(none(toy_split, epoch=0)) == pieces(toy_split)


@pytest.mark.parametrize(
    ("share", "altered", "last"), [(0.25, None, 75), (0.0, None, 100), (0.25, 0.8, 80)]
)
@pytest.mark.slow
def test_a_run_reads_plain_text_in_its_last_part(tmp_path, share, altered, last):
    settings = {"train_steps": 100, "cooldown_share": share, "altered_share": altered}
    settings |= {"bpe_dropout": 0.1, "max_length": 99}
    own = toy_batches(tmp_path, settings)
    (dropout,) = own.alterations
    assert (dropout.dropout, own.altered_updates, dropout.max_length) == (0.1, last, 99)


def test_without_it_the_prepared_pieces_are_read(tmp_path):
    own = toy_batches(tmp_path, {})
    assert own.for_epoch(epoch=0, updates_before=0) is own
