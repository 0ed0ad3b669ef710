"""Section 3.2: scaled dot-product attention, multi-head attention, and the masks.

Axes: b batch, h heads, q query positions, k key positions, d d_model.
A mask is boolean, True where a query may look, and broadcasts to [b, h, q, k].
"""

import keras
from keras import ops

PAD = 0  # the id that fills a batch; equal to pipelines.vocabulary.PAD, which a test holds


def padding_mask(ids):
    """Hides padding from every query: ids [b, k] -> bool [b, 1, 1, k]."""
    return (ids != PAD)[:, None, None, :]


def causal_mask(num_queries, num_keys, position=0):
    """Lets query i, which stands at `position` + i, see the keys 0 ... `position` + i (3.2.3).

    Returns bool [1, 1, q, k]. With a cache `position` is the number of steps already taken, and the
    same rule also hides the part of the cache that is not written yet.
    """
    queries = position + ops.arange(num_queries, dtype="int32")[:, None]
    keys = ops.arange(num_keys, dtype="int32")[None, :]
    return (keys <= queries)[None, None, :, :]


def attention_weights(query, key, attention_mask):
    """softmax(Q K^T / sqrt(d_k)) of equation 1, computed in float32 whatever the precision.

    query [b, h, q, d_k], key [b, h, k, d_k] -> float32 [b, h, q, k]. A query that may look nowhere
    (the padding of a batch) gets equal weights instead of the NaN that -inf would give.
    """
    d_k = query.shape[-1]
    logits = ops.matmul(query * d_k**-0.5, ops.transpose(key, (0, 1, 3, 2)))  # [b, h, q, k]
    logits = ops.where(attention_mask, ops.cast(logits, "float32"), -1e9)
    return ops.softmax(logits, axis=-1)


class MultiHeadAttention(keras.layers.Layer):
    """Section 3.2.2: h heads of width d_k (queries, keys) and d_v (values), with biases.

    The paper does not say whether the four projections have biases; Table 3's parameter counts fit
    only with them. d_k and d_v are independent of d_model / h: rows (B) change d_k alone.

    Called as layer(x, attention_mask) it is self-attention, [b, q, d] -> [b, q, d], the contract of
    every layer that can stand in an EncoderLayer. The decoder calls the two halves by themselves:
    `keys_values` once for each position and `attend` against all that were kept (the cache).

    Args:
        d_model: width of input and output.
        num_heads: h.
        d_k: width of one head's queries and keys.
        d_v: width of one head's values.
        dropout: rate on the attention weights; 0 for translation, tuned for parsing (6.3).
    """

    def __init__(self, d_model, num_heads, d_k, d_v, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.d_k, self.d_v = num_heads, d_k, d_v
        # One matrix for all heads; Glorot uniform, Keras's default, as in the authors' first code.
        self.query = keras.layers.Dense(num_heads * d_k, dtype=self.dtype_policy, name="query")
        self.key = keras.layers.Dense(num_heads * d_k, dtype=self.dtype_policy, name="key")
        self.value = keras.layers.Dense(num_heads * d_v, dtype=self.dtype_policy, name="value")
        self.output_projection = keras.layers.Dense(
            d_model, dtype=self.dtype_policy, name="output_projection"
        )
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, x_shape):
        """x_shape [..., d] is that of the queries and of the memory."""
        for projection in (self.query, self.key, self.value):
            projection.build(x_shape)
        self.output_projection.build((*x_shape[:-1], self.num_heads * self.d_v))
        self.built = True

    def call(self, x, attention_mask):
        """Self-attention: x [b, q, d], attention_mask [b or 1, 1, 1 or q, q] -> [b, q, d]."""
        return self.attend(x, self.keys_values(x), attention_mask)

    def keys_values(self, memory):
        """memory [b, k, d] -> {"key": [b, h, k, d_k], "value": [b, h, k, d_v]}."""
        return {
            "key": self._split_heads(self.key(memory), self.d_k),
            "value": self._split_heads(self.value(memory), self.d_v),
        }

    def attend(self, x, keys_values, attention_mask):
        """Queries from x [b, q, d] over the given keys and values -> [b, q, d]."""
        query = self._split_heads(self.query(x), self.d_k)
        weights = attention_weights(query, keys_values["key"], attention_mask)
        weights = self.dropout(ops.cast(weights, query.dtype))
        heads = ops.matmul(weights, keys_values["value"])  # [b, h, q, d_v]
        heads = ops.transpose(heads, (0, 2, 1, 3))  # [b, q, h, d_v]
        joined = ops.reshape(heads, (*ops.shape(heads)[:2], self.num_heads * self.d_v))
        return self.output_projection(joined)

    def _split_heads(self, x, width):
        """x [b, n, h * width] -> [b, h, n, width]."""
        split = ops.reshape(x, (*ops.shape(x)[:2], self.num_heads, width))
        return ops.transpose(split, (0, 2, 1, 3))


def write_cache(cache, new, position):
    """The cache with `new` at `position`; both are values, nothing is changed in place.

    cache {"key": [b, h, length, d_k], "value": [b, h, length, d_v]}; new the same, length 1.
    """
    at = ops.arange(ops.shape(cache["key"])[2], dtype="int32")[None, None, :, None] == position
    return {name: ops.where(at, new[name], cache[name]) for name in cache}
