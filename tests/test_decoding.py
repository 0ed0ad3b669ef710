"""Beam search on probability tables and against exhaustive search; then with a model.

In the tables the tokens are PAD 0, EOS 1, A 2, B 3; row i has the probabilities of what follows
token i, and row 0 those of the first token, because the search starts from PAD.
"""

import itertools

import keras
import numpy as np
import pytest

from t2t_repro.config import Decode
from t2t_repro.decoding import beam_search, length_penalty, make_decoder, reorder_cache, repeat_beam

array = keras.ops.convert_to_numpy
PAD, EOS, A, B = range(4)
PRODUCIBLE = np.array([False, True, True, True])

only_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="about tf.function, or TensorFlow's eager loop"
)


def search(table, max_lengths=(6,), beam_size=2, alpha=0.0, calls=None):
    """Best ids without padding, and score, of each row; the step reads `table` [token, next]."""
    logits = np.log(np.maximum(table, 1e-30)).astype("float32")

    def step(tokens, position, cache):
        if calls is not None:
            calls.append(int(position))
        return keras.ops.take(logits, tokens[:, 0], axis=0), cache

    ids, scores = beam_search(
        step, (), np.array(max_lengths, "int32"), beam_size=beam_size, alpha=alpha,
        producible=PRODUCIBLE, eos=EOS, length=max(max_lengths),
    )  # fmt: skip
    return best(ids, scores)


def best(ids, scores):
    """[(ids up to EOS, score)] of each row's first hypothesis; behind EOS all must be PAD."""
    rows = []
    for row, score in zip(array(ids)[:, 0], array(scores)[:, 0], strict=True):
        end = list(row).index(EOS) + 1
        assert not row[end:].any()
        rows.append((row[:end].tolist(), float(score)))
    return rows


# Greedy takes A, the best first token; the best sentence begins with B.
GARDEN_PATH = np.array([[0, 0, 0.6, 0.4], [0, 1, 0, 0], [0, 0.5, 0.3, 0.2], [0, 0.9, 0.1, 0]])
# At first EOS with 0.4 against A with 0.6, after which B and EOS are nearly certain.
SHORT_OR_LONG = np.array([[0, 0.4, 0.6, 0], [0, 1, 0, 0], [0, 0.1, 0, 0.9], [0, 0.7, 0.3, 0]])
# EOS is the best first token, but what follows A is certain.
PATIENCE = np.array([[0, 0.6, 0.4, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]])
# EOS is the best continuation of either hypothesis.
EARLY_ENDS = np.array([[0, 0.05, 0.5, 0.45], [0, 1, 0, 0], [0, 0.6, 0.3, 0.1], [0, 0.6, 0.3, 0.1]])
# EOS is always unlikely.
ENDLESS = np.array([[0, 0.01, 0.59, 0.4]] * 4)


def test_length_penalty_is_that_of_gnmt():
    penalty = array(length_penalty(np.array([1, 7, 13]), 0.6))
    np.testing.assert_allclose(penalty, [1, 2**0.6, 3**0.6], rtol=1e-6)


def test_beam_of_one_is_greedy():
    ((ids, score),) = search(GARDEN_PATH, beam_size=1)
    assert ids == [A, EOS]
    assert score == pytest.approx(np.log(0.6 * 0.5), rel=1e-5)


def test_wider_beam_finds_what_greedy_misses():
    ((ids, score),) = search(GARDEN_PATH, beam_size=2)
    assert ids == [B, EOS]
    assert score == pytest.approx(np.log(0.4 * 0.9), rel=1e-5)


def test_alpha_changes_the_winner():
    ((short, short_score),) = search(SHORT_OR_LONG, alpha=0.0)
    ((long, long_score),) = search(SHORT_OR_LONG, alpha=1.0)
    assert (short, long) == ([EOS], [A, B, EOS])
    assert short_score == pytest.approx(np.log(0.4), rel=1e-5)
    assert long_score == pytest.approx(np.log(0.6 * 0.9 * 0.7) / ((5 + 3) / 6), rel=1e-5)


def test_hypotheses_come_best_first():
    logits = np.log(np.maximum(GARDEN_PATH, 1e-30)).astype("float32")
    ids, scores = beam_search(
        lambda tokens, _, cache: (keras.ops.take(logits, tokens[:, 0], axis=0), cache), (),
        np.array([2], "int32"), beam_size=3, alpha=0.0, producible=PRODUCIBLE, eos=EOS, length=2,
    )  # fmt: skip
    np.testing.assert_array_equal(array(ids)[0, :2], [[B, EOS], [A, EOS]])
    np.testing.assert_allclose(array(scores)[0, :2], np.log([0.4 * 0.9, 0.6 * 0.5]), rtol=1e-5)


