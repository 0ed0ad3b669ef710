"""Translation from text to text: tokenizer, decoder and detokenizer in one graph.

In-training BLEU, `evaluate` and `translate` call the `Translator`, and `export` saves it.

Axes: b batch, n strings, s source positions, t target positions, m beam, h heads.
n is also the number of layers, in attention weights.
"""

import typing
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import keras
import tensorflow as tf

from pipelines.vocabulary import EOS, PAD, Vocabulary, fold
from t2t_repro.config import Decode
from t2t_repro.decoding.beam_search import IMPOSSIBLE
from t2t_repro.decoding.decoder import make_decoder
from t2t_repro.decoding.lines import Line, Lines
from t2t_repro.model.transformer import Transformer

Outputs = dict[str, tf.Tensor]
Translate = Callable[..., Outputs]  # called as translate(text=<string [b]>)
Postprocess = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # (source, target) -> output, string [n]

# Limit on a source whose attention is drawn, EOS included: a page of the base model is then 12 MB.
MOST_DRAWN_PIECES = 200

_TEXT = tf.TensorSpec([None], tf.string, name="text")
_ONE_TEXT = tf.TensorSpec([], tf.string, name="text")
_IDS = tf.TensorSpec([None, None], tf.int32, name="ids")


class IdsTranslator(tf.Module):
    """A model with its decode settings, from ids to ids, in TensorFlow's own operations alone.

    Args:
        model: The model. Its weights are kept alive, and stored by SavedModel.
        vocabulary: The vocabulary, which knows the pieces that may be produced.
        config: The decode settings.
        weights: The type that the weights are kept in. "bfloat16" copies them at half the size;
            each call widens them, and the graph computes in the model's own precision.
    """

    def __init__(
        self, model: Transformer, vocabulary: Vocabulary, config: Decode, weights: str = "float32"
    ):
        super().__init__(name="translator")
        # The Keras model itself would want a signature of its own in a SavedModel.
        self.weights = [variable.value for variable in model.weights]
        if weights != "float32":
            self.weights = [tf.Variable(tf.cast(weight, weights)) for weight in self.weights]
        self.decode = self._decoder(model, vocabulary, config)

    @tf.function(input_signature=[_IDS], autograph=False)
    def translate_ids(self, ids: tf.Tensor) -> Outputs:
        """Decode ids [b, s], each row ending with EOS, then PAD -> `ids` [b, t], `score` [b]."""
        target, scores = self.decode(ids)
        return {"ids": target[:, 0], "score": scores[:, 0]}

    def _decoder(
        self, model: Transformer, vocabulary: Vocabulary, config: Decode, n_best: int = 1
    ) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        """Call `make_decoder` with the weights held here: one function for several signatures."""
        search = make_decoder(model, config, vocabulary.producible, EOS, n_best=n_best)

        @tf.function(input_signature=[_IDS], autograph=False)
        def decode(source: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with self._own_weights(model):
                return search(source)

        return decode

    def _own_weights(self, model: Transformer) -> keras.StatelessScope:
        """Make the scope in which the model computes with the weights held here."""
        wide = [tf.cast(weight, tf.float32) for weight in self.weights]
        return keras.StatelessScope(state_mapping=zip(model.weights, wide, strict=True))


class Translator(IdsTranslator):
    """An `IdsTranslator` with the tokenizer in its graph, from text to text.

    Args:
        model: As for `IdsTranslator`.
        vocabulary: As for `IdsTranslator`.
        config: As for `IdsTranslator`.
        weights: As for `IdsTranslator`.
        postprocess: Makes the output from the source and the target, in TensorFlow's own
            operations; None outputs the target itself, which is the text that is scored.
    """

    def __init__(
        self,
        model: Transformer,
        vocabulary: Vocabulary,
        config: Decode,
        weights: str = "float32",
        postprocess: Postprocess | None = None,
    ):
        super().__init__(model, vocabulary, config, weights)
        self.vocabulary = vocabulary
        self.postprocess = postprocess
        self.tokenizer = vocabulary.tokenizer  # a resource of the graph; saved with the module
        self.max_source_length = config.max_source_length
        self.decode_beam = self._decoder(model, vocabulary, config, config.beam_size)
        # Not a method: SavedModel would trace it for models that have no such weights, too.
        self.attention = self._attention(model) if model.has_attention_weights else None

    def __call__(self, text: tf.Tensor) -> Outputs:
        """Call `translate`; the object keeps the weights alive, which its method does not."""
        return self.translate(text)

    @tf.function(input_signature=[_TEXT], autograph=False)
    def translate(self, text: tf.Tensor) -> Outputs:
        """Translate strings [b].

        Returns:
            `translation` string [b], `score` float32 [b] (log-probability and length reward over
            length penalty), and `cut` bool [b]: the source had more than `max_source_length` pieces
            and lost its end.
            A text of white space alone translates to the empty string, with score 0.
        """
        source, empty, cut = self._encode(text, self.max_source_length)
        ids, scores = self.decode(source)
        return {
            "translation": self._output(text, empty, ids[:, 0]),
            "score": tf.where(empty, 0.0, scores[:, 0]),
            "cut": cut,
        }

    @tf.function(input_signature=[_TEXT], autograph=False)
    def nbest(self, text: tf.Tensor) -> Outputs:
        """Translate strings [b] and return the whole beam of each, best first.

        Returns:
            `translations` string [b, m], `scores` float32 [b, m], `cut` as from `translate`. If the
            search found fewer than m hypotheses, the last are empty with a score of -1e9. A text of
            white space alone has one translation, the empty string; the rest is padded likewise.
        """
        source, empty, cut = self._encode(text, self.max_source_length)
        ids, scores = self.decode_beam(source)
        return self._beam(text, empty, ids, scores) | {"cut": cut}

    def _beam(
        self, text: tf.Tensor, empty: tf.Tensor, ids: tf.Tensor, scores: tf.Tensor
    ) -> Outputs:
        """Make `translations` and `scores` [b, m] of the hypotheses: ids [b, m, t]."""
        beam_size = scores.shape[1]
        only_one = tf.where(tf.range(beam_size) == 0, 0.0, IMPOSSIBLE)  # [m]
        scores = tf.where(empty[:, None], only_one, scores)
        rows = tf.reshape(ids, (-1, tf.shape(ids)[2]))  # [b * m, t]
        outputs = self._output(tf.repeat(text, beam_size), tf.repeat(empty, beam_size), rows)
        translations = tf.reshape(outputs, (-1, beam_size))  # [b, m]
        translations = tf.where(scores > IMPOSSIBLE, translations, "")
        return {"translations": translations, "scores": scores}

    def lines(self, n_best: int = 1) -> Lines:
        """Return a function from lines to the `n_best` translations of each."""
        # A method that is a tf.function does not keep its object alive; the lambda does.
        return best_lines(self if n_best == 1 else lambda text: self.nbest(text), n_best)

    def _attention(self, model: Transformer) -> tf.types.experimental.PolymorphicFunction:
        """Make the function `attention`, which computes with the weights held here."""
        longest = min(MOST_DRAWN_PIECES, self.max_source_length)

        @tf.function(input_signature=[_ONE_TEXT], autograph=False)
        def attention(text: tf.Tensor) -> Outputs:
            """Translate a string [] and return what each head looks at, as `visualize` draws it.

            Returns:
                `encoder` float32 [n, h, s, s], `decoder` [n, h, t, t] and `cross` [n, h, t, s], see
                `Transformer.attention`; `source_pieces` string [s] and `target_pieces` [t], with
                EOS; `translation` string [], the text of the target pieces. A source longer than
                `MOST_DRAWN_PIECES` or `max_source_length` has lost its end.
            """
            source, empty, _ = self._encode(text[None], longest)  # [1, s], [1]
            ids, _ = self.decode(source)  # [1, 1, t]
            target = tf.where(empty, EOS, ids[0, 0])  # a blank text's translation is empty
            target = target[: tf.where(target == EOS)[0, 0] + 1]  # without padding
            with self._own_weights(model):
                weights = model.attention(source, target[None])
            return {
                "source_pieces": self.tokenizer.id_to_string(source[0]),
                "target_pieces": self.tokenizer.id_to_string(target),
                "translation": self.vocabulary.decode_graph(target[None])[0],
                **{kind: values[:, 0] for kind, values in weights._asdict().items()},
            }

        return attention

    def _output(self, text: tf.Tensor, empty: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Decode target ids [n, t] to strings [n]; `empty` [n] marks texts [n] without a word."""
        target = tf.where(empty, "", self.vocabulary.decode_graph(ids))
        return self.postprocess(text, target) if self.postprocess else target

    def _encode(self, text: tf.Tensor, longest: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Encode strings [b] -> (ids [b, s], whether blank bool [b], whether cut bool [b])."""
        pieces = self.vocabulary.encode_graph(text)
        cut = pieces.row_lengths() > longest
        kept = pieces[:, :longest].to_tensor(PAD)  # [b, s]
        last = tf.range(tf.shape(kept)[1]) == longest - 1
        source = tf.where(cut[:, None] & last, EOS, kept)
        return source, pieces.row_lengths() <= 1, cut  # blank: EOS alone


_BATCH_LINES = 64
# Source bytes of a batch, with padding. A piece has at least one byte, except where NFKC spells out
# a compatibility character, so this bounds the cache of very long lines.
_BATCH_BYTES = 12_288


def translate_lines(
    translate: Translate, lines: Iterable[str], window: int = 4096
) -> Iterator[Line]:
    """Yield one translation per line, in order, in constant memory.

    Args:
        translate: A `Translator`, or the `serving_default` signature of an export.
        lines: Text of any length.
        window: Lines read before the first result. They are sorted by length before they are cut
            into batches, so that a batch holds little padding.
    """
    rows = zip(lines)
    for text, score, cut in by_line(_of_text(translate), rows, window, Line._fields):
        yield Line(text.decode(), float(score), bool(cut))


def nbest_lines(nbest: Translate, lines: Iterable[str], window: int = 4096) -> Iterator[list[Line]]:
    """Yield the whole beam of each line, best first, in order, in constant memory.

    Args:
        nbest: The `nbest` method of a `Translator`, or the `nbest` signature of an export.
        lines: Text of any length.
        window: Lines read before the first result.
    """
    yield from beams(_of_text(nbest), zip(lines), window)


def beams(
    function: Callable[..., Outputs], rows: Iterable[tuple[typing.Any, ...]], window: int
) -> Iterator[list[Line]]:
    """Yield the beam of each row, see `by_line`; the function returns what `nbest` returns."""
    for texts, scores, cut in by_line(function, rows, window, ("translations", "scores", "cut")):
        yield [
            Line(text.decode(), float(score), bool(cut))
            for text, score in zip(texts, scores, strict=True)
        ]


def _of_text(translate: Translate) -> Callable[..., Outputs]:
    return lambda lines: translate(text=tf.constant(list(map(fold, lines))))


def best_lines(function: Translate, n_best: int) -> Lines:
    """Return a function from lines to the `n_best` translations of each, best first.

    Args:
        function: As for `translate_lines` if `n_best` is 1, else as for `nbest_lines`.
        n_best: Translations of each line.
    """
    if n_best == 1:
        return lambda lines, window: ([line] for line in translate_lines(function, lines, window))
    return lambda lines, window: (row[:n_best] for row in nbest_lines(function, lines, window))


def by_line(
    function: Callable[..., Outputs],
    rows: Iterable[tuple[typing.Any, ...]],
    window: int,
    names: tuple[str, ...],
) -> Iterator[tuple[typing.Any, ...]]:
    """Yield the named outputs of each row, one tuple per row, in order.

    Args:
        function: Called with a batch's columns, each a list.
        rows: A line of text, the ids of a prefix if there are any, and whatever else belongs to it.
        window: As for `translate_lines`.
        names: The outputs to yield.
    """
    iterator = iter(rows)
    while chunk := list(islice(iterator, window)):
        results: dict[int, tuple[typing.Any, ...]] = {}
        for batch in _batches_by_length(list(map(_length, chunk))):
            outputs = function(*map(list, zip(*(chunk[index] for index in batch), strict=True)))
            columns = (outputs[name].numpy() for name in names)
            results.update(zip(batch, zip(*columns, strict=True), strict=True))
        yield from (results[index] for index in range(len(chunk)))


def _length(row: tuple[typing.Any, ...]) -> int:
    """Return the bytes of a row's line, or the pieces of its prefix if there are more of them."""
    line, *others = row
    return max([len(line.encode(errors="replace")), *map(len, others[:1])])


def _batches_by_length(lengths: list[int]) -> Iterator[list[int]]:
    """Yield indices of rows in batches, longest first: the first batch needs the most memory."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while order:
        count = min(_BATCH_LINES, max(1, _BATCH_BYTES // max(1, lengths[order[0]])))
        yield order[:count]
        order = order[count:]
