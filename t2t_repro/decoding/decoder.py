"""The decoder: a Transformer and a search, as one function from source ids to target ids.

Axes: b batch, m beam, s source positions, t target positions, v rows of the shared matrix.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops

from t2t_repro.config import Decode
from t2t_repro.decoding.beam_search import (
    IMPOSSIBLE,
    Lengths,
    Step,
    beam_search,
    score,
)
from t2t_repro.decoding.sampling import Sampling, sample
from t2t_repro.model.attention import PAD, padding_mask
from t2t_repro.model.fast_ops import pad_to_blocks


def make_decoder(
    model: Any,
    config: Decode,
    producible: np.ndarray,
    eos: int,
    *,
    n_best: int = 1,
    forced_length: int | None = None,
    others: Sequence[Any] = (),
) -> Callable[..., tuple[Any, Any]]:
    """Make the function from source ids to target ids that every part of the project uses.

    In-training BLEU, evaluation, translation and export all receive this one decoder.

    Args:
        model: a Transformer.
        config: a `t2t_repro.config.Decode`.
        producible: bool [pieces], False for pieces that may never be produced. Rows of the matrix
            beyond the pieces are never produced either.
        eos: id of EOS.
        n_best: hypotheses to return for each sentence, at most `config.beam_size`.
        forced_length: length of every output, EOS included, whatever the model predicts; used to
            measure speed. None: at most input length + `config.max_extra_length`, as in the paper.
        others: Transformers of the same pieces, whose probabilities are averaged with the model's.

    Returns:
        A function: source int32 [b, s], each row ending with EOS, then PAD -> (ids int32
        [b, n_best, t] ending with EOS, then PAD; scores float32 [b, n_best]), best first. Its
        second argument is the `prefix` of `beam_search`, None if left out.

    Raises:
        ValueError: n_best is not between 1 and the beam size.
    """
    if not 1 <= n_best <= config.beam_size:
        raise ValueError(f"n_best: wanted 1 to the beam size {config.beam_size}, got {n_best}")

    search = functools.partial(
        beam_search,
        beam_size=config.beam_size,
        alpha=config.alpha,
        length_reward=config.length_reward,
        eos=eos,
        n_best=n_best,
    )

    def decode(source: Any, prefix: Any = None) -> tuple[Any, Any]:
        source_mask = padding_mask(source)
        lengths = _lengths(source, source_mask, config, forced_length)
        if prefix is not None:
            lengths = _with_room(lengths, prefix)
        step, cache = _start(
            (model, *others), source, source_mask, producible, config.beam_size, lengths.room
        )
        return search(step, cache, lengths, prefix=prefix)

    return decode


def make_sampler(
    model: Any,
    config: Decode,
    producible: np.ndarray,
    eos: int,
    sampling: Sampling,
    others: Sequence[Any] = (),
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Make a function from source ids to outputs that are drawn, see `sample`.

    Args:
        model: as for `make_decoder`.
        config: as for `make_decoder`; the beam size has no effect.
        producible: as for `make_decoder`.
        eos: id of EOS.
        sampling: what is drawn from.
        others: as for `make_decoder`.

    Returns:
        A function: (source int32 [b, s], prefix int32 [b, p], draws float32 [b, positions, m]) ->
        (ids int32 [b, m, t], scores float32 [b, m]).
    """

    def decode(source: Any, prefix: Any, draws: Any) -> tuple[Any, Any]:
        source_mask = padding_mask(source)
        lengths = _with_room(_lengths(source, source_mask, config, None), prefix)
        step, cache = _start(
            (model, *others), source, source_mask, producible, draws.shape[2], lengths.room
        )
        return sample(
            step,
            cache,
            lengths,
            draws,
            prefix,
            sampling=sampling,
            alpha=config.alpha,
            length_reward=config.length_reward,
            eos=eos,
        )

    return decode


def _start(
    models: Sequence[Any],
    source: Any,
    source_mask: Any,
    producible: np.ndarray,
    beam_size: int,
    room: Any,
) -> tuple[Step, Any]:
    """Encode the source and return the step function of the search over it, and its first cache."""
    # Arrays cannot grow where shapes are fixed: in JAX, and when XLA compiles.
    grows = not isinstance(room, int)
    keys = room * (0 if grows else beam_size)
    bias = _bias(producible)
    steps = [_step_of(model, source, source_mask, bias, grows) for model in models]
    caches = [model.empty_cache(ops.shape(source)[0], keys) for model in models]
    return (steps[0], caches[0]) if len(models) == 1 else (_mean(steps), caches)


