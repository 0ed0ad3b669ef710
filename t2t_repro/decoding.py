"""Section 6.1: beam search with the length penalty of GNMT, over any step function.

Axes: b batch, m beam, t target positions, v rows of the shared matrix; n = b * m is the batch that
the model sees while searching. Row i of the batch owns the rows i * m ... i * m + m - 1 of it: with
two sentences and a beam of three the six rows are [0.0 0.1 0.2 1.0 1.1 1.2].
"""

import typing
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops, tree

from t2t_repro.attention import PAD, padding_mask
from t2t_repro.config import Decode

Step = Callable[[Any, Any, Any], tuple[Any, Any]]  # (tokens, position, cache) -> (logits, cache)

IMPOSSIBLE = -1e9  # log-probability of what must not be produced; finite, so that sums stay numbers


def length_penalty(length: Any, alpha: float) -> Any:
    """((5 + length) / 6)^alpha, Wu et al. 2016 equation 14; length counts EOS."""
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha


class BeamState(typing.NamedTuple):
    """What the search carries from step to step; tensors of whichever backend."""

    position: Any  # int32 scalar: tokens in every alive hypothesis
    alive: Any  # int32 [b, m, t]: hypotheses without EOS, PAD beyond `position`
    alive_log_prob: Any  # float32 [b, m], descending
    finished: Any  # int32 [b, m, t]: hypotheses that end with EOS, PAD behind it
    finished_score: Any  # float32 [b, m], log-probability / penalty, descending
    cache: Any  # whatever the step function keeps; tensors [n, ...]


def beam_search(
    step: Step,
    cache: Any,
    max_lengths: Any,
    *,
    beam_size: int,
    alpha: float,
    producible: Any,
    eos: int,
    length: Any,
) -> tuple[Any, Any]:
    """Searches the best-scored hypothesis: log P(y | x) / length_penalty(|y|).

    A row's search is over the sequences of at most `max_lengths` tokens, EOS included: where only
    one token is left, it has to be EOS. It stops when no alive hypothesis of any row can still
    overtake the row's best finished one.

    Args:
        step: (tokens int32 [n, 1], position int32 scalar, cache) -> (logits float32 [n, v], cache).
            At position 0 the tokens are PAD.
        cache: the first cache, tensors [n, ...]; reordered with the hypotheses.
        max_lengths: int32 [b], most tokens of each row's output.
        beam_size: m; 1 is greedy search, cut where its score is best.
        alpha: exponent of the length penalty.
        producible: bool [v], False for tokens that may never be produced (PAD, unused rows).
        eos: id of EOS.
        length: int, the largest of max_lengths.

    Returns:
        (ids int32 [b, m, t], scores float32 [b, m]), best first. Only the first hypothesis is sure
        to be what a search without the early stop would give.
    """
    batch = ops.shape(max_lengths)[0]
    state = _initial_state(cache, batch, beam_size, length)

    def unfinished(*loop: Any) -> Any:
        return _can_improve(BeamState(*loop), max_lengths, alpha)

    def advance(*loop: Any) -> tuple[Any, ...]:
        state = BeamState(*loop)
        logits, cache = step(_last_tokens(state), state.position, state.cache)
        log_probs = _next_log_probs(logits, producible, eos, state.position + 1 >= max_lengths)
        return tuple(_grow(state._replace(cache=cache), log_probs, alpha, eos))

    state = BeamState(*ops.while_loop(unfinished, advance, tuple(state)))
    return state.finished, state.finished_score


def _initial_state(cache: Any, batch: Any, beam_size: int, length: Any) -> BeamState:
    """One live hypothesis a row, the empty one; the others of the beam are impossible."""
    first = ops.cast(ops.arange(beam_size) == 0, "float32")  # [m]
    rows = ops.ones((batch, 1), "float32")
    empty = ops.zeros((batch, beam_size, length), "int32") + PAD
    return BeamState(
        position=ops.zeros((), "int32"),
        alive=empty,
        alive_log_prob=rows * (1.0 - first) * IMPOSSIBLE,
        finished=empty,
        finished_score=ops.ones((batch, beam_size), "float32") * IMPOSSIBLE,
        cache=cache,
    )


def _can_improve(state: BeamState, max_lengths: Any, alpha: float) -> Any:
    """Whether, in any row, an alive hypothesis can still overtake the best finished one."""
    # Log-probabilities only fall, and are negative: divided by the penalty of the greatest length,
    # this is the best an alive one can score.
    bound = state.alive_log_prob[:, 0] / length_penalty(max_lengths, alpha)  # [b]
    is_better = bound > state.finished_score[:, 0]
    return ops.any(ops.logical_and(is_better, state.position < max_lengths))


def _last_tokens(state: BeamState) -> Any:
    """The token before `position` in every alive hypothesis, PAD at position 0: [n, 1]."""
    at = ops.arange(ops.shape(state.alive)[2], dtype="int32") == state.position - 1  # [t]
    return ops.reshape(ops.sum(ops.where(at, state.alive, 0), axis=-1), (-1, 1))


def _next_log_probs(logits: Any, producible: Any, eos: int, must_end: Any) -> Any:
    """Log-softmax over what may be produced; only EOS in rows that must end.

    logits [n, v], must_end bool [b] -> [b, m, v].
    """
    rows = ops.shape(logits)[-1]
    logits = ops.where(producible, logits, IMPOSSIBLE)
    log_probs = logits - ops.logsumexp(logits, axis=-1, keepdims=True)
    log_probs = ops.reshape(log_probs, (ops.shape(must_end)[0], -1, rows))  # [b, m, v]
    is_eos = ops.arange(rows, dtype="int32") == eos  # [v]
    allowed = ops.logical_or(is_eos[None], ops.logical_not(must_end)[:, None])  # [b, v]
    return ops.where(allowed[:, None, :], log_probs, IMPOSSIBLE)