def test_every_row_ends_within_its_own_length():
    rows = search(ENDLESS, max_lengths=(3, 1, 4), beam_size=3, alpha=5.0)
    assert [ids for ids, _ in rows] == [[A, A, EOS], [EOS], [A, A, A, EOS]]
    log_probs = np.log([0.59**2 * 0.01, 0.01, 0.59**3 * 0.01])
    penalties = (5 + np.array([3, 1, 4])) / 6
    np.testing.assert_allclose([score for _, score in rows], log_probs / penalties**5, rtol=1e-5)


def test_impossible_tokens_never_come_and_their_share_goes_to_the_others():
    table = np.array([[0.8, 0.1, 0.05, 0.05]] * 4)  # PAD would be the likeliest
    ((ids, score),) = search(table)
    assert ids == [EOS]
    assert score == pytest.approx(np.log(0.1 / 0.2), rel=1e-5)


@only_tensorflow
def test_search_stops_when_no_hypothesis_can_still_win():
    calls = []
    ((ids, _),) = search(GARDEN_PATH, max_lengths=(50,), calls=calls)
    assert ids == [B, EOS]
    assert calls == [0, 1]  # after two steps 0.36 is finished, and 0.18 the best alive


def test_search_goes_on_while_a_longer_hypothesis_can_win():
    ((ids, score),) = search(PATIENCE, alpha=3.0)
    assert ids == [A, B, EOS]  # log 0.4 / (8/6)^3 > log 0.6, though log 0.4 < log 0.6
    assert score == pytest.approx(np.log(0.4) / (8 / 6) ** 3, rel=1e-5)


def test_ended_hypotheses_take_no_place_in_the_beam():
    ((ids, score),) = search(EARLY_ENDS, max_lengths=(3,), alpha=6.0)
    assert ids == [A, A, EOS]  # A EOS and B EOS are the two best continuations of length 2
    assert score == pytest.approx(np.log(0.5 * 0.3 * 0.6) / (8 / 6) ** 6, rel=1e-5)


def exhaustive(logits, max_length, alpha):
    """(ids, score) of the best sequence of at most `max_length`; logits {prefix: [v]}."""

    def log_prob(ids):
        return sum(
            logits[ids[:i]][token] - np.logaddexp.reduce(logits[ids[:i]][PRODUCIBLE])
            for i, token in enumerate(ids)
        )

    sequences = (
        (*prefix, EOS)
        for length in range(max_length)
        for prefix in itertools.product((A, B), repeat=length)
    )
    scored = ((log_prob(ids) / ((5 + len(ids)) / 6) ** alpha, ids) for ids in sequences)
    score, ids = max(scored)
    return list(ids), score


@pytest.mark.parametrize("alpha", [0.0, 0.6, 3.0])
def test_widest_beam_equals_exhaustive_search(alpha):
    """120 random tables over whole prefixes; the cache holds the prefix, so it must be reordered.

    A prefix is numbered in base 4 behind a leading 1. With two tokens besides EOS and a length of
    at most 4 there are 1 + 2 + 4 + 8 sentences.
    """
    rng = np.random.default_rng(7)
    tables = rng.normal(0, 2, (120, 2 * 4**3, 4)).astype("float32")
    max_lengths = rng.integers(1, 5, 120).astype("int32")
    beam_size = 15

    def step(tokens, position, cache):
        prefix = keras.ops.where(position == 0, 1, cache["prefix"] * 4 + tokens[:, 0])
        logits = keras.ops.take(flat, cache["table"] * (2 * 4**3) + prefix, axis=0)
        return logits, {"prefix": prefix, "table": cache["table"]}

    flat = keras.ops.convert_to_tensor(tables.reshape(-1, 4))
    table = repeat_beam(keras.ops.arange(120, dtype="int32"), beam_size)
    ids, scores = beam_search(
        step, {"prefix": keras.ops.zeros_like(table), "table": table}, max_lengths,
        beam_size=beam_size, alpha=alpha, producible=PRODUCIBLE, eos=EOS, length=4,
    )  # fmt: skip

    def number(prefix):
        return sum(token * 4**i for i, token in enumerate(reversed((1, *prefix))))

    prefixes = [p for n in range(4) for p in itertools.product((A, B), repeat=n)]
    for row, (found, score) in enumerate(best(ids, scores)):
        logits = {prefix: tables[row, number(prefix)].astype("float64") for prefix in prefixes}
        expected, expected_score = exhaustive(logits, max_lengths[row], alpha)
        assert found == expected
        assert score == pytest.approx(expected_score, rel=1e-4, abs=1e-5)


