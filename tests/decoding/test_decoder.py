"""make_decoder and make_scorer with a model, against a search in plain Python and each other."""

import keras
import numpy as np
import pytest

from t2t_repro.config import Decode, Train
from t2t_repro.decoding.beam_search import IMPOSSIBLE
from t2t_repro.decoding.decoder import make_decoder, make_sampler, make_scorer
from t2t_repro.decoding.sampling import Sampling

array = keras.ops.convert_to_numpy
PAD, EOS = 0, 1

only_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="about tf.function, or TensorFlow's eager loop"
)

PIECES = np.array([False] + [True] * 19)  # the matrix has 23 rows
SOURCE = np.array([[5, 9, 17, 4, 1], [8, 3, 1, 0, 0]], "int32")


@pytest.fixture(scope="module")
def model(build):
    return build()


def decode_with(model, source, n_best=1, forced_length=None, **config):
    config = Decode(**{"beam_size": 3, "max_extra_length": 4} | config)
    decode = make_decoder(model, config, PIECES, EOS, n_best=n_best, forced_length=forced_length)
    return decode(keras.ops.convert_to_tensor(source))


def hypotheses(ids, scores):
    """Return [[(ids up to EOS, score) of each hypothesis] of each row]; PAD must follow EOS."""
    rows = []
    for row, row_scores in zip(array(ids), array(scores), strict=True):
        rows.append([])
        for hypothesis, score in zip(row.tolist(), row_scores, strict=True):
            end = hypothesis.index(EOS) + 1
            assert not any(hypothesis[end:])
            rows[-1].append((hypothesis[:end], float(score)))
    return rows


def best(ids, scores):
    return [row[0] for row in hypotheses(ids, scores)]


@pytest.fixture(scope="module")
def decoded(model):
    return decode_with(model, SOURCE, alpha=0.6)


def log_softmax(x):
    return x - np.logaddexp.reduce(x, axis=-1, keepdims=True)


def plain_search(logits_of, source, beam_size, alpha, rewarded, least, most):
    """Search as in the paper, with no cache, arrays or early stop: [(score, ids)], best first."""
    alive, finished = [((), 0.0)], []
    length_reward, length_ratio = rewarded
    expected_length = length_ratio * np.count_nonzero(source)
    for length in range(1, most + 1):
        targets = np.zeros((len(alive), most + 1), "int32")
        targets[:, : length - 1] = [ids for ids, _ in alive]
        logits = array(logits_of(np.repeat(source[None], len(alive), 0), targets))[:, length - 1]
        continuations = []
        for (ids, total), row in zip(alive, logits.astype("float64"), strict=True):
            for token, log_prob in zip(range(1, 20), log_softmax(row[1:20]), strict=True):
                if length >= least if token == EOS else length < most:
                    continuations.append((total + log_prob, (*ids, token)))
        continuations = sorted(continuations, key=lambda pair: -pair[0])[: 2 * beam_size]
        penalty = ((5 + length) / 6) ** alpha
        reward = length_reward * min(length, expected_length)
        ended = (pair for pair in continuations if pair[1][-1] == EOS)
        finished += [((total + reward) / penalty, ids) for total, ids in ended]
        alive = [(ids, total) for total, ids in continuations if ids[-1] != EOS][:beam_size]
    return sorted(finished, reverse=True)


@pytest.fixture(scope="module")
def trained(build):
    """Return a model that has partly learnt to copy; a third of its targets' tokens were random."""
    tf = pytest.importorskip("tensorflow")
    from t2t_repro.training.trainer import Trainer

    model = build(d_model=32, d_ff=64, num_heads=4, d_k=8, d_v=8, dropout=0.0)
    for variable in model.trainable_variables:
        if not variable.path.endswith(("gamma", "beta")):
            variable.assign(variable * 0.5)
    settings = Train(warmup_steps=20, learning_rate_scale=0.3)
    trainer = Trainer(model, settings, tf.distribute.get_strategy())
    rng, losses = np.random.default_rng(5), []
    for _ in range(200):
        source = random_sources(rng, 64)
        is_word = source > EOS
        noise = is_word & (rng.random(source.shape) < 1 / 3)
        target = np.where(noise, rng.integers(2, 20, source.shape), source).astype("int32")
        loss, _, tokens, _ = trainer.step(source, target).numpy()
        losses.append(loss / tokens)
    assert np.mean(losses[-20:]) < 0.9 * np.mean(losses[:20])
    return model


