"""Section 3.1 and Figure 1: the encoder and decoder layers, and the Transformer.

Axes: b batch, m beam, s source positions, t target positions, d d_model, h heads, v rows of the
shared matrix.
"""

import dataclasses
import functools
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
from keras import ops

from t2t_repro.config import Model
from t2t_repro.model import preset
from t2t_repro.model.attention import (
    PAD,
    MultiHeadAttention,
    ancestor_mask,
    causal_mask,
    extend_cache,
    padding_mask,
    write_cache,
)
from t2t_repro.model.layers import (
    AddNorm,
    Dropout,
    FeedForward,
    LearnedPositions,
    SharedEmbedding,
    SinusoidalPositions,
)


def shift_right(target):
    """Make the decoder's input of a target [b, t] -> [b, t]: PAD in front, the last token dropped.

    PAD is embedded as the zero vector, the start symbol of the authors' first code.
    """
    return ops.pad(target, ((0, 0), (1, 0)), constant_values=PAD)[:, :-1]


def called(layer, *inputs, **given):
    """Call a layer: the default of what calls the layers of a Transformer."""
    return layer(*inputs, **given)


class _LayerOfSublayers(keras.layers.Layer):
    """The common part of encoder and decoder layers, whose sub-layers are passed in.

    `sublayers` names the constructor's arguments that are layers.
    """

    sublayers: tuple[str, ...] = ()

    def build(self, x_shape):
        """Make the weights, but those of sub-layers that have theirs; x_shape [b, n, d]."""
        for name in self.sublayers:
            for layer in (getattr(self, name), getattr(self, f"{name}_norm")):
                if not layer.built:  # Keras has built the sub-layers of a saved model
                    layer.build(x_shape)
        self.built = True

    def get_config(self):
        """Return the constructor's arguments, for Keras's serialisation."""
        layers = {name: getattr(self, name) for name in self.sublayers}
        serialized = {k: keras.saving.serialize_keras_object(v) for k, v in layers.items()}
        return super().get_config() | serialized | {"dropout": self.dropout}

    @classmethod
    def from_config(cls, config):
        """Make the layer, and its sub-layers, that `get_config` described."""
        layers = {n: keras.saving.deserialize_keras_object(config[n]) for n in cls.sublayers}
        return cls(**config | layers)


@keras.saving.register_keras_serializable("t2t_repro")
class EncoderLayer(_LayerOfSublayers):
    """One of the N encoder layers: self-attention and feed-forward, each with add and norm.

    Args:
        self_attention: any layer (x [b, s, d], attention_mask) -> [b, s, d]; `table1_layers` has
            the contract, and the layers of Table 1.
        feed_forward: a layer x -> x.
        dropout: P_drop on each sub-layer's output.

    Examples:
        >>> attention = MultiHeadAttention(d_model=8, num_heads=2, d_k=4, d_v=4)
        >>> layer = EncoderLayer(attention, FeedForward(d_model=8, d_ff=32), dropout=0.1)
        >>> source = np.array([[5, 7, 1, 0]])
        >>> tuple(layer(keras.random.normal((1, 4, 8)), padding_mask(source)).shape)
        (1, 4, 8)
    """

    sublayers = ("self_attention", "feed_forward")

    def __init__(self, self_attention, feed_forward, dropout, **kwargs):
        super().__init__(**kwargs)
        self.self_attention, self.feed_forward = self_attention, feed_forward
        self.dropout, policy = dropout, self.dtype_policy
        self.self_attention_norm = AddNorm(dropout, dtype=policy, name="self_attention_norm")
        self.feed_forward_norm = AddNorm(dropout, dtype=policy, name="feed_forward_norm")

    def call(self, x, attention_mask, rows=None, return_attention_scores=False):
        """Encode x.

        Args:
            x: [b, s, d], or rows [b * s, d].
            attention_mask: [b, 1, 1, s].
            rows: (b, s), either of which may be -1, if x is rows. Rows and
                `return_attention_scores` need a MultiHeadAttention as self-attention.
            return_attention_scores: whether to return the attention weights too.

        Returns:
            like x, or (like x, weights float32 [b, h, s, s]).
        """
        # Only what is not the default: the layers of Table 1 know neither.
        given = {"rows": rows} if rows is not None else {}
        given |= {"return_attention_scores": True} if return_attention_scores else {}
        read = self.self_attention_norm.sublayer_input(x)
        attended = self.self_attention(read, attention_mask, **given)
        output, scores = attended if return_attention_scores else (attended, None)
        x = self.self_attention_norm(x, output)
        read = self.feed_forward_norm.sublayer_input(x)
        x = self.feed_forward_norm(x, self.feed_forward(read))
        return (x, scores) if return_attention_scores else x


