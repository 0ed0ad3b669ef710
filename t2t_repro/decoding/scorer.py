"""The log-probability of given pairs: tokenizer and `make_scorer`, over a stream of pairs."""

import math
import typing
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
import tensorflow as tf

from pipelines.batching import padded
from pipelines.vocabulary import EOS, Vocabulary
from t2t_repro.config import Decode
from t2t_repro.decoding.decoder import make_scorer
from t2t_repro.model.transformer import Transformer

_BATCH_ROWS = 64
# Target pieces of a batch, with padding. Their logits take 84 MB with 40,960 pieces, and softmax
# several times that.
_BATCH_PIECES = 512

_IDS = tf.TensorSpec([None, None], tf.int32)

# Calls `make_scorer`'s function: (source [b, s], target [b, t]) -> (log-probs [b, t], scores [b]).
Score = Callable[[np.ndarray, np.ndarray], tuple[tf.Tensor, tf.Tensor]]


class ScoredPair(typing.NamedTuple):
    """The probability of one target, given its source."""

    log_prob: float  # natural logarithm; -inf if the target is too long
    score: float  # what the search would give
    ids: list[int]  # of the target, with EOS
    log_probs: list[float]  # of each id; empty if the target is too long
    cut: bool  # whether the source was too long and lost its end
    too_long: bool  # whether the target is longer than any output may be


class Scorer:
    """Scores pairs of texts with one model.

    Args:
        model: The model.
        vocabulary: Its vocabulary.
        config: The decode settings: length penalty, length reward, and the greatest lengths.
    """

    def __init__(self, model: Transformer, vocabulary: Vocabulary, config: Decode):
        self._vocabulary = vocabulary
        self._longest = config.max_source_length
        self._longest_target = config.max_source_length + config.max_extra_length
        score = make_scorer(model, config, vocabulary.producible)
        self._score: Score = tf.function(score, input_signature=[_IDS, _IDS], autograph=False)

    def score(self, pairs: Iterable[tuple[str, str]], window: int = 4096) -> Iterator[ScoredPair]:
        """Yield the probability of each target, in order, in constant memory.

        A source longer than `max_source_length` pieces loses its end, as in translation. A target
        longer than the search's greatest output has no probability, so it is not computed.

        Args:
            pairs: (source, target) texts of any number.
            window: Pairs read before the first result. They are sorted by length before they are
                cut into batches, so that a batch holds little padding.
        """
        iterator = iter(pairs)
        while chunk := list(islice(iterator, window)):
            sources, targets = map(self._vocabulary.encode, zip(*chunk, strict=True))
            yield from self._scored(sources, targets)

    def _scored(self, sources: list[list[int]], targets: list[list[int]]) -> Iterator[ScoredPair]:
        cut = [len(ids) > self._longest for ids in sources]
        sources = [_shortened(ids, self._longest) for ids in sources]
        kept = [i for i, ids in enumerate(targets) if len(ids) <= self._longest_target]
        results: dict[int, tuple[list[float], float]] = {}
        for batch in _batches(kept, sources, targets):
            rows = [padded([side[i] for i in batch]) for side in (sources, targets)]
            log_probs, scores = (values.numpy().tolist() for values in self._score(*rows))
            for i, values, score in zip(batch, log_probs, scores, strict=True):
                results[i] = values[: len(targets[i])], score
        for i, ids in enumerate(targets):
            log_probs, score = results.get(i, ([], -math.inf))
            log_prob = math.fsum(log_probs) if i in results else -math.inf
            yield ScoredPair(log_prob, score, ids, log_probs, cut[i], i not in results)


def _shortened(ids: list[int], longest: int) -> list[int]:
    return [*ids[: longest - 1], EOS] if len(ids) > longest else ids


def _batches(
    indices: list[int], sources: list[list[int]], targets: list[list[int]]
) -> Iterator[list[int]]:
    """Yield the indices in batches, longest targets first: they need the most memory."""

    def longest(index: int) -> int:
        return max(len(sources[index]) // 4, len(targets[index]))  # a source has no logits

    order = sorted(indices, key=longest, reverse=True)
    while order:
        count = min(_BATCH_ROWS, max(1, _BATCH_PIECES // longest(order[0])))
        yield order[:count]
        order = order[count:]