@pytest.fixture(scope="module")
def logits_of(trained):
    """Return the trained model as one graph for all shapes, which is faster than layer by layer."""
    import tensorflow as tf

    ids = tf.TensorSpec([None, None], tf.int32)
    return tf.function(trained, input_signature=[ids, ids], autograph=False)


def random_sources(rng, count):
    """Return random sources of 1 to 8 pieces and EOS: int32 [count, 9]."""
    source = rng.integers(2, 20, (count, 9)).astype("int32")
    length = rng.integers(1, 9, count)[:, None]
    position = np.arange(9)[None]
    return np.where(position < length, source, np.where(position == length, EOS, PAD))


@only_tensorflow
@pytest.mark.parametrize(
    ("beam_size", "alpha", "rewarded", "forced_length"),
    [
        pytest.param(1, 0.6, (0.0, 1.0), None, marks=pytest.mark.slow),
        pytest.param(3, 0.0, (0.0, 1.0), None, marks=pytest.mark.slow),
        (4, 0.6, (0.0, 1.0), None),
        pytest.param(4, 2.0, (0.0, 1.0), None, marks=pytest.mark.slow),
        pytest.param(4, 0.6, (0.0, 1.0), 6, marks=pytest.mark.slow),
        (4, 0.0, (0.9, 1.3), None),
        pytest.param(4, 0.6, (3.0, 0.7), None, marks=pytest.mark.slow),
    ],
)
def test_all_hypotheses_of_a_trained_model_equal_those_of_a_plain_search(
    trained, logits_of, beam_size, alpha, rewarded, forced_length
):
    """`rewarded` has the length reward, and the length ratio."""
    source = random_sources(np.random.default_rng(6), 12)
    settings = {"beam_size": beam_size, "alpha": alpha}
    settings |= dict(zip(("length_reward", "length_ratio"), rewarded, strict=True))
    settings |= {"forced_length": forced_length}
    found = hypotheses(*decode_with(trained, source, beam_size, max_extra_length=3, **settings))
    for row, ours in zip(source, found, strict=True):
        most = forced_length or int((row != PAD).sum()) + 3
        least = forced_length or 1
        theirs = plain_search(logits_of, row, beam_size, alpha, rewarded, least, most)
        assert [ids for ids, _ in ours] == [list(ids) for _, ids in theirs[:beam_size]]
        expected = [score for score, _ in theirs[:beam_size]]
        # A reward may bring a score near 0.
        np.testing.assert_allclose([score for _, score in ours], expected, rtol=1e-4, atol=1e-5)


@only_tensorflow
def test_no_hypothesis_depends_on_neighbours_padding_or_place(trained):
    """Twenty sentences are decoded together, each alone, and in a wider batch; also in a graph."""
    import tensorflow as tf

    source = random_sources(np.random.default_rng(7), 20)
    together = hypotheses(*decode_with(trained, source, n_best=3))
    decode = make_decoder(trained, Decode(3, max_extra_length=4), PIECES, EOS, n_best=3)
    graph = tf.function(
        decode, input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False
    )
    wide = np.pad(source, ((0, 0), (0, 20)))[::-1]
    alone = [(source[i : i + 1, : (source[i] != PAD).sum()], [i]) for i in range(20)]
    for rows, indices in (*alone, (wide, range(19, -1, -1))):
        for index, other in zip(indices, hypotheses(*graph(rows)), strict=True):
            assert [ids for ids, _ in other] == [ids for ids, _ in together[index]]
            scores = [score for _, score in together[index]]
            np.testing.assert_allclose([score for _, score in other], scores, rtol=1e-4)


