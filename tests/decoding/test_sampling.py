"""Sampling from a table of probabilities; test_decoder.py uses a model."""

import keras
import numpy as np
import pytest

from t2t_repro.decoding.beam_search import IMPOSSIBLE, Lengths
from t2t_repro.decoding.sampling import Sampling, sample

array = keras.ops.convert_to_numpy
EOS = 1
PROBABILITIES = np.array([0, 0.1, 0.5, 0.15, 0.25])  # PAD is never produced
COUNT = 4000


def drawn(draws, topk, temperature, expected=2, reward=0.0):
    """Draw sequences of at most two tokens; returns the ids [m, 2] and scores [m]."""
    logits = np.where(PROBABILITIES > 0, np.log(PROBABILITIES + 1e-30), IMPOSSIBLE)

    def step(tokens, slots, position, cache):
        return keras.ops.ones((1, draws.shape[2], 1)) * logits.astype("float32"), cache

    two = np.array([2], "int32")
    lengths = Lengths(expected=np.float32(two * 0 + expected), least=two * 0, most=two, room=2)
    ids, scores = sample(
        step, (), lengths, keras.ops.convert_to_tensor(draws.astype("float32")),
        np.zeros((1, 0), "int32"), sampling=Sampling(topk, temperature), alpha=0.0,
        length_reward=reward, eos=EOS,
    )  # fmt: skip
    return array(ids)[0], array(scores)[0]


@pytest.mark.parametrize(("topk", "temperature"), [(0, 1.0), (0, 2.0), (2, 1.0), (99, 0.5)])
def test_tokens_are_drawn_with_their_probabilities(topk, temperature):
    draws = (np.arange(COUNT) + 0.5) / COUNT  # evenly, so that shares are exact
    ids, scores = drawn(draws[None, None], topk, temperature)
    expected = PROBABILITIES ** (1 / temperature)
    if topk == 2:
        expected[[1, 3]] = 0
    shares = np.bincount(ids[:, 0], minlength=5) / COUNT
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=2 / COUNT)
    # The limit ends every sequence; scores are those of the model at any temperature.
    assert ((ids[:, 1] == EOS) == (ids[:, 0] != EOS)).all()
    own = np.log(PROBABILITIES[ids[:, 0]]) + np.where(ids[:, 1] == EOS, np.log(0.1), 0)
    np.testing.assert_allclose(scores, own, rtol=1e-5)


@pytest.mark.parametrize("expected", [1, 1.5, 2])
def test_each_token_up_to_the_expected_length_is_rewarded(expected):
    draws = (np.arange(100)[None, None] + 0.5) / 100
    ids, plain = drawn(draws, 0, 1.0)
    _, rewarded = drawn(draws, 0, 1.0, expected, reward=0.7)
    lengths = np.count_nonzero(ids, axis=1)
    assert set(lengths) == {1, 2}
    np.testing.assert_allclose(rewarded - plain, 0.7 * np.minimum(lengths, expected), rtol=1e-5)


def test_the_greatest_and_the_least_draw_are_tokens_that_may_be_produced():
    ids, _ = drawn(np.array([[[0.0, np.float32(1 - 2**-24)]]]), 0, 1.0)
    assert (PROBABILITIES[ids[:, 0]] > 0).all()
