"""Section 6.1: beam search with the length penalty of GNMT, over any step function.

Axes: b batch, m beam, t target positions, v rows of the shared matrix. The hypotheses of a sentence
are the queries of one batch row, so that the source needs no copy for each. The cache of a step
function is never reordered either: what a hypothesis has in it is found by its ancestors. With a
beam of three, a hypothesis that now stands in slot 0 and grew out of slot 2, which grew out of
slot 1, has the ancestors [1 2] and finds its keys at position 0 in slot 1, at 1 in slot 2.
"""

import typing
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from t2t_repro.config import Decode
from t2t_repro.model.attention import PAD, padding_mask

# (tokens int32 [b, m], slots int32 [b, m, t], position, cache) -> (logits float32 [b, m, v], cache)
Step = Callable[[Any, Any, Any, Any], tuple[Any, Any]]

IMPOSSIBLE = -1e9  # log-probability of what must not be produced; finite, so that sums stay numbers
BLOCK = 64  # tokens of which `_top_k` takes the maximum first


def length_penalty(length: Any, alpha: float) -> Any:
    """((5 + length) / 6)^alpha, Wu et al. 2016 equation 14; length counts EOS."""
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha


class Lengths(typing.NamedTuple):
    """How long the outputs may be, EOS included."""

    least: Any  # int32 [b]: no EOS before
    most: Any  # int32 [b]: where only one token is left, it has to be EOS
    room: Any  # the largest that `most` can be; int, or a scalar in a graph of any shape


class BeamState(typing.NamedTuple):
    """What the search carries from step to step; tensors of whichever backend."""

    position: Any  # int32 scalar: tokens in every alive hypothesis
    alive: Any  # int32 [b, m, t]: hypotheses without EOS, PAD from `position` on
    ancestors: Any  # int32 [b, m, t]: their slots before each token, -1 from `position` on
    alive_log_prob: Any  # float32 [b, m], descending
    finished: Any  # int32 [b, m, t]: hypotheses that end with EOS, PAD behind it
    finished_score: Any  # float32 [b, m], log-probability / penalty, descending
    cache: Any  # whatever the step function keeps


def beam_search(
    step: Step,
    cache: Any,
    lengths: Lengths,
    *,
    beam_size: int,
    alpha: float,
    eos: int,
    n_best: int = 1,
) -> tuple[Any, Any]:
    """Searches the best-scored hypotheses: log P(y | x) / length_penalty(|y|).

    At each step the 2 m best continuations are looked at. Those that end are finished hypotheses,
    the m best others live on. Of equal ones the first in the order of (slot, token id) comes first,
    and a finished one before those that finish later. A beam of one follows the likeliest token
    that is not EOS and is cut where its score is best (as in tensor2tensor's search): its score is
    never below that of ending at the first EOS.

    The search ends when no alive hypothesis of any row can still overtake the row's `n_best`-th
    finished one.

    Args:
        step: gives logits of the next token after the last `tokens` (PAD at position 0); those of
            what may not be produced are IMPOSSIBLE or below. `slots` are the ancestors of each
            hypothesis, then its own slot at `position`, then -1.
        cache: the first cache.
        lengths: of the outputs.
        beam_size: m, at least n_best.
        alpha: exponent of the length penalty, at least 0.
        eos: id of EOS.
        n_best: hypotheses to return.

    Returns:
        (ids int32 [b, n_best, t], scores float32 [b, n_best]), best first. Where there are fewer
        sentences than n_best, the last are PAD with a score of IMPOSSIBLE.
    """

    def unfinished(*loop: Any) -> Any:
        return _can_improve(BeamState(*loop), lengths.most, alpha, n_best)

    def advance(*loop: Any) -> tuple[Any, ...]:
        state = BeamState(*loop)
        logits, cache = step(_last_tokens(state), _slots(state), state.position, state.cache)
        log_prob, token = _next_tokens(logits, state.position + 1, lengths, eos)
        return tuple(_grow(state._replace(cache=cache), log_prob, token, alpha, eos))

    batch = ops.shape(lengths.most)[0]
    state = tuple(_initial_state(cache, batch, beam_size, lengths.room))
    state = BeamState(*ops.while_loop(unfinished, advance, state))
    return state.finished[:, :n_best], state.finished_score[:, :n_best]