@only_tensorflow
@pytest.mark.slow
def test_xla_gives_what_the_graph_gives(trained):
    import tensorflow as tf

    source = random_sources(np.random.default_rng(8), 5)
    decode = make_decoder(trained, Decode(3, max_extra_length=4), PIECES, EOS, n_best=3)
    expected = hypotheses(*tf.function(decode, autograph=False)(source))
    compiled = hypotheses(*tf.function(decode, jit_compile=True, autograph=False)(source))
    for ours, theirs in zip(compiled, expected, strict=True):
        assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
        np.testing.assert_allclose([s for _, s in ours], [s for _, s in theirs], rtol=1e-4)


def test_score_is_the_teacher_forced_log_probability(model, decoded):
    ids, _ = decoded
    log_probs = log_softmax(array(model(SOURCE, ids[:, 0]))[:, :, 1:20])  # of the tokens 1 ... 19
    for row, (target, score) in zip(log_probs, best(*decoded), strict=True):
        total = sum(row[i, token - 1] for i, token in enumerate(target))
        assert score == pytest.approx(total / ((5 + len(target)) / 6) ** 0.6, rel=1e-4)


@pytest.mark.parametrize(("forced_length", "reward"), [(None, 0.0), (3, 0.0), (4, 0.9)])
def test_scorer_says_of_each_hypothesis_what_the_search_said(model, forced_length, reward):
    given = {"alpha": 0.6, "length_reward": reward, "length_ratio": 0.7}
    ids, scores = decode_with(model, SOURCE, n_best=3, forced_length=forced_length, **given)
    score = make_scorer(model, Decode(**given), PIECES)
    for i in range(3):
        target = array(ids)[:, i]
        log_probs, own = score(SOURCE, target)
        np.testing.assert_allclose(array(own), array(scores)[:, i], rtol=1e-4)
        length = (target != PAD).sum(1)
        rewarded = array(log_probs).sum(1) + reward * np.minimum(length, 0.7 * np.array([5, 3]))
        np.testing.assert_allclose(rewarded, array(own) * ((5 + length) / 6) ** 0.6, rtol=1e-5)


def test_scorer_knows_what_may_not_be_produced(model):
    target = np.array([[21, 1, 0], [5, 6, 1]], "int32")  # 21 is a row beyond the pieces
    log_probs, _ = make_scorer(model, Decode(), PIECES)(SOURCE, target)
    assert array(log_probs)[0, 0] <= IMPOSSIBLE / 2 < array(log_probs)[0, 1]
    assert array(log_probs)[1].min() > IMPOSSIBLE / 2


def test_scorer_takes_each_token_by_teacher_forcing(model):
    target = np.array([[5, 6, 1], [7, 1, 0]], "int32")
    log_probs, _ = make_scorer(model, Decode(), PIECES)(SOURCE, target)
    expected = log_softmax(array(model(SOURCE, target))[:, :, 1:20])  # of the tokens 1 ... 19
    for row, column in zip(*target.nonzero(), strict=True):
        token = target[row, column] - 1
        assert array(log_probs)[row, column] == pytest.approx(
            expected[row, column, token], rel=1e-4
        )
    assert array(log_probs)[1, 2] == 0


def test_padding_of_a_target_does_not_change_its_score(model):
    target = np.array([[5, 6, 1], [7, 1, 0]], "int32")
    score = make_scorer(model, Decode(), PIECES)
    alone = score(SOURCE[1:, :3], target[1:, :2])
    wide = score(SOURCE, np.pad(target, ((0, 0), (0, 3))))
    np.testing.assert_allclose(array(alone[0])[0], array(wide[0])[1, :2], rtol=1e-5)
    np.testing.assert_allclose(array(alone[1])[0], array(wide[1])[1], rtol=1e-5)


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


@pytest.mark.parametrize("length", [1, 2, 9])
def test_forced_length_is_that_of_every_hypothesis(model, length):
    rows = hypotheses(*decode_with(model, SOURCE, n_best=1 if length == 1 else 3, alpha=0.6,
                                   forced_length=length))  # fmt: skip
    assert {len(ids) for row in rows for ids, _ in row} == {length}