def _step_of(model: Any, source: Any, source_mask: Any, bias: np.ndarray, grows: bool) -> Step:
    """Encode the source and return the step function of the search with one model."""
    scope = model.weights_read_once()
    with scope:
        memory = model.memory(model.encode(source, source_mask))
        logits_of = model.embedding.output_map(bias)

    def step(tokens: Any, slots: Any, position: Any, cache: Any) -> tuple[Any, Any]:
        with scope:
            x, cache = model.decode_step(tokens, memory, source_mask, slots, cache, position, grows)
            logits = logits_of(x)  # [b * m, v]
        return ops.reshape(logits, (-1, tokens.shape[1], logits.shape[-1])), cache

    return step


def _mean(steps: Sequence[Step]) -> Step:
    """Return a step whose probabilities are the arithmetic mean of those of several models."""

    def step(tokens: Any, slots: Any, position: Any, caches: Any) -> tuple[Any, Any]:
        own = zip(steps, caches, strict=True)
        outputs = [one(tokens, slots, position, cache) for one, cache in own]
        log_probs = ops.stack([ops.log_softmax(logits, axis=-1) for logits, _ in outputs])
        mean = ops.logsumexp(log_probs, axis=0) - math.log(len(steps))
        return mean, [cache for _, cache in outputs]

    return step


def _lengths(source: Any, source_mask: Any, config: Decode, forced: int | None) -> Lengths:
    """Return the outputs' expected lengths, and their limits: the paper's, or one for all."""
    own = ops.sum(ops.cast(source_mask[:, 0, 0], "int32"), axis=-1)  # [b], with EOS
    expected, longest = _expected(own, config), ops.shape(source)[1]
    if forced:
        return Lengths(expected, own * 0 + forced, own * 0 + forced, longest * 0 + forced)
    more = config.max_extra_length
    return Lengths(expected, own * 0, own + more, longest + more)


def _expected(source_length: Any, config: Decode) -> Any:
    """Return the expected lengths of outputs: int32 [b] -> float32 [b]."""
    return config.expected_ratio * ops.cast(source_length, "float32")


def _with_room(lengths: Lengths, prefix: Any) -> Lengths:
    """Return the limits raised so that each prefix [b, p] fits, with EOS."""
    own = ops.sum(ops.cast(prefix != PAD, "int32"), axis=-1) + 1  # [b]
    room = lengths.room + ops.shape(prefix)[1]
    return lengths._replace(most=ops.maximum(lengths.most, own), room=room)


def _bias(producible: np.ndarray) -> np.ndarray:
    """Make the bias of the logits, IMPOSSIBLE where not producible."""
    return pad_to_blocks(np.where(producible, 0.0, IMPOSSIBLE), IMPOSSIBLE)


def make_scorer(
    model: Any, config: Decode, producible: np.ndarray
) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Make a function that scores given pairs as the search would.

    Args:
        model: a Transformer.
        config: the length penalty and the length reward.
        producible: bool [pieces]; probability is distributed over these pieces, as in the search.

    Returns:
        A function: source int32 [b, s], target int32 [b, t], rows ending with EOS, then PAD ->
        (the log-probability of each token float32 [b, t], 0 for PAD; score float32 [b], see
        `score`). A token that may not be produced has IMPOSSIBLE or below.
    """

    def scores(source: Any, target: Any) -> tuple[Any, Any]:
        pieces = len(producible)
        logits = ops.where(producible, model(source, target)[:, :, :pieces], IMPOSSIBLE)
        tokens = ops.expand_dims(target, -1)  # [b, t, 1]
        own = ops.take_along_axis(logits, ops.minimum(tokens, pieces - 1), axis=-1)[:, :, 0]
        own = ops.where(target < pieces, own, IMPOSSIBLE)
        is_token = ops.cast(target != PAD, "float32")
        log_probs = (own - ops.logsumexp(logits, axis=-1)) * is_token  # [b, t]
        length, source_length = (
            ops.sum(ops.cast(ids != PAD, "int32"), axis=-1) for ids in (target, source)
        )
        total, expected = ops.sum(log_probs, axis=-1), _expected(source_length, config)
        return log_probs, score(total, length, expected, config.alpha, config.length_reward)

    return scores
