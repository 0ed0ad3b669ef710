"""Misspelling: typing errors in words of the sources, which are random but reproducible."""

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest
from pieces import pieces, toy_batches

from pipelines.augmentation.bpe_dropout import BpeDropout
from pipelines.augmentation.misspelling import Misspelling, misspelt
from pipelines.vocabulary import EOS

SENTENCE = "The teacher doesn't see 1,000 größere Häuser."


@pytest.fixture
def misspelling(toy_vocabulary):
    return Misspelling(toy_vocabulary, share=0.3, max_length=256, seed=1)


def sides(split, vocabulary):
    return zip(*(vocabulary.decode(pair) for pair in pieces(split)), strict=True)


@pytest.mark.parametrize("word", ["house", "größere", "noon"])
def test_a_letter_but_the_first_is_left_out_doubled_or_swapped(word):
    positions = range(1, len(word) - 1)
    errors = {word[:i] + word[i + 1 :] for i in positions}
    errors |= {word[:i] + 2 * word[i] + word[i + 1 :] for i in positions}
    errors |= {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in positions}
    errors -= {word}  # two equal letters are not swapped
    draw = random.Random(1)
    assert {misspelt(word, 1, draw) for _ in range(1000)} == errors


def test_only_words_of_four_letters_or_more_are_misspelt():
    draw = random.Random(1)
    made = [misspelt(SENTENCE, 1, draw).split() for _ in range(100)]
    changed = [{text[i] for text in made} != {w} for i, w in enumerate(SENTENCE.split())]
    assert changed == [False, True, True, False, False, True, True]
    assert all(text[6].endswith(".") and text[2].endswith("'t") for text in made)
    assert misspelt(SENTENCE, 0, draw) == SENTENCE


def test_entities_of_the_moses_tokeniser_stay():
    text = "it &apos;s a &quot; & &amp; b"
    assert misspelt(text, 1, random.Random(1)) == text


def test_a_share_of_the_longer_words_is_misspelt_and_targets_stay(
    toy_split, toy_vocabulary, misspelling
):
    sources, targets = sides(toy_split, toy_vocabulary)
    altered, same = sides(misspelling(toy_split, epoch=0), toy_vocabulary)
    assert same == targets
    seen = Counter()
    for old, new in zip(sources, altered, strict=True):
        for word, typed in zip(old.split(), new.split(), strict=True):
            is_long = sum(map(str.isalpha, word)) >= 4
            seen[is_long, word != typed] += 1
    assert not seen[False, True]
    assert 0.27 < seen[True, True] / (seen[True, True] + seen[True, False]) < 0.33


def test_sources_end_with_eos_and_are_in_the_pieces_of_their_text(
    toy_split, toy_vocabulary, misspelling
):
    for source, _ in pieces(misspelling(toy_split, epoch=0)):
        assert (source[-1], source.count(EOS)) == (EOS, 1)
        assert toy_vocabulary.encode(toy_vocabulary.decode([source])) == [source]


def test_each_epoch_and_seed_has_other_errors_and_a_restart_the_same(toy_split, misspelling):
    zero, again, one = (pieces(misspelling(toy_split, epoch)) for epoch in (0, 0, 1))
    assert zero == again
    other = pieces(dataclasses.replace(misspelling, seed=2)(toy_split, 0))
    for drawn in (one, other):
        assert np.mean([old == new for old, new in zip(zero, drawn, strict=True)]) < 0.5


def test_blocks_are_drawn_apart_and_put_together(
    toy_split, toy_vocabulary, misspelling, monkeypatch
):
    whole = pieces(misspelling(toy_split, 0))
    monkeypatch.setattr("pipelines.augmentation.blocks._BLOCK", 70)
    altered = misspelling(toy_split, 0)
    assert len(altered.ids) == 5
    assert pieces(altered)[:70] == whole[:70]
    assert pieces(altered)[70:] != whole[70:]
    assert [target for _, target in pieces(altered)] == [target for _, target in whole]


def test_a_source_that_would_grow_too_long_stays(toy_split, misspelling):
    longest = int(toy_split.lengths[:, 0].max())
    bounded = dataclasses.replace(misspelling, share=1, max_length=longest)(toy_split, 0)
    assert bounded.lengths[:, 0].max() <= longest
    same = [old == new for old, new in zip(pieces(toy_split), pieces(bounded), strict=True)]
    assert 0 < np.mean(same) < 0.5


@pytest.mark.slow
def test_a_run_misspells_before_it_leaves_merges_out(tmp_path):
    settings = {"misspelt_share": 0.2, "bpe_dropout": 0.1, "max_length": 99, "seed": 3}
    own = toy_batches(tmp_path, settings)
    first, second = own.alterations
    assert (type(first), type(second)) == (Misspelling, BpeDropout)
    assert (first.share, first.max_length, first.seed) == (0.2, 99, 3)
    assert own.for_epoch(epoch=0, updates_before=0) is not own
