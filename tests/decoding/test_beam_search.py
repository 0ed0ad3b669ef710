"""Beam search on probability tables and against exhaustive search; test_decoder.py uses a model.

In the tables the tokens are PAD 0, EOS 1, A 2, B 3. Row i has the probabilities of the token after
token i; row 0 has those of the first token, because the search starts from PAD.
"""

import itertools

import keras
import numpy as np
import pytest

from t2t_repro.decoding.beam_search import IMPOSSIBLE, Lengths, beam_search, length_penalty

array = keras.ops.convert_to_numpy
PAD, EOS, A, B = range(4)

only_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="about tf.function, or TensorFlow's eager loop"
)


def lengths(most, least=0, expected=0):
    most = np.array(most, "int32")
    zeros = np.zeros_like(most)
    return Lengths(
        expected=np.float32(zeros + expected), least=zeros + least, most=most, room=int(most.max())
    )


def search(
    table, max_lengths=(6,), beam_size=2, alpha=0.0, calls=None, n_best=1, least=0, expected=0,
    length_reward=0.0,
):  # fmt: skip
    """Search with a step function that reads `table`, [token, next] or [b, token, next].

    Returns (ids, scores). PAD is never produced.
    """
    tables = np.broadcast_to(table, (len(max_lengths), 4, 4))
    logits = np.log(np.maximum(tables, 1e-30)).astype("float32")
    logits[:, :, PAD] = IMPOSSIBLE

    def step(tokens, slots, position, cache):
        if calls is not None:
            calls.append(int(position))
        return keras.ops.take_along_axis(logits, tokens[:, :, None], axis=1), cache

    return beam_search(
        step, (), lengths(max_lengths, least, expected), beam_size=beam_size, alpha=alpha, eos=EOS,
        length_reward=length_reward, n_best=n_best,
    )  # fmt: skip


def best(ids, scores):
    """Return [(ids up to EOS, score)] of each row's first hypothesis; PAD must follow EOS."""
    rows = []
    for row, score in zip(array(ids)[:, 0], array(scores)[:, 0], strict=True):
        end = list(row).index(EOS) + 1
        assert not row[end:].any()
        rows.append((row[:end].tolist(), float(score)))
    return rows


# Greedy takes A, the best first token; the best sentence begins with B.
GARDEN_PATH = np.array([[0, 0, 0.6, 0.4], [0, 1, 0, 0], [0, 0.5, 0.3, 0.2], [0, 0.9, 0.1, 0]])
# The first token is EOS with 0.4 or A with 0.6; after A, B and EOS are nearly certain.
SHORT_OR_LONG = np.array([[0, 0.4, 0.6, 0], [0, 1, 0, 0], [0, 0.1, 0, 0.9], [0, 0.7, 0.3, 0]])
# EOS is the best first token, but the tokens after A are certain.
PATIENCE = np.array([[0, 0.6, 0.4, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]])
# EOS is the best continuation of either hypothesis.
EARLY_ENDS = np.array([[0, 0.05, 0.5, 0.45], [0, 1, 0, 0], [0, 0.6, 0.3, 0.1], [0, 0.6, 0.3, 0.1]])
# EOS is always unlikely.
ENDLESS = np.array([[0, 0.01, 0.59, 0.4]] * 4)


def test_length_penalty_is_that_of_gnmt():
    penalty = array(length_penalty(np.array([1, 7, 13]), 0.6))
    np.testing.assert_allclose(penalty, [1, 2**0.6, 3**0.6], rtol=1e-6)


def test_beam_of_one_is_greedy():
    ((ids, score),) = best(*search(GARDEN_PATH, beam_size=1))
    assert ids == [A, EOS]
    assert score == pytest.approx(np.log(0.6 * 0.5), rel=1e-5)


def test_wider_beam_finds_what_greedy_misses():
    ((ids, score),) = best(*search(GARDEN_PATH, beam_size=2))
    assert ids == [B, EOS]
    assert score == pytest.approx(np.log(0.4 * 0.9), rel=1e-5)