def _grow(state: BeamState, log_probs: Any, alpha: float, eos: int) -> BeamState:
    """Every hypothesis by one token; keeps the m best alive and the m best finished.

    Of the 2 m best continuations at most m are EOS (one for each hypothesis), so m live on.
    """
    beam_size = state.alive.shape[1]
    log_prob, parent, token = _best_continuations(state.alive_log_prob, log_probs, 2 * beam_size)
    grown = _append(_gather(state.alive, parent), token, state.position)  # [b, 2m, t]
    ended = token == eos

    alive_log_prob, keep = ops.top_k(
        ops.where(ended, 2 * IMPOSSIBLE, log_prob), beam_size
    )  # [b, m]: an ended one is worse than an impossible one
    reorder = ops.take_along_axis(parent, keep, axis=1)  # [b, m]

    score = log_prob / length_penalty(state.position + 1, alpha)
    score = ops.where(ops.logical_and(ended, log_prob > IMPOSSIBLE / 2), score, IMPOSSIBLE)
    finished_score, best = ops.top_k(
        ops.concatenate([state.finished_score, score], axis=1), beam_size
    )
    finished = _gather(ops.concatenate([state.finished, grown], axis=1), best)
    return BeamState(
        position=state.position + 1,
        alive=_gather(grown, keep),
        alive_log_prob=alive_log_prob,
        finished=finished,
        finished_score=finished_score,
        cache=reorder_cache(state.cache, reorder),
    )


def _best_continuations(alive_log_prob: Any, log_probs: Any, count: int) -> tuple[Any, Any, Any]:
    """The `count` best (hypothesis, token) pairs: log-probability, parent in [0, m), token.

    alive_log_prob [b, m], log_probs [b, m, v] -> three [b, count]. Equal ones come in the order of
    (parent, token), the order of top_k.
    """
    rows = log_probs.shape[-1]
    total = alive_log_prob[:, :, None] + log_probs  # [b, m, v]
    flat = ops.reshape(total, (-1, alive_log_prob.shape[1] * rows))  # [b, m * v]
    log_prob, index = ops.top_k(flat, count)
    return log_prob, index // rows, index % rows


def _append(hypotheses: Any, token: Any, position: Any) -> Any:
    """hypotheses [b, k, t] with token [b, k] at `position`."""
    at = ops.arange(ops.shape(hypotheses)[2], dtype="int32") == position
    return ops.where(at, token[:, :, None], hypotheses)


def _gather(hypotheses: Any, index: Any) -> Any:
    """hypotheses [b, k, t], index [b, m] into k -> [b, m, t]."""
    return ops.take_along_axis(hypotheses, index[:, :, None], axis=1)


def reorder_cache(cache: Any, parent: Any) -> Any:
    """Tensors [n, ...] whose row (i, j) becomes row (i, parent[i, j]); parent [b, m]."""
    batch, beam_size = ops.shape(parent)[0], parent.shape[1]
    first = ops.arange(batch, dtype="int32")[:, None] * beam_size  # [b, 1]
    rows = ops.reshape(first + ops.cast(parent, "int32"), (-1,))  # [n]
    return tree.map_structure(lambda x: ops.take(x, rows, axis=0), cache)


def repeat_beam(tensors: Any, beam_size: int) -> Any:
    """Tensors [b, ...] -> [n, ...], each row `beam_size` times: the memory of the source."""
    return tree.map_structure(lambda x: ops.repeat(x, beam_size, axis=0), tensors)


def make_decoder(
    model: Any, config: Decode, producible: np.ndarray, eos: int
) -> Callable[[Any], tuple[Any, Any]]:
    """The one way from source ids to target ids, for training, evaluation, translation and export.

    Args:
        model: a Transformer.
        config: a `t2t_repro.config.Decode`.
        producible: bool [pieces], False for what may never be produced. Rows of the matrix beyond
            the pieces are never produced either.
        eos: id of EOS.

    Returns:
        A function: source int32 [b, s], each row ending with EOS, then PAD -> (ids int32
        [b, m, t] ending with EOS, then PAD; scores float32 [b, m]), best first.
    """
    rows = model.embedding.matrix.shape[0]
    allowed = ops.pad(ops.convert_to_tensor(producible, "bool"), (0, rows - len(producible)))

    def decode(source: Any) -> tuple[Any, Any]:
        source_mask = padding_mask(source)
        memory = model.memory(model.encode(source, source_mask))
        lengths = ops.sum(ops.cast(source_mask[:, 0, 0], "int32"), axis=-1)  # [b], with EOS
        max_lengths = lengths + config.max_extra_length
        length = ops.max(max_lengths, initial=0)  # of an empty batch there is no maximum
        memory, beam_mask = repeat_beam((memory, source_mask), config.beam_size)
        cache = model.empty_cache(ops.shape(beam_mask)[0], length)

        def step(tokens: Any, position: Any, cache: Any) -> tuple[Any, Any]:
            logits, cache = model.decode(tokens, memory, beam_mask, cache, position)
            return logits[:, 0], cache  # [n, v]

        return beam_search(
            step,
            cache,
            max_lengths,
            beam_size=config.beam_size,
            alpha=config.alpha,
            producible=allowed,
            eos=eos,
            length=length,
        )

    return decode
