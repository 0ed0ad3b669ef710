"""Section 6.1: beam search with the length penalty of GNMT, over any step function.

A hypothesis Y of a source X scores s(Y, X) = log P(Y | X) / lp(Y), lp(Y) = ((5 + |Y|) / 6)^alpha
(Wu et al. 2016, equation 14), |Y| counting EOS. Not in the paper, and 0 unless it is set: a length
reward r, with which s(Y, X) = (log P(Y | X) + r min(|Y|, q |X|)) / lp(Y), where q |X| is the length
that the output is expected to have (after Huang et al. 2017).

Axes: b batch, m beam, t target positions, v rows of the shared matrix. The hypotheses of a sentence
are the queries of one batch row, so that the source needs no copy for each. The cache of a step
function is never reordered either: a hypothesis finds its keys through its ancestors. With a beam
of three, a hypothesis that is now in slot 0 and grew out of slot 2, which grew out of slot 1, has
the ancestors [1 2] and finds its keys at position 0 in slot 1, at position 1 in slot 2.
"""

import typing
from collections.abc import Callable
from typing import Any

from keras import ops

from t2t_repro.model.attention import PAD
from t2t_repro.model.fast_ops import gather, top_log_probs

# (tokens int32 [b, m], slots int32 [b, m, t], position, cache) -> (logits float32 [b, m, v], cache)
Step = Callable[[Any, Any, Any, Any], tuple[Any, Any]]

IMPOSSIBLE = -1e9  # log-probability of a forbidden token; finite, so that no sum is NaN


def length_penalty(length: Any, alpha: float) -> Any:
    """Compute ((5 + length) / 6)^alpha, Wu et al. 2016 equation 14; length counts EOS."""
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha


def score(
    log_prob: Any, length: Any, expected_length: Any, alpha: float, length_reward: float
) -> Any:
    """Compute the scores s(Y, X) of hypotheses (6.1, and the length reward).

    Args:
        log_prob: float32 [b, m] or [b], log P(Y | X).
        length: int32, |Y| with EOS; broadcasts to log_prob.
        expected_length: float32, q |X|, |X| with EOS; broadcasts to log_prob.
        alpha: exponent of the length penalty.
        length_reward: r.

    Returns:
        float32, like log_prob.
    """
    rewarded = ops.minimum(ops.cast(length, "float32"), expected_length)
    return (log_prob + length_reward * rewarded) / length_penalty(length, alpha)


class Lengths(typing.NamedTuple):
    """How long the outputs are expected to be, and may be, EOS included."""

    expected: Any  # float32 [b]: so many tokens of an output earn the length reward
    least: Any  # int32 [b]: no EOS before this length
    most: Any  # int32 [b]: the last token that fits has to be EOS
    room: Any  # upper bound of `most`; an int, or a scalar tensor in a graph of dynamic shape


class BeamState(typing.NamedTuple):
    """The state that the search carries from step to step, in tensors of the backend."""

    position: Any  # int32 scalar: tokens in every alive hypothesis
    alive: Any  # int32 [b, m, t]: hypotheses without EOS, PAD from `position` on
    ancestors: Any  # int32 [b, m, t]: their slots before each token, -1 from `position` on
    alive_log_prob: Any  # float32 [b, m], descending
    finished: Any  # int32 [b, m, t]: hypotheses that end with EOS, then PAD
    finished_score: Any  # float32 [b, m], descending
    cache: Any  # whatever the step function keeps