@keras.saving.register_keras_serializable("t2t_repro")
class DecoderLayer(_LayerOfSublayers):
    """One of the N decoder layers: masked self-attention, attention over the source, feed-forward.

    Calling the layer decodes all target positions at once, for training. `step` decodes one
    position of every hypothesis of a beam, for search. Both are the same three sub-layers.

    Args:
        self_attention: a MultiHeadAttention over the target so far.
        cross_attention: a MultiHeadAttention over the encoder's output.
        feed_forward: a layer x -> x.
        dropout: P_drop on each sub-layer's output.

    Examples:
        >>> make = functools.partial(MultiHeadAttention, d_model=8, num_heads=2, d_k=4, d_v=4)
        >>> layer = DecoderLayer(make(), make(), FeedForward(d_model=8, d_ff=32), dropout=0.1)
        >>> source, target = np.array([[5, 7, 1, 0]]), keras.random.normal((1, 3, 8))
        >>> encoded = keras.random.normal((1, 4, 8))
        >>> tuple(layer(target, encoded, padding_mask(source), causal_mask(3)).shape)
        (1, 3, 8)
    """

    sublayers = ("self_attention", "cross_attention", "feed_forward")

    def __init__(self, self_attention, cross_attention, feed_forward, dropout, **kwargs):
        super().__init__(**kwargs)
        self.self_attention, self.cross_attention = self_attention, cross_attention
        self.feed_forward = feed_forward
        self.dropout, policy = dropout, self.dtype_policy
        self.self_attention_norm = AddNorm(dropout, dtype=policy, name="self_attention_norm")
        self.cross_attention_norm = AddNorm(dropout, dtype=policy, name="cross_attention_norm")
        self.feed_forward_norm = AddNorm(dropout, dtype=policy, name="feed_forward_norm")

    def call(self, x, memory, source_mask, target_mask, rows=None, return_attention_scores=False):
        """Decode all target positions.

        Args:
            x: [b, t, d], or rows [b * t, d].
            memory: the encoder's output [b, s, d], or keys and values of it, from
                `cross_attention.keys_values`.
            source_mask: bool [b, 1, 1, s].
            target_mask: bool [1, 1, t, t].
            rows: (b, t), either of which may be -1, if x is rows.
            return_attention_scores: whether to return the weights of both attentions too.

        Returns:
            like x, or (like x, (float32 [b, h, t, t], float32 [b, h, t, s])).
        """
        if not isinstance(memory, dict):
            memory = self.cross_attention.keys_values(memory)
        read = self.self_attention_norm.sublayer_input(x)
        attended = self.self_attention(read, target_mask, rows=rows, return_attention_scores=True)
        x, scores = self._sublayers(x, attended, memory, source_mask, rows)
        return (x, scores) if return_attention_scores else x

    def step(self, x, beam_size, memory, source_mask, target_mask, cache, append):
        """Decode one position of every hypothesis of a beam.

        Args:
            x: [b * m, d], the hypotheses' vectors at this position.
            beam_size: m, an int.
            memory: keys and values of the source, from `cross_attention.keys_values`.
            source_mask: [b, 1, 1, s].
            target_mask: [b, 1, m, keys], see `ancestor_mask`.
            cache: this layer's keys and values of the positions before, a list of one part.
            append: a function of the cache and this position's keys and values, which returns the
                list of parts that attention reads: `extend_cache`, `write_cache` at a position, or
                one that appends a part.

        Returns:
            ([b * m, d], what `append` returned).
        """
        read, rows = self.self_attention_norm.sublayer_input(x), (-1, beam_size)
        cache = append(cache, self.self_attention.keys_values(read, rows))
        attended = self.self_attention.attend(read, cache, target_mask, rows)
        x, _ = self._sublayers(x, attended, memory, source_mask, rows)
        return x, cache

    def _sublayers(self, x, attended, memory, source_mask, rows=None):
        """Add and norm `attended`, the self-attention's output, and apply the other two sub-layers.

        Args:
            x: the layer's input.
            attended: (output, weights) of the self-attention.
            memory: as for `step`.
            source_mask: as for `call`.
            rows: as for `MultiHeadAttention.attend`.

        Returns:
            (like x, weights of self- and of cross-attention).
        """
        output, own = attended
        x = self.self_attention_norm(x, output)
        read = self.cross_attention_norm.sublayer_input(x)
        output, cross = self.cross_attention.attend(read, [memory], source_mask, rows)
        x = self.cross_attention_norm(x, output)
        read = self.feed_forward_norm.sublayer_input(x)
        return self.feed_forward_norm(x, self.feed_forward(read)), (own, cross)


