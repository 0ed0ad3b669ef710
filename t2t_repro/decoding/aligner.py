"""Word alignments of pairs of texts, from the attention of the decoder to the source.

The weights of one layer are averaged over its heads: layer 5, as in the paper's Figures 3 to 5, or
the last layer of a smaller model. Of the paper's 6 layers it is also the one whose weights align
best (Garg et al. 2019, arXiv:1909.02074).
"""

import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from pipelines.batching import padded
from pipelines.vocabulary import EOS, Vocabulary
from t2t_repro.model.attention import padding_mask
from t2t_repro.model.transformer import Transformer, shift_right

_LAYER = 5  # counted from 1

_BATCH_WEIGHTS = 1 << 18  # of each head, for the pairs of a batch: 8 MB with 8 heads

Links = list[tuple[int, int]]  # (place of the source word, place of the target word), from 0

_IDS = tf.TensorSpec([None, None], tf.int32)


class Aligner:
    """Aligns the words of pairs, which white space separates.

    Args:
        model: The model.
        vocabulary: Its vocabulary.
        longest: The most pieces of a side, EOS included; the words beyond have no links.
    """

    def __init__(self, model: Transformer, vocabulary: Vocabulary, longest: int):
        self._vocabulary, self._longest = vocabulary, longest
        layer = min(_LAYER, len(model.decoder)) - 1

        def cross(source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
            mask = padding_mask(source)
            memory = model.memory(model.encode(source, mask))
            previous = shift_right(target)
            _, weights = model.decode(previous, memory, mask, return_attention_scores=True)
            return tf.reduce_mean(weights[layer][1], axis=1)  # [b, t, s]

        self._cross = tf.function(cross, input_signature=[_IDS, _IDS], autograph=False)

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[Links]:
        """Link each target word with the source word that its pieces look at most.

        Args:
            pairs: (source, target) of any number.
        """
        words = [(self._words(source), self._words(target)) for source, target in pairs]
        lengths = [max(len(ids) for ids, _ in pair) for pair in words]
        order = sorted(range(len(pairs)), key=lambda index: -lengths[index])
        links: list[Links] = [[]] * len(pairs)
        while order:
            count = max(1, _BATCH_WEIGHTS // lengths[order[0]] ** 2)
            batch, order = order[:count], order[count:]
            sides = zip(*(words[index] for index in batch), strict=True)
            weights = self._cross(*(padded([ids for ids, _ in side]) for side in sides))
            for index, own in zip(batch, weights.numpy(), strict=True):
                (_, source), (_, target) = words[index]
                links[index] = _links(own, source, target)
        return links

    def _words(self, text: str) -> tuple[list[int], np.ndarray]:
        """Return a text's ids, EOS at the end, and the place of each piece's word without EOS."""
        words = re.findall(r"\S+", text, re.ASCII)  # a no-break space is within a word
        rows = [ids[:-1] for ids in self._vocabulary.encode(words)]
        place = np.repeat(np.arange(len(rows)), [len(ids) for ids in rows])[: self._longest - 1]
        ids = [i for ids in rows for i in ids][: self._longest - 1]
        return [*ids, EOS], place


def _links(weights: np.ndarray, source: np.ndarray, target: np.ndarray) -> Links:
    """Return the links of a pair.

    Args:
        weights: [t, s], from the prediction of each target piece to each source piece.
        source: The place of each source piece's word, int [pieces].
        target: The same of the target.
    """
    if not len(source) or not len(target):
        return []
    of_pieces = weights[: len(target), : len(source)]
    of_words = np.zeros((target[-1] + 1, source[-1] + 1))
    np.add.at(of_words, (target[:, None], source[None]), of_pieces)
    return [(int(of_words[place].argmax()), int(place)) for place in np.unique(target)]
