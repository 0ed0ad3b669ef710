"""Translation by several models, from given beginnings, or by sampling.

An export has no inputs for these, so a `GuidedTranslator` is for runs alone.

Axes: b batch, m hypotheses, p prefix positions, s source positions.
"""

import typing
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat, zip_longest

import numpy as np
import tensorflow as tf

from pipelines.batching import padded
from pipelines.errors import BadInput
from pipelines.vocabulary import EOS, PAD, Vocabulary, fold
from t2t_repro.config import Decode
from t2t_repro.decoding.decoder import make_decoder, make_sampler
from t2t_repro.decoding.lines import Line, Lines
from t2t_repro.decoding.sampling import Sampling
from t2t_repro.decoding.translator import Outputs, Postprocess, Translator, beams
from t2t_repro.model.transformer import Transformer

_TEXT = tf.TensorSpec([None], tf.string)
_IDS = tf.TensorSpec([None, None], tf.int32)


class SeededSampling(typing.NamedTuple):
    """The tokens that are drawn from, and the seed of the draws."""

    sampling: Sampling
    seed: int


class GuidedTranslator(Translator):
    """A `Translator` whose search is told more than the text.

    Args:
        models: One model, or several with one vocabulary; the search is over the arithmetic mean
            of their probabilities, token by token.
        vocabulary: Their vocabulary.
        config: The decode settings.
        postprocess: As for `Translator`.
        n_best: Translations of each line.
        sampled: Draws the translations; None searches for them.
    """

    def __init__(
        self,
        models: Sequence[Transformer],
        vocabulary: Vocabulary,
        config: Decode,
        postprocess: Postprocess | None,
        n_best: int = 1,
        sampled: SeededSampling | None = None,
    ):
        model, *others = models
        super().__init__(model, vocabulary, config, postprocess=postprocess)
        self._seed = sampled.seed if sampled else None
        # Samples of a line are rows of the batch: as hypotheses of one row, each of them would also
        # look at the keys of all others, at a cost that grows with the square of their number.
        self._samples = n_best if sampled else 1
        # The greatest number of draws that a source of legal length needs.
        self._positions = config.max_source_length + config.max_extra_length
        parts = model, config, vocabulary.producible, EOS
        if sampled:
            self._decode = make_sampler(*parts, sampled.sampling, others)
        else:
            self._decode = make_decoder(*parts, n_best=n_best, others=others)
        draws = tf.TensorSpec([None, None, 1], tf.float32)
        signature = [_TEXT, _IDS, draws] if sampled else [_TEXT, _IDS]
        self._guided = tf.function(self._translations, input_signature=signature, autograph=False)

    def guided_lines(self, prefixes: Iterable[str] | None = None) -> Lines:
        """Return a function from lines to the translations of each.

        They are best first, or, if they are sampled, in the order in which they were drawn.

        Args:
            prefixes: What the translations of each line begin with; empty for no such beginning.

        Raises:
            BadInput: The function reads a prefix that is longer than a source may be, or there is
                not one prefix for each line.
        """

        def rows(lines: Iterable[str], window: int) -> Iterator[list[Line]]:
            pairs: Iterable[tuple[str, list[int]]]
            if prefixes is None:
                pairs = zip(lines, repeat([]), strict=False)
            else:
                pairs = _paired(lines, self._prefix_ids(prefixes))
            requests = (
                (line, ids, (number, sample))
                for number, (line, ids) in enumerate(pairs, start=1)
                for sample in range(self._samples)
            )
            found = beams(self._call, requests, max(window, self._samples))
            while own := list(islice(found, self._samples)):
                yield [translation for row in own for translation in row]

        return rows

    def _call(
        self, lines: list[str], prefixes: list[list[int]], places: list[tuple[int, int]]
    ) -> Outputs:
        inputs = tf.constant(list(map(fold, lines))), tf.constant(padded(prefixes))
        if self._seed is None:
            return self._guided(*inputs)
        return self._guided(*inputs, tf.stack([self._draws(*place) for place in places]))

    def _draws(self, line: int, sample: int) -> np.ndarray:
        """Return the draws of a sample, which depend on the seed and its place alone: [., 1]."""
        generator = np.random.default_rng([self._seed or 0, line, sample])
        return generator.random((self._positions, 1), np.float32)

    def _translations(
        self, text: tf.Tensor, prefix: tf.Tensor, draws: tf.Tensor | None = None
    ) -> Outputs:
        source, empty, cut = self._encode(text, self.max_source_length)
        empty &= tf.reduce_all(prefix == PAD, axis=1)
        given = (source, prefix) if draws is None else (source, prefix, draws)
        ids, scores = self._decode(*given)
        return self._beam(text, empty, ids, scores) | {"cut": cut}

    def _prefix_ids(self, prefixes: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of each prefix, without EOS."""
        for number, prefix in enumerate(prefixes, start=1):
            (ids,) = self.vocabulary.encode([prefix])
            if len(ids) > self.max_source_length:
                raise BadInput(
                    f"--prefixes, line {number}: {len(ids)} pieces; wanted at most "
                    f"{self.max_source_length}: shorten it, or raise --max_source_length"
                )
            yield ids[:-1]


def _paired(lines: Iterable[str], prefixes: Iterable[list[int]]) -> Iterator[tuple[str, list[int]]]:
    """Yield each line with its prefix; raise BadInput if there is not one for each."""
    for line, prefix in zip_longest(lines, prefixes):
        if line is None or prefix is None:
            fewer, more = ("the input", "it") if line is None else ("it", "the input")
            raise BadInput(
                f"--prefixes: {fewer} has fewer lines than {more}; wanted one for each line of the "
                "input, empty where the translation is free"
            )
        yield line, prefix