@pytest.mark.parametrize("n_best", [0, 4])
def test_more_hypotheses_than_the_beam_are_refused(model, n_best):
    with pytest.raises(ValueError, match=f"wanted 1 to the beam size 3, got {n_best}"):
        decode_with(model, SOURCE, n_best=n_best)


def test_padding_and_unused_rows_are_never_produced(build):
    model = build()
    matrix = array(model.embedding.matrix).copy()
    matrix[[0, 20, 21, 22]] *= 10  # large logits of either sign
    model.embedding.matrix.assign(matrix)
    logits = array(model(SOURCE, SOURCE))
    assert np.isin(logits.argmax(-1), [0, 20, 21, 22]).any()  # the model prefers them
    for row in hypotheses(*decode_with(model, SOURCE, n_best=3)):
        assert all(set(ids) <= set(range(1, 20)) for ids, _ in row)


def test_bfloat16_model_decodes_to_float32_scores(build):
    ids, scores = decode_with(build(dtype="mixed_bfloat16"), SOURCE)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    assert len(best(ids, scores)) == 2


@pytest.fixture(scope="module")
def graph_decoder(model):
    import tensorflow as tf

    def graph_decoder(**settings):
        config = Decode(beam_size=3, max_extra_length=4)
        decoder = make_decoder(model, config, PIECES, EOS, **settings)
        return tf.function(
            decoder, input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False
        )

    return graph_decoder


@only_tensorflow
@pytest.mark.parametrize("length", [None, 20])
def test_graph_whose_cache_grows_equals_eager_with_one_of_full_length(model, graph_decoder, length):
    settings = {"n_best": 3, "forced_length": length}
    grown = hypotheses(*graph_decoder(**settings)(SOURCE))
    fixed = hypotheses(*decode_with(model, SOURCE, **settings))
    for ours, theirs in zip(grown, fixed, strict=True):
        assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
        np.testing.assert_allclose([s for _, s in ours], [s for _, s in theirs], rtol=1e-4)


@only_tensorflow
@pytest.mark.parametrize("shape", [(0, 0), (0, 3)])
def test_empty_batch_gives_an_empty_result(graph_decoder, shape):
    ids, scores = graph_decoder(n_best=2)(np.zeros(shape, "int32"))
    assert ids.shape[:2] == scores.shape == (0, 2)


# Several models, prefixes, samples


@pytest.mark.slow
def test_a_model_twice_is_the_model(model):
    config = Decode(3, max_extra_length=4)
    alone = make_decoder(model, config, PIECES, EOS, n_best=3)(SOURCE)
    twice = make_decoder(model, config, PIECES, EOS, n_best=3, others=[model])(SOURCE)
    assert (array(alone[0]) == array(twice[0])).all()
    np.testing.assert_allclose(array(alone[1]), array(twice[1]), rtol=1e-4)


def test_two_models_score_by_the_mean_of_their_probabilities(model, build):
    other = build(seed=2)
    decode = make_decoder(model, Decode(3, max_extra_length=4), PIECES, EOS, others=[other])
    ids, scores = decode(SOURCE)
    target = array(ids)[:, 0]
    log_probs = [array(make_scorer(m, Decode(), PIECES)(SOURCE, target)[0]) for m in (model, other)]
    mean = np.log((np.exp(log_probs[0]) + np.exp(log_probs[1])) / 2)  # log 1 = 0 for PAD
    penalty = ((5 + (target != PAD).sum(1)) / 6) ** 0.6
    np.testing.assert_allclose(array(scores)[:, 0], mean.sum(1) / penalty, rtol=1e-4)


PREFIX = np.array([[7, 5, 6], [0, 0, 0]], "int32")


