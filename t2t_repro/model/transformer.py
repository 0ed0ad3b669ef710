"""Section 3.1 and Figure 1: the encoder and decoder layers, and the Transformer.

Axes: b batch, s source positions, t target positions, d d_model, v rows of the shared matrix.
"""

import itertools
import typing

import keras
from keras import ops

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
    FeedForward,
    LearnedPositions,
    SharedEmbedding,
    SinusoidalPositions,
)


def shift_right(target):
    """Target [b, t] -> the decoder's input [b, t]: PAD in front, the last token dropped.

    PAD is embedded as the zero vector, the start symbol of the authors' first code.
    """
    return ops.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=PAD)


class EncoderLayer(keras.layers.Layer):
    """One of the N encoder layers: self-attention and feed-forward, each with add and norm.

    Args:
        self_attention: any layer (x [b, s, d], attention_mask) -> [b, s, d]; `layer_types` has the
            contract, and those of Table 1.
        feed_forward: a layer x -> x.
        dropout: P_drop on each sub-layer's output.
    """

    def __init__(self, self_attention, feed_forward, dropout, **kwargs):
        super().__init__(**kwargs)
        self.self_attention, self.feed_forward = self_attention, feed_forward
        policy = self.dtype_policy
        self.self_attention_norm = AddNorm(dropout, dtype=policy, name="self_attention_norm")
        self.feed_forward_norm = AddNorm(dropout, dtype=policy, name="feed_forward_norm")

    def build(self, x_shape):
        """x_shape: [b, s, d]."""
        for layer in (
            self.self_attention,
            self.self_attention_norm,
            self.feed_forward,
            self.feed_forward_norm,
        ):
            layer.build(x_shape)
        self.built = True

    def call(self, x, attention_mask):
        """x [b, s, d], attention_mask [b, 1, 1, s] -> [b, s, d]."""
        x = self.self_attention_norm(x, self.self_attention(x, attention_mask))
        return self.feed_forward_norm(x, self.feed_forward(x))


class DecoderLayer(keras.layers.Layer):
    """One of the N decoder layers: masked self-attention, attention over the source, feed-forward.

    Args:
        self_attention: a MultiHeadAttention over the target so far.
        cross_attention: a MultiHeadAttention over the encoder's output.
        feed_forward: a layer x -> x.
        dropout: P_drop on each sub-layer's output.
    """

    def __init__(self, self_attention, cross_attention, feed_forward, dropout, **kwargs):
        super().__init__(**kwargs)
        self.self_attention, self.cross_attention = self_attention, cross_attention
        self.feed_forward = feed_forward
        policy = self.dtype_policy
        self.self_attention_norm = AddNorm(dropout, dtype=policy, name="self_attention_norm")
        self.cross_attention_norm = AddNorm(dropout, dtype=policy, name="cross_attention_norm")
        self.feed_forward_norm = AddNorm(dropout, dtype=policy, name="feed_forward_norm")

    def build(self, x_shape):
        """x_shape: [b, t, d]; the source has the same d."""
        for layer in (
            self.self_attention,
            self.self_attention_norm,
            self.cross_attention,
            self.cross_attention_norm,
            self.feed_forward,
            self.feed_forward_norm,
        ):
            layer.build(x_shape)
        self.built = True

    def call(self, x, memory, source_mask, target_mask, cache=None, position=None):
        """One layer over all target positions, or over one new position of a beam and the cache.

        Args:
            x: [b, t, d]; with a cache [b * m, d], the hypotheses' vectors at `position`.
            memory: keys and values of the source, from `cross_attention.keys_values`.
            source_mask: [b, 1, 1, s].
            target_mask: [1, 1, t, t]; with a cache [b, 1, m, keys].
            cache: None, or this layer's keys and values of the positions before.
            position: where x is written in a cache that has room for it; None where it grows.

        Returns:
            (like x, the cache of the next step or None).
        """
        keys_values = self.self_attention.keys_values(x, ops.shape(source_mask)[0])
        if cache is not None and position is None:
            cache = keys_values = extend_cache(cache, keys_values)
        elif cache is not None:
            cache = keys_values = write_cache(cache, keys_values, position)
        x = self.self_attention_norm(x, self.self_attention.attend(x, keys_values, target_mask))
        x = self.cross_attention_norm(x, self.cross_attention.attend(x, memory, source_mask))
        return self.feed_forward_norm(x, self.feed_forward(x)), cache