class Attention(typing.NamedTuple):
    """The attention weights of every head: float32 [layers, b, h, queries, keys], from 0 to 1.

    Weights of keys that are padding or in the future are 0; rows of padding queries are
    meaningless.
    """

    encoder: Any  # [layers, b, h, s, s]: from source to source
    decoder: Any  # [layers, b, h, t, t]: row i belongs to the token before target[i]
    cross: Any  # [layers, b, h, t, s]: row i belongs to the prediction of target[i]


@keras.saving.register_keras_serializable("t2t_repro")
class Transformer(keras.Model):
    """The model of the paper: `model(source, target)` gives the logits of teacher forcing.

    Ids are int32, PAD (0) fills the rows of a batch, every sentence ends with EOS. The same layers
    serve training (`decode`: all positions at once) and search (`decode_step`: one position and a
    cache).

    `fit` would call the model with the source alone, where the decoder also reads the target. Use a
    functional model, `keras.Model([source, target], model(source, target))`; docs/library.md has an
    example. `python -m t2t_repro.train` has a step of its own, in `training.trainer.Trainer`, since
    Keras would average losses over replicas whose token counts differ.

    Args:
        config: a `t2t_repro.config.Model`.
        rows: rows of the shared matrix; None means `config.embedding_rows`. The paper's models have
            40,960, which gives base its 65,110,016 trainable parameters.
        dtype: Keras dtype policy, "float32" or "mixed_bfloat16".
        self_attention: a layer to replace full self-attention in the encoder, such as one of
            `table1_layers`: every encoder layer gets a copy of it, made by `from_config`.
            `attention` and exports to CTranslate2 support full self-attention only.
        name: name of the model, the first part of the paths of its encoder and decoder weights.
            Checkpoints of a run need the default.

    Raises:
        ValueError: neither `rows` nor `config.embedding_rows` is above 0, or d_model is odd.

    Examples:
        >>> tiny = Model(num_layers=2, d_model=32, d_ff=64, num_heads=4, d_k=8, d_v=8)
        >>> model = Transformer(tiny, rows=100)
        >>> source, target = np.array([[5, 7, 1, 0]]), np.array([[8, 9, 1]])
        >>> tuple(model(source, target).shape)
        (1, 3, 100)
    """

    def __init__(
        self,
        config: Model,
        rows: int | None = None,
        dtype: str = "float32",
        self_attention: keras.layers.Layer | None = None,
        name: str = "transformer",
        **kwargs: Any,
    ):
        super().__init__(dtype=dtype, name=name, **kwargs)
        rows = config.embedding_rows if rows is None else rows
        if not rows:
            raise ValueError(f"rows: wanted a number above 0 here or in config, got {rows}")
        if config.d_model % 2:  # half of a position's vector are sines, half are cosines
            raise ValueError(f"config.d_model: wanted an even number, got {config.d_model}")
        self.config, self.rows = config, rows
        self._has_own_self_attention = self_attention is not None
        self.embedding = SharedEmbedding(self.rows, config.d_model, dtype=dtype, name="embedding")
        self.source_positions = self._positions("source_positions")
        self.target_positions = self._positions("target_positions")
        self.source_dropout = self._dropout("source_dropout")
        self.target_dropout = self._dropout("target_dropout")
        self.encoder = [
            self._encoder_layer(index, self_attention) for index in range(config.num_layers)
        ]
        self.decoder = [self._decoder_layer(index) for index in range(config.num_layers)]
        self.build((None, None))

    def _positions(self, name):
        rows, policy = self.config.learned_positions, self.dtype_policy
        if rows:
            return LearnedPositions(rows, self.config.d_model, dtype=policy, name=name)
        return SinusoidalPositions(dtype=policy, name=name)

    def _dropout(self, name):
        return Dropout(self.config.dropout, dtype=self.dtype_policy, name=name)

    def _encoder_layer(self, index, self_attention):
        return EncoderLayer(
            self._encoder_self_attention(self_attention),
            self._feed_forward(),
            self.config.dropout,
            dtype=self.dtype_policy,
            name=f"encoder_{index}",
        )

    def _decoder_layer(self, index):
        return DecoderLayer(
            self._attention("self_attention"),
            self._attention("cross_attention"),
            self._feed_forward(),
            self.config.dropout,
            dtype=self.dtype_policy,
            name=f"decoder_{index}",
        )

    def _encoder_self_attention(self, template):
        """Make the self-attention of an encoder layer: full, or a copy of the given layer."""
        if template is None:
            return self._attention("self_attention")
        own = {"name": "self_attention", "dtype": self.dtype_policy}
        return type(template).from_config(template.get_config() | own)

    def _attention(self, name):
        config = self.config
        return MultiHeadAttention(
            config.d_model,
            config.num_heads,
            config.d_k,
            config.d_v,
            config.attention_dropout,
            dtype=self.dtype_policy,
            name=name,
        )

    def _feed_forward(self):
        config = self.config
        return FeedForward(
            config.d_model, config.d_ff, dtype=self.dtype_policy, name="feed_forward"
        )

    @property
    def has_attention_weights(self) -> bool:
        """Whether every encoder layer has full self-attention, whose weights can be returned."""
        return all(type(layer.self_attention) is MultiHeadAttention for layer in self.encoder)

    @property
    def random_states(self) -> list[keras.Variable]:
        """The states of dropout's random generators."""
        weights = {id(weight) for weight in self.weights}
        return [variable for variable in self.variables if id(variable) not in weights]

    def build(self, source_shape):
        """Make all weights; the constructor calls it, so a model always has them."""
        for positions in (self.source_positions, self.target_positions):
            positions.build((*source_shape, self.config.d_model))
        self.embedding.build(source_shape)
        for layer in (*self.encoder, *self.decoder):
            layer.build((*source_shape, self.config.d_model))
        self.built = True

    def call(self, source: Any, target: Any, training: bool = False) -> Any:
        """Compute the logits of teacher forcing: source [b, s], target [b, t] -> float32 [b, t, v].

        The logits at t come from the target before t: the target is shifted right here.
        """
        return self.embedding.logits(self.vectors(source, target, training))

    def vectors(
        self,
        source: Any,
        target: Any,
        training: bool = False,
        call_layer: Callable[..., Any] = called,
    ) -> Any:
        """Compute the vectors that `call` makes logits of: [b, t, d].

        Training computes the loss from these and the shared matrix.

        Args:
            source: [b, s].
            target: [b, t].
            training: whether dropout is active.
            call_layer: calls an encoder or decoder layer, its first argument, with the others.
        """
        source_mask = padding_mask(source)
        encoded = self.encode(source, source_mask, training, call_layer=call_layer)
        inputs = shift_right(target), self.memory(encoded), source_mask
        return self._decode(*inputs, training, call_layer)[0]

    def encode(
        self,
        source,
        source_mask,
        training=False,
        return_attention_scores=False,
        call_layer=called,
    ):
        """Encode source [b, s] with its padding mask.

        Args:
            source: [b, s].
            source_mask: bool [b, 1, 1, s].
            training: whether dropout is active.
            return_attention_scores: whether to return the attention weights too.
            call_layer: as for `vectors`.

        Returns:
            [b, s, d]; with `return_attention_scores` ([b, s, d], weights [b, h, s, s] by layer).
        """
        x = self.source_positions(self.embedding(source))
        x, scores = self.source_dropout(x, training=training), []
        given, shape = {"training": training}, ops.shape(x)
        if self.has_attention_weights:  # the layers of Table 1 need the axes b and s
            x, given["rows"] = self._as_rows(x)
        for layer in self.encoder:
            if return_attention_scores:
                given["return_attention_scores"] = True
                x, weights = call_layer(layer, x, source_mask, **given)
                scores.append(weights)
            else:
                x = call_layer(layer, x, source_mask, **given)
        x = ops.reshape(x, shape)
        return (x, scores) if return_attention_scores else x

    def encode_rows(self, x, source_mask, rows):
        """Apply the encoder's layers to embedded rows [b * s, d], rows = (b, s) -> like x.

        Either of b and s may be -1. Every layer must have full self-attention.
        """
        for layer in self.encoder:
            x = layer(x, source_mask, rows=rows)
        return x

    def memory(self, encoded, rows=None):
        """Project encoder output [b, s, d] to the keys and values that each decoder layer reads.

        Rows [b * s, d] need `rows`, (b, s).
        """
        if rows is None:
            encoded, rows = self._as_rows(encoded)
        return [layer.cross_attention.keys_values(encoded, rows) for layer in self.decoder]

    def decode(self, previous, memory, source_mask, training=False, return_attention_scores=False):
        """Decode all positions of a target.

        Args:
            previous: [b, t], the target shifted right.
            memory: from `memory`.
            source_mask: bool [b, 1, 1, s].
            training: whether dropout is active.
            return_attention_scores: whether to return the attention weights too.

        Returns:
            float32 logits [b, t, v] of the next token; with `return_attention_scores`
            (logits, (self-attention [b, h, t, t], cross-attention [b, h, t, s]) by layer).
        """
        x, scores = self._decode(previous, memory, source_mask, training)
        logits = self.embedding.logits(x)
        return (logits, scores) if return_attention_scores else logits

    def _decode(self, previous, memory, source_mask, training, call_layer=called):
        """Decode all positions -> (vectors [b, t, d], attention weights as `decode` returns)."""
        x = self.target_positions(self.embedding(previous))
        x, scores = self.target_dropout(x, training=training), []
        shape, target_mask = ops.shape(x), causal_mask(ops.shape(previous)[1])
        x, rows = self._as_rows(x)
        given = {"training": training, "rows": rows, "return_attention_scores": True}
        for layer, keys_values in zip(self.decoder, memory, strict=True):
            inputs = x, keys_values, source_mask, target_mask
            x, weights = call_layer(layer, *inputs, **given)
            scores.append(weights)
        return ops.reshape(x, shape), scores

    def _as_rows(self, x):
        """Return x [b, n, d] as rows [b * n, d], see `MultiHeadAttention`, and (b, n)."""
        rows = ops.shape(x)[:2]
        static = [size if isinstance(size, int) else -1 for size in rows]
        # Keras's layers take two numbers or two tensors; -1 stands for one unknown size.
        rows = rows if static == [-1, -1] else tuple(static)
        return ops.reshape(x, (-1, self.config.d_model)), rows

    def attention(self, source: Any, target: Any) -> Attention:
        """Return the attention weights of pairs, source [b, s], target [b, t]: an `Attention`.

        The model must have full self-attention; see `has_attention_weights`.
        """
        source_mask = padding_mask(source)
        encoded, encoder = self.encode(source, source_mask, return_attention_scores=True)
        _, decoder = self.decode(
            shift_right(target), self.memory(encoded), source_mask, return_attention_scores=True
        )
        own, cross = zip(*decoder, strict=True)
        return Attention(*(ops.stack(weights) for weights in (encoder, own, cross)))

    def empty_cache(self, batch, keys):
        """Make [{"key": [b, h, keys, d_k], "value": [b, h, keys, d_v]}] for each decoder layer.

        Args:
            batch: b.
            keys: 0 for a cache that grows; otherwise m times the number of positions it must hold.
        """
        config = self.config
        shape = (batch, config.num_heads, keys)
        return [
            [
                {
                    "key": ops.zeros((*shape, config.d_k), self.compute_dtype),
                    "value": ops.zeros((*shape, config.d_v), self.compute_dtype),
                }
            ]
            for _ in self.decoder
        ]

    def decode_step(self, tokens, memory, source_mask, slots, cache, position, grows=True):
        """Decode one position of the hypotheses of a beam.

        Args:
            tokens: [b, m], the token before `position` (PAD, which is the zero vector, at 0).
            memory: from `memory`.
            source_mask: bool [b, 1, 1, s].
            slots: int32 [b, m, t], see `ancestor_mask`; at `position` each hypothesis' own slot.
            cache: `empty_cache`, or the cache of the step before.
            position: int32 scalar.
            grows: whether the cache grows; otherwise it has room for t positions.

        Returns:
            (vectors [b * m, d], from which `embedding` makes logits, the cache of the next step).
        """
        x = self.target_positions(self.embedding(ops.reshape(tokens, (-1, 1))), position=position)
        x = ops.reshape(x, (-1, self.config.d_model))  # [b * m, d]
        mask = ancestor_mask(slots[:, :, : position + 1] if grows else slots)
        append = extend_cache if grows else functools.partial(write_cache, position=position)
        return self.decode_rows(x, tokens.shape[1], memory, source_mask, mask, cache, append)

    def decode_rows(self, x, beam_size, memory, source_mask, target_mask, cache, append):
        """Apply the decoder's layers to one position of the hypotheses of a beam.

        Args:
            x: [b * m, d], the embedded tokens.
            beam_size: m, an int.
            memory: from `memory`.
            source_mask: [b, 1, 1, s].
            target_mask: [b, 1, m, keys], of the keys that `append` returns.
            cache: list of each layer's cache.
            append: as for `DecoderLayer.step`.

        Returns:
            (vectors [b * m, d], list of what `append` returned for each layer).
        """
        next_cache = []
        for layer, keys_values, kept in zip(self.decoder, memory, cache, strict=True):
            inputs = x, beam_size, keys_values, source_mask, target_mask, kept, append
            x, kept = layer.step(*inputs)
            next_cache.append(kept)
        return x, next_cache

    def weights_read_once(self):
        """Return a scope in which the weights are already read, and cast to bfloat16 if needed.

        A loop would otherwise read and cast them again at every step.
        """
        scope = keras.StatelessScope()
        for variable in self.weights:
            is_norm = variable.path.endswith(("/gamma", "/beta"))  # Keras keeps these in float32
            dtype = variable.dtype if is_norm else self.compute_dtype
            scope.add_update((variable, ops.cast(ops.copy(variable), dtype)))
        return scope

    def get_config(self):
        """Return the constructor's arguments, for Keras's serialisation."""
        other = self.encoder[0].self_attention if self._has_own_self_attention else None
        return super().get_config() | {
            "config": dataclasses.asdict(self.config),
            "rows": self.rows,
            "self_attention": other and keras.saving.serialize_keras_object(other),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Make the model that `get_config` described, with new weights."""
        layer = config["self_attention"]
        made = layer and keras.saving.deserialize_keras_object(layer, custom_objects)
        return cls(**config | {"config": Model(**config["config"]), "self_attention": made})

    def save_to_preset(self, directory: str | os.PathLike[str]) -> None:
        """Write the model into a folder in KerasHub's layout, see `t2t_repro.model.preset`."""
        preset.save(self, Path(directory))

    @classmethod
    def from_preset(cls, directory: str | os.PathLike[str]) -> "Transformer":
        """Make the model that `save_to_preset`, or `export --format=keras`, has written.

        Raises:
            BadInput: there is no usable preset of a Transformer.
        """
        model = cls(**preset.arguments(Path(directory)))
        preset.load_weights(model, Path(directory))
        return model
