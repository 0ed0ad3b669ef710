"""The decoder: a Transformer and a search, as one function from source ids to target ids.

Axes: b batch, m beam, s source positions, t target positions, v rows of the shared matrix.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from t2t_repro.config import Decode
from t2t_repro.decoding.beam_search import (
    IMPOSSIBLE,
    Lengths,
    Step,
    beam_search,
    length_penalty,
)
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
) -> Callable[[Any], tuple[Any, Any]]:
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

    Returns:
        A function: source int32 [b, s], each row ending with EOS, then PAD -> (ids int32
        [b, n_best, t] ending with EOS, then PAD; scores float32 [b, n_best]), best first.

    Raises:
        ValueError: n_best is not between 1 and the beam size.
    """
    if not 1 <= n_best <= config.beam_size:
        raise ValueError(f"n_best: wanted 1 to the beam size {config.beam_size}, got {n_best}")

    search = functools.partial(
        beam_search, beam_size=config.beam_size, alpha=config.alpha, eos=eos, n_best=n_best
    )

    def decode(source: Any) -> tuple[Any, Any]:
        source_mask = padding_mask(source)
        lengths = _lengths(source, source_mask, config.max_extra_length, forced_length)
        # Arrays cannot grow where shapes are fixed: in JAX, and when XLA compiles.
        grows = not isinstance(lengths.room, int)
        keys = lengths.room * (0 if grows else config.beam_size)
        with model.weights_read_once():
            step = _step_of(model, source, source_mask, _bias(producible), grows)
            return search(step, model.empty_cache(ops.shape(source)[0], keys), lengths)

    return decode


def _step_of(model: Any, source: Any, source_mask: Any, bias: np.ndarray, grows: bool) -> Step:
    """Encode the source and return the step function of the search over it."""
    memory = model.memory(model.encode(source, source_mask))
    logits_of = model.embedding.output_map(bias)

    def step(tokens: Any, slots: Any, position: Any, cache: Any) -> tuple[Any, Any]:
        x, cache = model.decode_step(tokens, memory, source_mask, slots, cache, position, grows)
        logits = logits_of(x)  # [b * m, v]
        return ops.reshape(logits, (-1, tokens.shape[1], logits.shape[-1])), cache

    return step


def _lengths(source: Any, source_mask: Any, max_extra: int, forced: int | None) -> Lengths:
    """Return the limits of the outputs' lengths: the paper's, or one length for all."""
    own = ops.sum(ops.cast(source_mask[:, 0, 0], "int32"), axis=-1)  # [b], with EOS
    if forced:
        return Lengths(own * 0 + forced, own * 0 + forced, ops.shape(source)[1] * 0 + forced)
    return Lengths(own * 0, own + max_extra, ops.shape(source)[1] + max_extra)


def _bias(producible: np.ndarray) -> np.ndarray:
    """Make the bias of the logits, IMPOSSIBLE where not producible."""
    return pad_to_blocks(np.where(producible, 0.0, IMPOSSIBLE), IMPOSSIBLE)


def make_scorer(
    model: Any, alpha: float, producible: np.ndarray
) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Make a function that scores given pairs as the search would.

    Args:
        model: a Transformer.
        alpha: exponent of the length penalty.
        producible: bool [pieces]; probability is distributed over these pieces, as in the search.

    Returns:
        A function: source int32 [b, s], target int32 [b, t], rows ending with EOS, then PAD ->
        (log P(y | x) float32 [b], score float32 [b]: log P over the length penalty). A target with
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