def beam_search(
    step: Step,
    cache: Any,
    lengths: Lengths,
    *,
    beam_size: int,
    alpha: float,
    eos: int,
    length_reward: float = 0.0,
    n_best: int = 1,
    prefix: Any = None,
) -> tuple[Any, Any]:
    """Search for the hypotheses with the best scores, log P(y | x) / length_penalty(|y|) in 6.1.

    Each step considers the 2 m best continuations. Those that end become finished hypotheses, and
    the m best others stay alive. Ties are broken by (slot, token id), and in favour of hypotheses
    that finished earlier. A beam of one follows the likeliest token that is not EOS and is
    truncated where its score is best (as in tensor2tensor's search), so its score is never below
    the score of ending at the first EOS.

    The search ends when no alive hypothesis of any row can still overtake the row's `n_best`-th
    finished one.

    Args:
        step: returns the logits of the token after the last `tokens` (PAD at position 0); logits of
            tokens that may not be produced are IMPOSSIBLE or below. `slots` are the ancestors of
            each hypothesis, then its own slot at `position`, then -1.
        cache: the cache before the first step.
        lengths: expected lengths of the outputs, and limits.
        beam_size: m, at least n_best.
        alpha: exponent of the length penalty, at least 0.
        eos: id of EOS.
        length_reward: added to the log-probability for each token up to the expected length.
        n_best: hypotheses to return.
        prefix: int32 [b, p], tokens with which the outputs begin, then PAD; they count in the score
            like any others. None: the outputs are free.

    Returns:
        (ids int32 [b, n_best, t], scores float32 [b, n_best]), best first. If the search finds
        fewer than n_best hypotheses, the last ones are PAD with a score of IMPOSSIBLE.
    """

    def score_of(log_prob: Any, length: Any) -> Any:
        return score(log_prob, length, lengths.expected[:, None], alpha, length_reward)

    def unfinished(*loop: Any) -> Any:
        reward = length_reward * lengths.expected  # [b], the greatest
        return _can_improve(BeamState(*loop), lengths.most, alpha, reward, n_best)

    def advance(*loop: Any) -> tuple[Any, ...]:
        state = BeamState(*loop)
        logits, cache = step(_last_tokens(state), _slots(state), state.position, state.cache)
        log_prob, token = _next_tokens(logits, state.position + 1, lengths, eos)
        if prefix is not None:
            wanted = prefix_token(prefix, state.position)
            log_prob, token = _follow(wanted, logits, log_prob, token)
        return tuple(_grow(state._replace(cache=cache), log_prob, token, score_of, eos))

    batch = ops.shape(lengths.most)[0]
    state = tuple(_initial_state(cache, batch, beam_size, lengths.room))
    state = BeamState(*ops.while_loop(unfinished, advance, state))
    return state.finished[:, :n_best], state.finished_score[:, :n_best]


def _initial_state(cache: Any, batch: Any, beam_size: int, room: Any) -> BeamState:
    """Make one alive hypothesis per row, the empty one; the rest of the beam is impossible."""
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


def _can_improve(state: BeamState, most: Any, alpha: float, reward: Any, n_best: int) -> Any:
    """Return whether, in any row, an alive hypothesis can still become one of the `n_best`."""
    # Log-probabilities only fall. The present one with the greatest reward, divided by the penalty
    # of the greatest length (or of the least, if positive), bounds what can be reached.
    best = state.alive_log_prob[:, 0]  # [b]
    length = ops.where(best + reward < 0, most, state.position + 1)
    bound = (best + reward) / length_penalty(length, alpha)
    is_better = bound > state.finished_score[:, n_best - 1]
    is_alive = ops.logical_and(best > IMPOSSIBLE / 2, state.position < most)
    return ops.any(ops.logical_and(is_better, is_alive))


def _last_tokens(state: BeamState) -> Any:
    """Return the token before `position` in every alive hypothesis, PAD at position 0: [b, m]."""
    at = ops.arange(ops.shape(state.alive)[2], dtype="int32") == state.position - 1  # [t]
    return ops.sum(ops.where(at, state.alive, 0), axis=-1)


def _slots(state: BeamState) -> Any:
    """Return the ancestors of each hypothesis, and its own slot at `position`: [b, m, t]."""
    own = ops.arange(state.ancestors.shape[1], dtype="int32")
    return _append(state.ancestors, own[None, :], state.position)