def _initial_state(cache: Any, batch: Any, beam_size: int, room: Any) -> BeamState:
    """One live hypothesis a row, the empty one; the others of the beam are impossible."""
    first = ops.cast(ops.arange(beam_size) == 0, "float32")  # [m]
    rows = ops.ones((batch, 1), "float32")
    empty = ops.zeros((batch, beam_size, room), "int32")
    return BeamState(
        position=ops.zeros((), "int32"),
        alive=empty + PAD,
        ancestors=empty - 1,
        alive_log_prob=rows * (1.0 - first) * IMPOSSIBLE,
        finished=empty + PAD,
        finished_score=ops.ones((batch, beam_size), "float32") * IMPOSSIBLE,
        cache=cache,
    )


def _can_improve(state: BeamState, most: Any, alpha: float, n_best: int) -> Any:
    """Whether, in any row, an alive hypothesis can still be one of the `n_best`."""
    # Log-probabilities only fall, and are negative: divided by the penalty of the greatest length,
    # this is the best an alive one can score.
    best = state.alive_log_prob[:, 0]  # [b]
    is_better = best / length_penalty(most, alpha) > state.finished_score[:, n_best - 1]
    is_alive = ops.logical_and(best > IMPOSSIBLE / 2, state.position < most)
    return ops.any(ops.logical_and(is_better, is_alive))


def _last_tokens(state: BeamState) -> Any:
    """The token before `position` in every alive hypothesis, PAD at position 0: [b, m]."""
    at = ops.arange(ops.shape(state.alive)[2], dtype="int32") == state.position - 1  # [t]
    return ops.sum(ops.where(at, state.alive, 0), axis=-1)


def _slots(state: BeamState) -> Any:
    """The ancestors of each hypothesis, and its own slot at `position`: [b, m, t]."""
    own = ops.arange(state.ancestors.shape[1], dtype="int32")
    return _append(state.ancestors, own[None, :], state.position)


def _next_tokens(logits: Any, length: Any, lengths: Lengths, eos: int) -> tuple[Any, Any]:
    """The 2 m likeliest tokens after each hypothesis, with which it has `length` tokens.

    logits [b, m, v] -> (log-probability, token), both [b, m, 2m]. The logarithm is taken of these
    alone: no array of v log-probabilities is made.
    """
    batch, beam_size, size = ops.shape(logits)
    count = min(2 * beam_size, size)
    top, token = _top_k(logits, count)
    # log P of the likeliest, from which the others follow. One softmax takes 2.6 ms for 256 x
    # 32,000 logits on two cores; subtract, exp and sum take 4.7, and logsumexp 7.6.
    places = ops.arange(batch * beam_size, dtype="int32") * size + ops.reshape(
        token[:, :, 0], (-1,)
    )
    highest = ops.take(ops.reshape(ops.softmax(logits, axis=-1), (-1,)), places)
    log_highest = ops.log(ops.reshape(ops.minimum(highest, 1.0), (batch, beam_size, 1)))
    total = top[:, :, :1] - log_highest  # the logarithm of the sum of exponentials
    log_prob = top - total

    is_first = ops.arange(count) == 0
    ending = ops.where(is_first, logits[:, :, eos : eos + 1] - total, IMPOSSIBLE)
    must_end = (length >= lengths.most)[:, None, None]
    may_end = (length >= lengths.least)[:, None, None]
    log_prob = ops.where(must_end, ending, log_prob)
    token = ops.where(must_end, eos, token)
    early = ops.logical_and(token == eos, ops.logical_not(may_end))
    return ops.where(early, IMPOSSIBLE, log_prob), token


