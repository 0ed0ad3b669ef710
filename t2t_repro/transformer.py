"""Section 3.1 and Figure 1: the encoder and decoder layers, and the Transformer.

Axes: b batch, s source positions, t target positions, d d_model, v rows of the shared matrix.
"""

import keras
from keras import ops

from t2t_repro.attention import MultiHeadAttention, causal_mask, padding_mask, write_cache
from t2t_repro.layers import (
    AddNorm,
    FeedForward,
    LearnedPositions,
    SharedEmbedding,
    SinusoidalPositions,
)
from t2t_repro.loss import shift_right


class EncoderLayer(keras.layers.Layer):
    """One of the N encoder layers: self-attention and feed-forward, each with add and norm.

    Args:
        self_attention: any layer (x [b, s, d], attention_mask) -> [b, s, d].
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

    def call(self, x, memory, source_mask, target_mask, cache=None, position=0):
        """One layer over all target positions, or over one new position and the cache.

        Args:
            x: [b, t, d]; with a cache t is 1 and x stands at `position`.
            memory: keys and values of the source, from `cross_attention.keys_values`.
            source_mask: [b, 1, 1, s].
            target_mask: [1, 1, t, keys].
            cache: None, or this layer's keys and values of the positions before.
            position: steps already in the cache.

        Returns:
            ([b, t, d], the keys and values to hand to the next step).
        """
        keys_values = self.self_attention.keys_values(x)
        if cache is not None:
            keys_values = write_cache(cache, keys_values, position)
        x = self.self_attention_norm(x, self.self_attention.attend(x, keys_values, target_mask))
        x = self.cross_attention_norm(x, self.cross_attention.attend(x, memory, source_mask))
        return self.feed_forward_norm(x, self.feed_forward(x)), keys_values


class Transformer(keras.Model):
    """The model of the paper: `model(source, target)` gives the logits of teacher forcing.

    Ids are int32, PAD (0) fills the rows of a batch, every sentence ends with EOS. The same
    `decode` serves training (all positions at once) and search (one position and a cache).

    Args:
        config: a `t2t_repro.config.Model`.
        rows: rows of the shared matrix; None takes `config.embedding_rows`. 40,960 for the paper's
            models, which gives base its 65,110,016 trainable parameters.
        dtype: Keras dtype policy, "float32" or "mixed_bfloat16".
    """

    def __init__(self, config, rows=None, dtype="float32", **kwargs):
        super().__init__(dtype=dtype, name="transformer", **kwargs)
        self.config = config
        self.embedding = SharedEmbedding(
            rows or config.embedding_rows, config.d_model, dtype=dtype, name="embedding"
        )
        self.source_positions = self._positions("source_positions")
        self.target_positions = self._positions("target_positions")
        self.source_dropout = keras.layers.Dropout(config.dropout, dtype=dtype)
        self.target_dropout = keras.layers.Dropout(config.dropout, dtype=dtype)
        self.encoder = [self._encoder_layer(index) for index in range(config.num_layers)]
        self.decoder = [self._decoder_layer(index) for index in range(config.num_layers)]
        self.build((None, None))

    def _positions(self, name):
        rows, policy = self.config.learned_positions, self.dtype_policy
        if rows:
            return LearnedPositions(rows, self.config.d_model, dtype=policy, name=name)
        return SinusoidalPositions(dtype=policy, name=name)

    def _encoder_layer(self, index):
        return EncoderLayer(
            self._attention("self_attention"),
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
        logits, _ = self.decode(shift_right(target), memory, source_mask, training=training)
        return logits

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

    def empty_cache(self, batch, length):
        """Room for `length` target positions: per layer {"key": [b, h, length, d_k], "value"}."""
        config = self.config
        shapes = {
            "key": (batch, config.num_heads, length, config.d_k),
            "value": (batch, config.num_heads, length, config.d_v),
        }
        return [
            {name: ops.zeros(shape, self.compute_dtype) for name, shape in shapes.items()}
            for _ in self.decoder
        ]

    def decode(self, previous, memory, source_mask, cache=None, position=0, training=False):
        """Logits of the next token after each of `previous`.

        Args:
            previous: [b, t], the target shifted right; with a cache [b, 1], the last token (PAD,
                which is the zero vector, at position 0).
            memory: from `memory`.
            source_mask: [b, 1, 1, s].
            cache: None, or `empty_cache` / the cache of the step before.
            position: the target position of previous[:, 0].
            training: whether dropout acts.

        Returns:
            (float32 logits [b, t, v], the cache of the next step).
        """
        x = self.target_positions(self.embedding(previous), position=position)
        x = self.target_dropout(x, training=training)
        num_queries = ops.shape(previous)[1]
        num_keys = num_queries if cache is None else ops.shape(cache[0]["key"])[2]
        target_mask = causal_mask(num_queries, num_keys, position)
        next_cache = []
        for index, layer in enumerate(self.decoder):
            x, keys_values = layer(
                x,
                memory[index],
                source_mask,
                target_mask,
                cache=None if cache is None else cache[index],
                position=position,
                training=training,
            )
            next_cache.append(keys_values)
        return self.embedding.logits(x), next_cache