def test_reorder_cache_moves_rows_within_each_sentence():
    cache = {"key": np.array([[0.0], [0.1], [0.2], [1.0], [1.1], [1.2]])}
    moved = array(reorder_cache(cache, np.array([[2, 0, 0], [1, 1, 2]]))["key"])
    np.testing.assert_allclose(moved[:, 0], [0.2, 0, 0, 1.1, 1.1, 1.2])


PIECES = np.array([False] + [True] * 19)  # the matrix has 23 rows
SOURCE = np.array([[5, 9, 17, 4, 1], [8, 3, 1, 0, 0]], "int32")


@pytest.fixture(scope="module")
def model(build):
    return build()


def decode_with(model, source, **config):
    config = Decode(**{"beam_size": 3, "max_extra_length": 4} | config)
    return make_decoder(model, config, PIECES, EOS)(keras.ops.convert_to_tensor(source))


@pytest.fixture(scope="module")
def decoded(model):
    return decode_with(model, SOURCE, alpha=0.6)


def test_score_is_the_teacher_forced_log_probability(model, decoded):
    ids, _ = decoded
    logits = array(model(SOURCE, ids[:, 0]))[:, :, 1:20]  # of the tokens 1 ... 19
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    for row, (target, score) in zip(log_probs, best(*decoded), strict=True):
        total = sum(row[i, token - 1] for i, token in enumerate(target))
        assert score == pytest.approx(total / ((5 + len(target)) / 6) ** 0.6, rel=1e-4)


@pytest.mark.parametrize(
    ("rows", "source"),
    [([1, 0], np.pad(SOURCE, ((0, 0), (0, 3)))[::-1]), ([1], SOURCE[1:2, :3])],
    ids=["padded and in another order", "alone"],
)
def test_result_depends_on_neither_neighbours_nor_padding(model, decoded, rows, source):
    together, other = best(*decoded), best(*decode_with(model, source, alpha=0.6))
    for row, (ids, score) in zip(rows, other, strict=True):
        assert ids == together[row][0]
        assert score == pytest.approx(together[row][1], rel=1e-4)


def test_output_is_at_most_input_length_plus_extra(model):
    # With a huge alpha the longest possible output wins; lengths count EOS on both sides.
    rows = best(*decode_with(model, SOURCE, alpha=50.0, max_extra_length=2))
    assert [len(ids) for ids, _ in rows] == [5 + 2, 3 + 2]


def test_padding_and_unused_rows_are_never_produced(build):
    model = build()
    matrix = array(model.embedding.matrix).copy()
    matrix[[0, 20, 21, 22]] *= 10  # great logits, of either sign
    model.embedding.matrix.assign(matrix)
    logits = array(model(SOURCE, SOURCE))
    assert np.isin(logits.argmax(-1), [0, 20, 21, 22]).any()  # so the model would like to
    for ids, _ in best(*decode_with(model, SOURCE)):
        assert set(ids) <= set(range(1, 20))


def test_bfloat16_model_decodes_to_float32_scores(build):
    ids, scores = decode_with(build(dtype="mixed_bfloat16"), SOURCE)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    assert len(best(ids, scores)) == 2


@pytest.fixture(scope="module")
def graph_decoder(model):
    import tensorflow as tf

    decoder = make_decoder(model, Decode(beam_size=3, max_extra_length=4), PIECES, EOS)
    return tf.function(decoder, input_signature=[tf.TensorSpec([None, None], tf.int32)])


@only_tensorflow
def test_graph_equals_eager(decoded, graph_decoder):
    ids, scores = graph_decoder(SOURCE)
    eager_ids, eager_scores = decoded
    np.testing.assert_array_equal(array(ids), array(eager_ids))
    np.testing.assert_allclose(array(scores), array(eager_scores), rtol=1e-4)


@only_tensorflow
@pytest.mark.parametrize("shape", [(0, 0), (0, 3)])
def test_empty_batch_gives_an_empty_result(graph_decoder, shape):
    ids, scores = graph_decoder(np.zeros(shape, "int32"))
    assert ids.shape[:2] == scores.shape == (0, 3)
