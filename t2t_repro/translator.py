"""Text in, text out: the tokenizer, the one decoder and the detokenizer in one graph.

In-training BLEU, `evaluate` and `translate` call this object, and `export` saves it.
"""

import typing
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import tensorflow as tf

from pipelines.vocabulary import EOS, PAD, Vocabulary
from t2t_repro.config import Decode
from t2t_repro.decoding import make_decoder
from t2t_repro.transformer import Transformer

Outputs = dict[str, tf.Tensor]
Translate = Callable[..., Outputs]  # called as translate(text=<string [b]>)


class Line(typing.NamedTuple):
    """The translation of one line."""

    translation: str
    score: float
    cut: bool


class Translator(tf.Module):
    """A model with its vocabulary and decode settings; axes b batch, s source, t target."""

    def __init__(self, model: Transformer, vocabulary: Vocabulary, config: Decode):
        super().__init__(name="translator")
        # For SavedModel to store; the Keras model itself would want a signature of its own.
        self.weights = [weight.value for weight in model.trainable_variables]
        self.vocabulary = vocabulary
        self.tokenizer = vocabulary.tokenizer  # a resource of the graph; saved with the module
        self.max_source_length = config.max_source_length
        self.decode = make_decoder(model, config, vocabulary.producible, EOS)

    def __call__(self, text: tf.Tensor) -> Outputs:
        """`translate`, from an object that holds the weights alive."""
        return self.translate(text)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def translate(self, text: tf.Tensor) -> Outputs:
        """Strings [b] -> their best translations.

        Returns:
            `translation` string [b], `score` float32 [b] (log-probability over length penalty), and
            `cut` bool [b]: the source had more than `max_source_length` pieces and lost its end.
            Nothing but white space translates to the empty string, with score 0.
        """
        pieces = self.vocabulary.encode_graph(text)
        source, cut = self._cut(pieces)
        ids, scores = self.decode(source)
        empty = pieces.row_lengths() <= 1  # EOS alone
        translation = self.vocabulary.decode_graph(ids[:, 0])
        return {
            "translation": tf.where(empty, "", translation),
            "score": tf.where(empty, 0.0, scores[:, 0]),
            "cut": cut,
        }

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")])
    def translate_ids(self, ids: tf.Tensor) -> Outputs:
        """Source ids [b, s], each row ending with EOS, then PAD -> `ids` [b, t], `score` [b]."""
        target, scores = self.decode(ids)
        return {"ids": target[:, 0], "score": scores[:, 0]}

    def _cut(self, pieces: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Ragged [b, (s)] -> (padded int32 [b, s], which rows were cut bool [b])."""
        cut = pieces.row_lengths() > self.max_source_length
        kept = pieces[:, : self.max_source_length].to_tensor(PAD)  # [b, s]
        last = tf.range(tf.shape(kept)[1]) == self.max_source_length - 1
        return tf.where(cut[:, None] & last, EOS, kept), cut


_BATCH_LINES = 64
# Source bytes of a batch, padding counted. A piece is a byte or more but where NFKC spells out a
# compatibility character, so that this bounds the cache of very long lines.
_BATCH_BYTES = 16_384


def translate_lines(
    translate: Translate, lines: Iterable[str], window: int = 4096
) -> Iterator[Line]:
    """One result a line, in order, in constant memory.

    Args:
        translate: A `Translator`, or the `serving_default` signature of an export.
        lines: Text of any length.
        window: Lines read before the first is answered. They are sorted by length before they are
            cut into batches, so that a batch holds little padding.
    """
    iterator = iter(lines)
    while chunk := list(islice(iterator, window)):
        results: dict[int, Line] = {}
        for batch in _batches_by_length(chunk):
            outputs = translate(text=tf.constant([chunk[index] for index in batch]))
            columns = [outputs[name].numpy() for name in Line._fields]
            for index, text, score, cut in zip(batch, *columns, strict=True):
                results[index] = Line(text.decode(), float(score), bool(cut))
        yield from (results[index] for index in range(len(chunk)))


def _batches_by_length(lines: list[str]) -> Iterator[list[int]]:
    """Indices of the lines, longest first, so that memory is at its peak at once."""
    lengths = [len(line.encode(errors="replace")) for line in lines]
    order = sorted(range(len(lines)), key=lambda index: -lengths[index])
    while order:
        count = min(_BATCH_LINES, max(1, _BATCH_BYTES // max(1, lengths[order[0]])))
        yield order[:count]
        order = order[count:]