def _top_k(x: Any, count: int) -> tuple[Any, Any]:
    """The `count` greatest of the last axis and their places; x [b, m, v], v static.

    They are in the `count` blocks whose maxima are greatest. To look for 8 there in 256 x 32,000
    takes 2.2 ms on two cores, top_k over all of them 18 ms, a quarter of what the whole step takes
    now. Blocks are put in order again, so that equal values come in the order of their places, as
    from top_k.
    """
    batch, beam_size, size = ops.shape(x)
    if size % BLOCK or size // BLOCK <= count:
        return ops.top_k(x, count)
    x = ops.reshape(x, (batch * beam_size, size // BLOCK, BLOCK))
    _, blocks = ops.top_k(ops.max(x, axis=-1), count)  # [b * m, count]
    blocks = ops.sort(blocks, axis=-1)
    candidates = ops.reshape(_gather(x, blocks), (-1, count * BLOCK))
    top, place = ops.top_k(candidates, count)  # [b * m, count]
    place = _gather(blocks, place // BLOCK) * BLOCK + place % BLOCK
    shape = (batch, beam_size, count)
    return ops.reshape(top, shape), ops.reshape(place, shape)


def _grow(state: BeamState, log_prob: Any, token: Any, alpha: float, eos: int) -> BeamState:
    """Every hypothesis by one token; keeps the m best alive and the m best finished.

    Of the 2 m best continuations at most m are EOS (one for each hypothesis), so m live on.
    log_prob, token [b, m, k]: of the next token, the k likeliest of each hypothesis.
    """
    beam_size, count = token.shape[1:]
    total = ops.reshape(state.alive_log_prob[:, :, None] + log_prob, (-1, beam_size * count))
    log_prob, index = ops.top_k(total, 2 * beam_size)  # [b, 2m]
    parent = index // count
    token = _gather(ops.reshape(token, (-1, beam_size * count)), index)
    ended = token == eos

    alive_log_prob, keep = ops.top_k(
        ops.where(ended, 2 * IMPOSSIBLE, log_prob), beam_size
    )  # [b, m]: an ended one is worse than an impossible one
    alive_parent = _gather(parent, keep)

    score = log_prob / length_penalty(state.position + 1, alpha)
    score = ops.where(ops.logical_and(ended, log_prob > IMPOSSIBLE / 2), score, IMPOSSIBLE)
    finished_score, best = ops.top_k(
        ops.concatenate([state.finished_score, score], axis=1), beam_size
    )
    grown = _append(_gather(state.alive, parent), token, state.position)  # [b, 2m, t]
    return BeamState(
        position=state.position + 1,
        alive=_gather(grown, keep),
        ancestors=_append(_gather(state.ancestors, alive_parent), alive_parent, state.position),
        alive_log_prob=alive_log_prob,
        finished=_gather(ops.concatenate([state.finished, grown], axis=1), best),
        finished_score=finished_score,
        cache=state.cache,
    )


def _append(hypotheses: Any, token: Any, position: Any) -> Any:
    """Hypotheses [b, k, t] with token [b, k] at `position`."""
    at = ops.arange(ops.shape(hypotheses)[2], dtype="int32") == position
    return ops.where(at, token[:, :, None], hypotheses)


def _gather(x: Any, index: Any) -> Any:
    """X [b, k, ...], index int32 [b, m] into k -> [b, m, ...]."""
    batch, count, *rest = ops.shape(x)
    rows = ops.arange(batch, dtype="int32")[:, None] * count + ops.cast(index, "int32")  # [b, m]
    return ops.take(ops.reshape(x, (batch * count, *rest)), rows, axis=0)


def make_decoder(
    model: Any,
    config: Decode,
    producible: np.ndarray,
    eos: int,
    *,
    n_best: int = 1,
    forced_length: int | None = None,
) -> Callable[[Any], tuple[Any, Any]]:
    """The one way from source ids to target ids, for training, evaluation, translation and export.

    Args:
        model: a Transformer.
        config: a `t2t_repro.config.Decode`.
        producible: bool [pieces], False for what may never be produced. Rows of the matrix beyond
            the pieces are never produced either.
        eos: id of EOS.
        n_best: hypotheses to return for each sentence, at most `config.beam_size`.
        forced_length: tokens of every output, EOS included, whatever the model thinks: to measure
            speed. None is the paper's: input length + `config.max_extra_length` at most.

    Returns:
        A function: source int32 [b, s], each row ending with EOS, then PAD -> (ids int32
        [b, n_best, t] ending with EOS, then PAD; scores float32 [b, n_best]), best first.

    Raises:
        ValueError: n_best is not between 1 and the beam size.
    """
    if not 1 <= n_best <= config.beam_size:
        raise ValueError(f"n_best: wanted 1 to the beam size {config.beam_size}, got {n_best}")

    def decode(source: Any) -> tuple[Any, Any]:
        source_mask = padding_mask(source)
        lengths = _lengths(source, source_mask, config.max_extra_length, forced_length)
        # Arrays cannot grow where shapes are fixed: in JAX, and when XLA compiles.
        grows = not isinstance(lengths.room, int)
        keys = lengths.room * (0 if grows else config.beam_size)
        with model.weights_read_once():
            return beam_search(
                _step_of(model, source, source_mask, _bias(producible), grows),
                model.empty_cache(ops.shape(source)[0], keys),
                lengths,
                beam_size=config.beam_size,
                alpha=config.alpha,
                eos=eos,
                n_best=n_best,
            )

    return decode


def _step_of(model: Any, source: Any, source_mask: Any, bias: np.ndarray, grows: bool) -> Step:
    """The step function of a model that has read the source."""
    memory = model.memory(model.encode(source, source_mask))
    logits_of = model.embedding.output_map(bias)

    def step(tokens: Any, slots: Any, position: Any, cache: Any) -> tuple[Any, Any]:
        x, cache = model.decode_step(tokens, memory, source_mask, slots, cache, position, grows)
        logits = logits_of(x)  # [b * m, v]
        return ops.reshape(logits, (-1, tokens.shape[1], logits.shape[-1])), cache

    return step


def _lengths(source: Any, source_mask: Any, max_extra: int, forced: int | None) -> Lengths:
    own = ops.sum(ops.cast(source_mask[:, 0, 0], "int32"), axis=-1)  # [b], with EOS
    if forced:
        return Lengths(own * 0 + forced, own * 0 + forced, ops.shape(source)[1] * 0 + forced)
    return Lengths(own * 0, own + max_extra, ops.shape(source)[1] + max_extra)


def _bias(producible: np.ndarray) -> np.ndarray:
    """What is added to the logits: IMPOSSIBLE where not producible, and up to whole BLOCKs."""
    bias = np.where(producible, 0.0, IMPOSSIBLE)
    return np.pad(bias, (0, -len(bias) % BLOCK), constant_values=IMPOSSIBLE)


def make_scorer(
    model: Any, alpha: float, producible: np.ndarray
) -> Callable[[Any, Any], tuple[Any, Any]]:
    """What the search would say of given pairs.

    Args:
        model: a Transformer.
        alpha: exponent of the length penalty.
        producible: bool [pieces]; probability is shared out among these, as in the search.

    Returns:
        A function: source int32 [b, s], target int32 [b, t], rows ending with EOS, then PAD ->
        (log P(y | x) float32 [b], score float32 [b]: that over the length penalty). A target with
        a token that may not be produced has a log-probability of IMPOSSIBLE or below.
    """

    def score(source: Any, target: Any) -> tuple[Any, Any]:
        pieces = len(producible)
        logits = ops.where(producible, model(source, target)[:, :, :pieces], IMPOSSIBLE)
        tokens = ops.expand_dims(target, -1)  # [b, t, 1]
        own = ops.take_along_axis(logits, ops.minimum(tokens, pieces - 1), axis=-1)[:, :, 0]
        own = ops.where(target < pieces, own, IMPOSSIBLE)
        is_token = ops.cast(target != PAD, "float32")
        log_prob = ops.sum((own - ops.logsumexp(logits, axis=-1)) * is_token, axis=-1)  # [b]
        return log_prob, log_prob / length_penalty(ops.sum(is_token, axis=-1), alpha)

    return score
