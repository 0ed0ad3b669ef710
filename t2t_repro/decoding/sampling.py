"""Sampling from the likeliest tokens (Fan et al. 2018), over any step function.

Back-translation makes training sources this way (Edunov et al. 2018): beam search finds texts that
are too alike.

Axes: b batch, m samples, k classes to draw from, t target positions, v rows of the shared matrix.
"""

import typing
from typing import Any

from keras import ops

from t2t_repro.decoding.beam_search import (
    Lengths,
    Step,
    prefix_token,
    score,
    token_log_prob,
)
from t2t_repro.model.attention import PAD
from t2t_repro.model.fast_ops import top_k

# Draws are below 1; rounding must not make one the whole sum, beyond which there is no class.
_BELOW_ONE = 1 - 2.0**-20


class Sampling(typing.NamedTuple):
    """The tokens that are drawn from, and how evenly."""

    topk: int  # so many of the likeliest tokens; 0: all
    temperature: float  # the logits are divided by it


def sample(
    step: Step,
    cache: Any,
    lengths: Lengths,
    draws: Any,
    prefix: Any,
    *,
    sampling: Sampling,
    alpha: float,
    length_reward: float,
    eos: int,
) -> tuple[Any, Any]:
    """Draw m outputs for each sentence, token by token.

    The draws are an argument, so that the outputs of a sentence are a function of its own draws,
    whatever else is in the batch.

    Args:
        step: as for `beam_search`; each hypothesis is one sample.
        cache: the cache before the first step.
        lengths: as for `beam_search`; `least` has no effect.
        draws: float32 [b, positions, m], uniform in [0, 1); the last is used again if the outputs
            are longer.
        prefix: int32 [b, p], tokens with which the outputs begin, then PAD.
        sampling: the tokens that are drawn from.
        alpha: as for `beam_search`.
        length_reward: as for `beam_search`.
        eos: id of EOS.

    Returns:
        (ids int32 [b, m, t], scores float32 [b, m]) in the order of the draws. A score is what the
        search would give, whatever the temperature.
    """
    samples = draws.shape[2]
    positions = ops.arange(lengths.room, dtype="int32")  # [t]
    own = ops.arange(samples, dtype="int32")[None, :, None]  # a sample's ancestors are itself

    def unfinished(position: Any, ids: Any, log_prob: Any, cache: Any) -> Any:
        is_alive = ops.logical_not(ops.any(ids == eos, axis=-1))  # [b, m]
        return ops.any(is_alive)  # ends: the last token that fits is EOS

    def advance(position: Any, ids: Any, log_prob: Any, cache: Any) -> tuple[Any, ...]:
        last = ops.sum(ops.where(positions == position - 1, ids, 0), axis=-1)  # [b, m]
        slots = ops.where(positions <= position, own, -1) + ops.zeros_like(ids)  # [b, m, t]
        logits, cache = step(last, slots, position, cache)
        place = ops.minimum(position, ops.shape(draws)[1] - 1)
        token = _drawn(logits, ops.take(draws, place, axis=1), sampling)
        token = ops.where((position + 1 >= lengths.most)[:, None], eos, token)
        wanted = prefix_token(prefix, position)[:, None]  # [b, 1]
        token = ops.where(wanted == PAD, token, wanted)
        ended = ops.any(ids == eos, axis=-1)
        log_prob += ops.where(ended, 0.0, token_log_prob(logits, token))
        token = ops.where(ended, PAD, token)[:, :, None]
        return position + 1, ops.where(positions == position, token, ids), log_prob, cache

    ids = ops.zeros((ops.shape(lengths.most)[0], samples, lengths.room), "int32") + PAD
    start = ops.zeros((), "int32"), ids, ops.zeros_like(draws[:, 0]), cache
    _, ids, log_prob, _ = ops.while_loop(unfinished, advance, start)
    length = ops.sum(ops.cast(ids != PAD, "int32"), axis=-1)
    return ids, score(log_prob, length, lengths.expected[:, None], alpha, length_reward)


def _drawn(logits: Any, draws: Any, sampling: Sampling) -> Any:
    """Draw tokens: logits [b, m, v], draws [b, m] in [0, 1) -> int32 [b, m]."""
    size = logits.shape[-1]
    count = min(sampling.topk, size) or size
    # Sorted or not, the first class whose share of the sum so far is above the draw is drawn.
    kept, token = top_k(logits, count) if count < size else (logits, None)
    highest = ops.max(kept, axis=-1, keepdims=True)
    weights = ops.exp((kept - highest) / sampling.temperature)
    cumulative = ops.cumsum(weights, axis=-1)  # [b, m, k]
    threshold = draws[:, :, None] * cumulative[:, :, -1:] * _BELOW_ONE
    place = ops.sum(ops.cast(cumulative <= threshold, "int32"), axis=-1)  # [b, m]
    if token is None:
        return place
    return ops.take_along_axis(token, place[:, :, None], axis=-1)[:, :, 0]