def test_alpha_changes_the_winner():
    ((short, short_score),) = best(*search(SHORT_OR_LONG, alpha=0.0))
    ((long, long_score),) = best(*search(SHORT_OR_LONG, alpha=1.0))
    assert (short, long) == ([EOS], [A, B, EOS])
    assert short_score == pytest.approx(np.log(0.4), rel=1e-5)
    assert long_score == pytest.approx(np.log(0.6 * 0.9 * 0.7) / ((5 + 3) / 6), rel=1e-5)


def test_hypotheses_come_best_first():
    ids, scores = search(GARDEN_PATH, max_lengths=[2], beam_size=3, n_best=3)
    np.testing.assert_array_equal(array(ids)[0, :2], [[B, EOS], [A, EOS]])
    np.testing.assert_allclose(array(scores)[0, :2], np.log([0.4 * 0.9, 0.6 * 0.5]), rtol=1e-5)


def test_where_sentences_are_too_few_the_list_ends_in_padding():
    ids, scores = search(GARDEN_PATH, max_lengths=[1], beam_size=3, n_best=3)
    np.testing.assert_array_equal(array(ids), [[[EOS], [PAD], [PAD]]])
    np.testing.assert_array_equal(array(scores)[:, 1:], [[IMPOSSIBLE, IMPOSSIBLE]])


def test_equal_ones_come_in_the_order_of_their_ids():
    # The beam finds six sentences of at most 3 tokens, all with a score of 3 ln(1/3) or more.
    ids, scores = search(np.array([[0, 1 / 3, 1 / 3, 1 / 3]] * 4), [3], beam_size=6, n_best=6)
    expected = [[EOS], [A, EOS], [B, EOS], [A, A, EOS], [A, B, EOS], [B, A, EOS]]
    found = [[token for token in row if token] for row in array(ids)[0].tolist()]
    assert found == expected
    np.testing.assert_allclose(array(scores)[0], np.log(1 / 3) * np.array([1, 2, 2, 3, 3, 3]))


def test_greedy_is_cut_where_its_score_is_best():
    # A is the likeliest first token, and EOS with 0.4 the second; A EOS has 0.6 * 0.5.
    cut_early = np.array([[0, 0.4, 0.6, 0], [0, 1, 0, 0], [0, 0.5, 0.4, 0.1], [0, 1, 0, 0]])
    ((ids, score),) = best(*search(cut_early, beam_size=1))
    assert ids == [EOS]
    assert score == pytest.approx(np.log(0.4), rel=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 3.0])
def test_greedy_scores_no_less_than_ending_at_the_first_eos(alpha):
    tables = np.random.default_rng(3).dirichlet([0.5] * 3, (30, 4)) @ np.eye(3, 4, 1)
    found = best(*search(tables, max_lengths=[5] * 30, beam_size=1, alpha=alpha))
    for table, (_, score) in zip(tables, found, strict=True):
        ids, log_prob = [PAD], 0.0
        while ids[-1] != EOS and len(ids) < 6:
            token = int(table[ids[-1]].argmax()) if len(ids) < 5 else EOS
            log_prob += np.log(max(table[ids[-1], token], 1e-30))
            ids.append(token)
        naive = log_prob / ((5 + len(ids) - 1) / 6) ** alpha
        assert score >= naive - 1e-4


def test_every_row_ends_within_its_own_length():
    rows = best(*search(ENDLESS, max_lengths=(3, 1, 4), beam_size=3, alpha=5.0))
    assert [ids for ids, _ in rows] == [[A, A, EOS], [EOS], [A, A, A, EOS]]
    log_probs = np.log([0.59**2 * 0.01, 0.01, 0.59**3 * 0.01])
    penalties = (5 + np.array([3, 1, 4])) / 6
    np.testing.assert_allclose([score for _, score in rows], log_probs / penalties**5, rtol=1e-5)