def _next_tokens(logits: Any, length: Any, lengths: Lengths, eos: int) -> tuple[Any, Any]:
    """Choose the 2 m likeliest tokens after each hypothesis, which then has `length` tokens.

    logits [b, m, v] -> (log-probability, token), both [b, m, 2m].
    """
    beam_size, size = logits.shape[1:]
    count = min(2 * beam_size, size)
    log_prob, token, log_norm = top_log_probs(logits, count)
    is_first = ops.arange(count) == 0
    ending = ops.where(is_first, logits[:, :, eos : eos + 1] - log_norm, IMPOSSIBLE)
    must_end = (length >= lengths.most)[:, None, None]
    may_end = (length >= lengths.least)[:, None, None]
    log_prob = ops.where(must_end, ending, log_prob)
    token = ops.where(must_end, eos, token)
    early = ops.logical_and(token == eos, ops.logical_not(may_end))
    return ops.where(early, IMPOSSIBLE, log_prob), token


def prefix_token(prefix: Any, position: Any) -> Any:
    """Return the tokens of prefixes [b, p] at a position: int32 [b], PAD after their ends."""
    at = ops.arange(ops.shape(prefix)[1], dtype="int32") == position  # [p]
    return ops.sum(ops.where(at, prefix, PAD), axis=-1)


def token_log_prob(logits: Any, token: Any) -> Any:
    """Return the log-probabilities of tokens: logits [b, m, v], int32 [b, m] -> [b, m]."""
    own = ops.take_along_axis(logits, token[:, :, None], axis=-1)[:, :, 0]
    return own - ops.logsumexp(logits, axis=-1)


def _follow(wanted: Any, logits: Any, log_prob: Any, token: Any) -> tuple[Any, Any]:
    """Leave the wanted token [b] as the only continuation, unless it is PAD.

    log_prob and token [b, m, k] are those of `_next_tokens`, and so are the results.
    """
    beam_size, count = token.shape[1:]
    own = token_log_prob(logits, ops.repeat(wanted[:, None], beam_size, axis=1))
    only = ops.where(ops.arange(count) == 0, own[:, :, None], IMPOSSIBLE)
    wanted = wanted[:, None, None]
    return ops.where(wanted == PAD, log_prob, only), ops.where(wanted == PAD, token, wanted)


def _grow(
    state: BeamState, log_prob: Any, token: Any, score_of: Callable[[Any, Any], Any], eos: int
) -> BeamState:
    """Append a token to every hypothesis; keep the m best alive and the m best finished.

    At most m of the 2 m best continuations are EOS (one for each hypothesis), so m stay alive.
    log_prob and token [b, m, k] are the k likeliest next tokens of each hypothesis.
    """
    beam_size, count = token.shape[1:]
    total = ops.reshape(state.alive_log_prob[:, :, None] + log_prob, (-1, beam_size * count))
    log_prob, index = ops.top_k(total, 2 * beam_size)  # [b, 2m]
    parent = index // count
    token = gather(ops.reshape(token, (-1, beam_size * count)), index)
    ended = token == eos

    alive_log_prob, keep = ops.top_k(
        ops.where(ended, 2 * IMPOSSIBLE, log_prob), beam_size
    )  # [b, m]: an ended hypothesis ranks below an impossible one
    alive_parent = gather(parent, keep)

    ends = ops.logical_and(ended, log_prob > IMPOSSIBLE / 2)
    scores = ops.where(ends, score_of(log_prob, state.position + 1), IMPOSSIBLE)
    finished_score, best = ops.top_k(
        ops.concatenate([state.finished_score, scores], axis=1), beam_size
    )
    grown = _append(gather(state.alive, parent), token, state.position)  # [b, 2m, t]
    return BeamState(
        position=state.position + 1,
        alive=gather(grown, keep),
        ancestors=_append(gather(state.ancestors, alive_parent), alive_parent, state.position),
        alive_log_prob=alive_log_prob,
        finished=gather(ops.concatenate([state.finished, grown], axis=1), best),
        finished_score=finished_score,
        cache=state.cache,
    )


def _append(hypotheses: Any, token: Any, position: Any) -> Any:
    """Return hypotheses [b, k, t] with token [b, k] at `position`."""
    at = ops.arange(ops.shape(hypotheses)[2], dtype="int32") == position
    return ops.where(at, token[:, :, None], hypotheses)
