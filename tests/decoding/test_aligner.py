"""Links of words from weights between pieces."""

import numpy as np
import pytest

from t2t_repro.decoding.aligner import Aligner, _links


def test_a_target_word_is_linked_with_the_source_word_that_its_pieces_look_at_most():
    # Source words 0 and 1 have two pieces and one, target words 0 and 2 two and one; word 1 has
    # none. The last row and column belong to EOS.
    weights = np.array(
        [
            [0.3, 0.3, 0.4, 0.0],  # the word of two pieces gets 0.6
            [0.2, 0.2, 0.6, 0.0],  # together 1.0 of word 0, and 1.0 - 1e-3 of word 1
            [0.1, 0.1, 0.2, 0.6],  # a tie, which the first word wins; EOS is no word
            [0.0, 0.0, 1.0, 0.0],
        ]
    )
    weights[1, 2] -= 1e-3
    assert _links(weights, np.array([0, 0, 1]), np.array([0, 0, 2])) == [(0, 0), (0, 2)]
    weights[0, 2] += 0.01
    assert _links(weights, np.array([0, 0, 1]), np.array([0, 0, 2])) == [(1, 0), (0, 2)]


def test_without_words_there_are_no_links():
    none, some = np.array([], int), np.array([0, 1])
    weights = np.ones((3, 3))
    assert _links(weights, none, some) == _links(weights, some, none) == []


def test_a_no_break_space_is_within_a_word(build, toy_vocabulary):
    aligner = Aligner(build(num_layers=1, embedding_rows=toy_vocabulary.size), toy_vocabulary, 99)
    _, places = aligner._words("old\u00a0! the\thouse")
    assert max(places) == 2


@pytest.mark.parametrize(("layers", "used"), [(6, 4), (2, 1)])
def test_links_are_of_the_fifth_layer_or_the_last(build, toy_pairs, toy_vocabulary, layers, used):
    model = build(num_layers=layers, embedding_rows=toy_vocabulary.size)
    pairs = [(pair["source"], pair["target"]) for pair in toy_pairs[:8]]
    aligner, expected = Aligner(model, toy_vocabulary, 99), []
    for sides in pairs:
        (source, source_words), (target, target_words) = map(aligner._words, sides)
        weights = model.attention(np.array([source]), np.array([target])).cross[used]
        weights = np.mean(np.asarray(weights)[0], axis=0)
        expected.append(_links(weights, source_words, target_words))
    assert aligner.align(pairs) == expected
    assert len({link for links in expected for link in links}) > 10