def test_outputs_begin_with_their_prefix_and_score_it(model, decoded):
    decode = make_decoder(model, Decode(3, max_extra_length=4), PIECES, EOS, n_best=3)
    ids, scores = (array(values) for values in decode(SOURCE, PREFIX))
    assert (ids[0, :, :3] == PREFIX[0]).all()
    assert len({tuple(row) for row in ids[0].tolist()}) == 3
    free = best(ids[1:], scores[1:])[0]  # the other row has no prefix
    assert free[0] == best(*decoded)[1][0]
    for i in range(3):
        _, own = make_scorer(model, Decode(), PIECES)(SOURCE, ids[:, i])
        np.testing.assert_allclose(array(own), scores[:, i], rtol=1e-4)


def test_a_prefix_may_be_longer_than_the_limit(model):
    prefix = np.full((2, 12), 7, "int32")
    ids, _ = make_decoder(model, Decode(2, max_extra_length=0), PIECES, EOS)(SOURCE, prefix)
    assert [row for (row, _) in best(ids, np.zeros((2, 1)))] == [[7] * 12 + [EOS]] * 2


def sampled(model, draws, topk=0, temperature=1.0, source=SOURCE, prefix=None, others=()):
    config = Decode(3, max_extra_length=4, length_reward=0.3, length_ratio=1.2)
    sampling = Sampling(topk, temperature)
    decode = make_sampler(model, config, PIECES, EOS, sampling, others)
    prefix = np.zeros((len(source), 0), "int32") if prefix is None else prefix
    return decode(source, prefix, keras.ops.convert_to_tensor(draws.astype("float32")))


def greedy(model, row, most):
    """Follow the likeliest piece, EOS too, through the logits of teacher forcing."""
    ids = []
    while EOS not in ids:
        target = np.array([ids + [PAD] * (most + 1 - len(ids))], "int32")
        logits = array(model(row[None], target))[0, len(ids)]
        ids.append(EOS if len(ids) == most - 1 else int(np.argmax(logits[1:20])) + 1)
    return ids


@pytest.mark.parametrize(
    "settings", [(1, 1.0), pytest.param((0, 0.01), marks=pytest.mark.slow)], ids=str
)
def test_one_token_to_draw_from_is_greedy(model, settings):
    rows = hypotheses(*sampled(model, np.random.default_rng(1).random((2, 20, 3)), *settings))
    for row, source in zip(rows, SOURCE, strict=True):
        length = (source != PAD).sum()
        assert [ids for ids, _ in row] == [greedy(model, source[:length], length + 4)] * 3


def test_several_models_are_sampled_from_by_the_mean_of_their_probabilities(model, build):
    other = build(seed=2)

    def both(source, target):
        logits = [array(each(source, target)) for each in (model, other)]
        chances = [np.exp(x[..., 1:20]) for x in logits]  # of the pieces that may be written
        mean = sum(x / x.sum(-1, keepdims=True) for x in chances)
        return np.concatenate([0 * logits[0][..., :1], np.log(mean)], axis=-1)

    draws = np.random.default_rng(1).random((2, 20, 1))
    rows = hypotheses(*sampled(model, draws, 1, others=[other]))
    found = [row[0][0] for row in rows]
    sources = [source[: (source != PAD).sum()] for source in SOURCE]
    assert found == [greedy(both, source, len(source) + 4) for source in sources]
    assert found != [greedy(model, source, len(source) + 4) for source in sources]


def test_samples_depend_on_their_own_draws_alone_and_score_as_the_search(model):
    draws = np.random.default_rng(3).random((2, 20, 3))
    ids, scores = together = sampled(model, draws, prefix=PREFIX)
    alone = sampled(model, draws[1:], source=SOURCE[1:, :3])
    assert [ids for ids, _ in hypotheses(*alone)[0]] == [i for i, _ in hypotheses(*together)[1]]
    assert (array(ids)[0, :, :3] == PREFIX[0]).all()
    for i in range(3):
        _, own = make_scorer(model, Decode(length_reward=0.3, length_ratio=1.2), PIECES)(
            SOURCE, array(ids)[:, i]
        )
        np.testing.assert_allclose(array(own), array(scores)[:, i], rtol=1e-4)