def test_impossible_tokens_never_come_and_their_share_goes_to_the_others():
    table = np.array([[0.8, 0.1, 0.05, 0.05]] * 4)  # PAD would be the likeliest
    ((ids, score),) = best(*search(table))
    assert ids == [EOS]
    assert score == pytest.approx(np.log(0.1 / 0.2), rel=1e-5)


@pytest.mark.parametrize(("expected", "length"), [(1, 1), (2, 3), (4, 3), (4.5, 5), (9, 5)])
def test_tokens_up_to_the_expected_length_earn_the_reward(expected, length):
    ((ids, score),) = best(*search(SHORT_OR_LONG, length_reward=1.0, expected=expected))
    probability = {1: 0.4, 3: 0.6 * 0.9 * 0.7, 5: 0.6 * 0.9 * 0.3 * 0.9 * 0.7}
    scores = {n: np.log(p) + min(n, expected) for n, p in probability.items()}
    assert max(scores, key=scores.get) == length
    assert ids == [*[A, B, A, B][: length - 1], EOS]
    assert score == pytest.approx(scores[length], rel=1e-5)


@only_tensorflow
def test_search_stops_when_no_reward_makes_up_for_what_is_lost():
    calls = []
    rewarded = {"length_reward": 0.1, "expected": 3}
    ((ids, _),) = best(*search(GARDEN_PATH, max_lengths=(50,), calls=calls, **rewarded))
    assert ids == [B, EOS]
    assert calls == [0, 1]  # log 0.36 + 0.2 is finished, and log 0.18 + 0.3 the most to come


@only_tensorflow
def test_search_stops_when_no_hypothesis_can_still_win():
    calls = []
    ((ids, _),) = best(*search(GARDEN_PATH, max_lengths=(50,), calls=calls))
    assert ids == [B, EOS]
    assert calls == [0, 1]  # after two steps 0.36 is finished, and the best alive has 0.18


def test_search_goes_on_while_a_longer_hypothesis_can_win():
    ((ids, score),) = best(*search(PATIENCE, alpha=3.0))
    assert ids == [A, B, EOS]  # log 0.4 / (8/6)^3 > log 0.6, though log 0.4 < log 0.6
    assert score == pytest.approx(np.log(0.4) / (8 / 6) ** 3, rel=1e-5)


def test_ended_hypotheses_take_no_place_in_the_beam():
    ((ids, score),) = best(*search(EARLY_ENDS, max_lengths=(3,), alpha=6.0))
    assert ids == [A, A, EOS]  # A EOS and B EOS are the two best continuations of length 2
    assert score == pytest.approx(np.log(0.5 * 0.3 * 0.6) / (8 / 6) ** 6, rel=1e-5)


def test_least_and_most_lengths_hold_for_each_row():
    # EOS is likely and alpha is 0, so each row ends as soon as its limits allow.
    table = np.array([[0, 0.8, 0.15, 0.05]] * 4)
    rows = best(*search(table, max_lengths=[5, 5, 2], least=[1, 4, 2], beam_size=2))
    assert [ids for ids, _ in rows] == [[EOS], [A, A, A, EOS], [A, EOS]]
    expected = np.log([0.8, 0.15**3 * 0.8, 0.15 * 0.8])
    np.testing.assert_allclose([score for _, score in rows], expected, rtol=1e-5)


def test_n_best_search_goes_on_until_the_last_wanted_one_is_sure():
    # EOS alone is certain to be the best after one step; the second best ends after three.
    table = np.array([[0, 0.7, 0.3, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]])
    ids, scores = search(table, [50], n_best=2)
    assert array(ids)[0, :, :3].tolist() == [[EOS, PAD, PAD], [A, B, EOS]]
    np.testing.assert_allclose(array(scores)[0], np.log([0.7, 0.3]), rtol=1e-5)