class Attention(typing.NamedTuple):
    """What every head looks at: float32 weights [layers, b, h, queries, keys], from 0 to 1.

    Weights of keys that are padding or in the future are 0; rows of padding queries mean nothing.
    """

    encoder: typing.Any  # [layers, b, h, s, s]: from source to source
    decoder: typing.Any  # [layers, b, h, t, t]: row i is of the token before target[i]
    cross: typing.Any  # [layers, b, h, t, s]: row i is of where target[i] is predicted


class Transformer(keras.Model):
    """The model of the paper: `model(source, target)` gives the logits of teacher forcing.

    Ids are int32, PAD (0) fills the rows of a batch, every sentence ends with EOS. The same layers
    serve training (`decode`: all positions at once) and search (`decode_step`: one position and a
    cache).

    Args:
        config: a `t2t_repro.config.Model`.
        rows: rows of the shared matrix; None takes `config.embedding_rows`. 40,960 for the paper's
            models, which gives base its 65,110,016 trainable parameters.
        dtype: Keras dtype policy, "float32" or "mixed_bfloat16".
        self_attention: for another layer than full self-attention in the encoder, such as those of
            `layer_types`: what makes one, called with `name` and `dtype` for every encoder layer.
            `attention` and exports to CTranslate2 are for full self-attention alone.
    """

    def __init__(self, config, rows=None, dtype="float32", self_attention=None, **kwargs):
        super().__init__(dtype=dtype, name="transformer", **kwargs)
        self.config = config
        self.embedding = SharedEmbedding(
            rows or config.embedding_rows, config.d_model, dtype=dtype, name="embedding"
        )
        self.source_positions = self._positions("source_positions")
        self.target_positions = self._positions("target_positions")
        self.source_dropout = keras.layers.Dropout(config.dropout, dtype=dtype)
        self.target_dropout = keras.layers.Dropout(config.dropout, dtype=dtype)
        self.encoder = [
            self._encoder_layer(index, self_attention or self._attention)
            for index in range(config.num_layers)
        ]
        self.decoder = [self._decoder_layer(index) for index in range(config.num_layers)]
        self.build((None, None))

    def _positions(self, name):
        rows, policy = self.config.learned_positions, self.dtype_policy
        if rows:
            return LearnedPositions(rows, self.config.d_model, dtype=policy, name=name)
        return SinusoidalPositions(dtype=policy, name=name)

    def _encoder_layer(self, index, self_attention):
        return EncoderLayer(
            self_attention(name="self_attention", dtype=self.dtype_policy),
            self._feed_forward(),
            self.config.dropout,
            dtype=self.dtype_policy,
            name=f"encoder_{index}",
        )

    def _decoder_layer(self, index):
        policy = self.dtype_policy
        return DecoderLayer(
            self._attention("self_attention", policy),
            self._attention("cross_attention", policy),
            self._feed_forward(),
            self.config.dropout,
            dtype=policy,
            name=f"decoder_{index}",
        )

    def _attention(self, name, dtype):
        config = self.config
        return MultiHeadAttention(
            config.d_model,
            config.num_heads,
            config.d_k,
            config.d_v,
            config.attention_dropout,
            dtype=dtype,
            name=name,
        )

    def _feed_forward(self):
        config = self.config
        return FeedForward(
            config.d_model, config.d_ff, dtype=self.dtype_policy, name="feed_forward"
        )

    def build(self, source_shape):
        """Makes all variables; the constructor calls it, so a model always has its weights."""
        for layer in (*self.encoder, *self.decoder):
            layer.build((*source_shape, self.config.d_model))
        self.built = True

    def call(self, source, target, training=False):
        """Source [b, s], target [b, t] -> float32 logits [b, t, v].

        The logits at t come from the target before t: the target is shifted right here.
        """
        source_mask = padding_mask(source)
        memory = self.memory(self.encode(source, source_mask, training))
        return self.decode(shift_right(target), memory, source_mask, training)

    def encode(self, source, source_mask, training=False):
        """Source [b, s], its padding mask -> encoder output [b, s, d]."""
        x = self.source_positions(self.embedding(source))
        x = self.source_dropout(x, training=training)
        for layer in self.encoder:
            x = layer(x, source_mask, training=training)
        return x

    def memory(self, encoded):
        """Encoder output [b, s, d] -> each decoder layer's keys and values of the source."""
        return [layer.cross_attention.keys_values(encoded) for layer in self.decoder]

    def decode(self, previous, memory, source_mask, training=False):
        """The target shifted right [b, t] -> float32 logits [b, t, v] of what follows each token.

        memory is from `memory`, source_mask [b, 1, 1, s].
        """
        x = self.target_positions(self.embedding(previous))
        x = self.target_dropout(x, training=training)
        target_mask = causal_mask(ops.shape(previous)[1])
        for layer, keys_values in zip(self.decoder, memory, strict=True):
            x, _ = layer(x, keys_values, source_mask, target_mask, training=training)
        return self.embedding.logits(x)

    def empty_cache(self, batch, keys):
        """Per decoder layer {"key": [b, h, keys, d_k], "value": [b, h, keys, d_v]}.

        keys: 0 for a cache that grows, else m for each position that it will ever have.
        """
        config = self.config
        shape = (batch, config.num_heads, keys)
        return [
            {
                "key": ops.zeros((*shape, config.d_k), self.compute_dtype),
                "value": ops.zeros((*shape, config.d_v), self.compute_dtype),
            }
            for _ in self.decoder
        ]

    def decode_step(self, tokens, memory, source_mask, slots, cache, position, grows=True):
        """The hypotheses of a beam by one position: their last tokens -> what may follow.

        Args:
            tokens: [b, m], the token before `position` (PAD, which is the zero vector, at 0).
            memory: from `memory`.
            source_mask: [b, 1, 1, s].
            slots: int32 [b, m, t], see `ancestor_mask`; at `position` a hypothesis' own.
            cache: `empty_cache`, or the cache of the step before.
            position: int32 scalar.
            grows: whether the cache does; else it has room for t positions.

        Returns:
            (vectors [b * m, d], from which `embedding` makes logits, the cache of the next step).
        """
        x = self.target_positions(self.embedding(ops.reshape(tokens, (-1, 1))), position=position)
        x = ops.reshape(x, (-1, self.config.d_model))  # [b * m, d]
        mask = ancestor_mask(slots[:, :, : position + 1] if grows else slots)
        written = None if grows else position
        next_cache = []
        for layer, keys_values, kept in zip(self.decoder, memory, cache, strict=True):
            x, kept = layer(x, keys_values, source_mask, mask, cache=kept, position=written)
            next_cache.append(kept)
        return x, next_cache

    def weights_read_once(self):
        """A scope in which the layers find their weights read, and cast to bfloat16, beforehand.

        A loop would do both again at every step.
        """
        scope = keras.StatelessScope()
        for variable in self.trainable_variables:
            is_norm = variable.path.endswith(("/gamma", "/beta"))  # Keras keeps these in float32
            dtype = variable.dtype if is_norm else self.compute_dtype
            scope.add_update((variable, ops.cast(ops.copy(variable), dtype)))
        return scope

    def attention(self, source, target):
        """All attention weights for pairs: source [b, s], target [b, t] -> an `Attention`."""
        layers = {
            "encoder": [layer.self_attention for layer in self.encoder],
            "decoder": [layer.self_attention for layer in self.decoder],
            "cross": [layer.cross_attention for layer in self.decoder],
        }
        weights = {name: [] for name in layers}
        try:
            for name, attentions in layers.items():
                for attention in attentions:
                    attention.record = weights[name].append
            self(source, target)
        finally:
            for attention in itertools.chain(*layers.values()):
                attention.record = None
        return Attention(**{name: ops.stack(maps) for name, maps in weights.items()})