@only_tensorflow
def test_best_search_does_not_wait_for_the_second():
    calls = []
    search(
        np.array([[0, 0.7, 0.3, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]), [50], calls=calls
    )
    assert calls == [0]


def exhaustive(logits, max_length, alpha, rewards):
    """Return [(score, ids)] of all sequences of at most `max_length` tokens, best first.

    `logits` is {prefix: [v]}; `rewards` has the length reward of each length.
    """

    def log_prob(ids):
        return sum(
            logits[ids[:i]][token] - np.logaddexp.reduce(logits[ids[:i]][1:])
            for i, token in enumerate(ids)
        )

    sequences = (
        (*prefix, EOS)
        for length in range(max_length)
        for prefix in itertools.product((A, B), repeat=length)
    )
    scored = (
        ((log_prob(ids) + rewards[len(ids)]) / ((5 + len(ids)) / 6) ** alpha, ids)
        for ids in sequences
    )
    return sorted(scored, reverse=True)


@pytest.mark.parametrize(
    ("alpha", "length_reward"), [(0.0, 0.0), (0.6, 0.0), (3.0, 0.0), (0.0, 0.8), (0.6, 2.0)]
)
def test_widest_beam_equals_exhaustive_search_to_the_last_hypothesis(alpha, length_reward):
    """120 random tables map whole prefixes to logits; the step finds prefixes in its cache by slot.

    A prefix is numbered in base 4 after a leading 1. With two tokens besides EOS and a length of
    at most 4 there are 1 + 2 + 4 + 8 sentences.
    """
    rng = np.random.default_rng(7)
    tables = rng.normal(0, 2, (120, 2 * 4**3, 4)).astype("float32")
    max_lengths = rng.integers(1, 5, 120).astype("int32")
    likely = rng.integers(1, 5, 120) * 1.25  # the expected lengths
    beam_size = 15

    def step(tokens, slots, position, cache):
        """Look up the logits; the cache [b, t, m] keeps the token of each slot, never reordered."""
        at = keras.ops.arange(4)[:, None] == position
        cache = keras.ops.where(at, tokens[:, None, :], cache)
        kept = keras.ops.transpose(cache, (0, 2, 1))  # [b, m, t]
        prefix = keras.ops.ones_like(tokens)
        for p in range(1, 4):  # position 0 holds the PAD before the first token
            own = keras.ops.take_along_axis(kept[:, :, p], keras.ops.maximum(slots[:, :, p], 0), 1)
            prefix = keras.ops.where(p <= position, prefix * 4 + own, prefix)
        first = keras.ops.arange(120)[:, None] * (2 * 4**3)
        return keras.ops.take(flat, first + prefix, axis=0), cache

    flat = tables.reshape(-1, 4).copy()
    flat[:, PAD] = IMPOSSIBLE
    ids, scores = beam_search(
        step, keras.ops.zeros((120, 4, beam_size), "int32"), lengths(max_lengths, expected=likely),
        beam_size=beam_size, alpha=alpha, eos=EOS, length_reward=length_reward, n_best=beam_size,
    )  # fmt: skip

    def number(prefix):
        return sum(token * 4**i for i, token in enumerate(reversed((1, *prefix))))

    prefixes = [p for n in range(4) for p in itertools.product((A, B), repeat=n)]
    for row, (found, score) in enumerate(zip(array(ids), array(scores), strict=True)):
        logits = {prefix: tables[row, number(prefix)].astype("float64") for prefix in prefixes}
        rewards = length_reward * np.minimum(np.arange(5), likely[row])
        expected = exhaustive(logits, max_lengths[row], alpha, rewards)
        count = len(expected)
        # Two sentences of one row differ by 3e-7, so float32 may swap them.
        score_of = {ids: score for score, ids in expected}
        sentences = [tuple(ids[ids != PAD].tolist()) for ids in found[:count]]
        assert set(sentences) == score_of.keys()
        close = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(score[:count], [s for s, _ in expected], **close)
        np.testing.assert_allclose(score[:count], [score_of[ids] for ids in sentences], **close)
        assert not found[count:].any()
        np.testing.assert_array_equal(score[count:], IMPOSSIBLE)
