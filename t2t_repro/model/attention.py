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


def causal_mask(length):
    """Lets query i see the keys 0 ... i (3.2.3): bool [1, 1, length, length]."""
    positions = ops.arange(length, dtype="int32")
    return (positions[None, :] <= positions[:, None])[None, None, :, :]


def ancestor_mask(slots):
    """Lets each hypothesis of a beam see the cached keys that it descends from.

    The hypotheses of a sentence are the queries of one batch row, and its cache has t * m keys:
    position p of slot j at p * m + j. Nothing in it moves when hypotheses are swapped or dropped;
    to reorder the caches instead would read and write all of them at every step.

    slots int32 [b, m, t]: the slot that a hypothesis had at each position, -1 where nothing is
    written yet. Returns bool [b, 1, m, t * m].
    """
    batch, beam_size, length = ops.shape(slots)
    own = slots[:, :, :, None] == ops.arange(beam_size, dtype="int32")  # [b, m, t, m]
    return ops.reshape(own, (batch, 1, beam_size, length * beam_size))


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
    `keys_values` once for each position and `attend` against all that were kept (the cache). Both
    also take rows, [b * q, d], as search does: the projections are then products of two matrices
    without the dozen operations that find out the shape of a third axis.

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
        self.query = self._projection(d_model, d_k, "query")
        self.key = self._projection(d_model, d_k, "key")
        self.value = self._projection(d_model, d_v, "value")
        self.output_projection = keras.layers.Dense(
            d_model, dtype=self.dtype_policy, name="output_projection"
        )
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.record = None  # a function that gets the weights [b, h, q, k] of each call

    def _projection(self, d_model, width, name):
        """One matrix for all heads, drawn as a part of one for queries, keys and values.

        That one is Glorot uniform, as in the self-attention of the authors' first code, and
        everywhere in fairseq and PyTorch. By itself each would be wider by sqrt(2), and models of
        some depth learn late: 4 + 4 layers of width 128 have a dev perplexity of 35 on Multi30k
        after 1,000 updates, and would have 55.
        """
        joined = self.num_heads * (2 * self.d_k + self.d_v)
        limit = (6 / (d_model + joined)) ** 0.5
        return keras.layers.Dense(
            self.num_heads * width,
            kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, x_shape):
        """x_shape [..., d] is that of the queries and of the memory."""
        for projection in (self.query, self.key, self.value):
            projection.build(x_shape)
        self.output_projection.build((*x_shape[:-1], self.num_heads * self.d_v))
        self.built = True

    def call(self, x, attention_mask):
        """Self-attention: x [b, q, d], attention_mask [b or 1, 1, 1 or q, q] -> [b, q, d]."""
        return self.attend(x, self.keys_values(x), attention_mask)

    def keys_values(self, memory, batch=None):
        """Memory [b, k, d] -> {"key": [b, h, k, d_k], "value": [b, h, k, d_v]}.

        Rows, [b * k, d], need `batch`, b.
        """
        batch = ops.shape(memory)[0] if batch is None else batch
        return {
            "key": self._split_heads(self.key(memory), batch, self.d_k),
            "value": self._split_heads(self.value(memory), batch, self.d_v),
        }

    def attend(self, x, keys_values, attention_mask):
        """Queries from x [b, q, d] or [b * q, d] over the given keys and values -> like x."""
        query = self._split_heads(self.query(x), ops.shape(keys_values["key"])[0], self.d_k)
        weights = attention_weights(query, keys_values["key"], attention_mask)
        if self.record is not None:
            self.record(weights)
        weights = self.dropout(ops.cast(weights, query.dtype))
        heads = ops.matmul(weights, keys_values["value"])  # [b, h, q, d_v]
        heads = ops.transpose(heads, (0, 2, 1, 3))  # [b, q, h, d_v]
        joined = ops.reshape(heads, (*ops.shape(x)[:-1], self.num_heads * self.d_v))
        return self.output_projection(joined)

    def _split_heads(self, x, batch, width):
        """x [b, n, h * width] or [b * n, h * width] -> [b, h, n, width]."""
        # -1 would be 1 in an empty batch of sentences; with rows there is no empty batch.
        count = ops.shape(x)[1] if len(x.shape) == 3 else -1
        split = ops.reshape(x, (batch, count, self.num_heads, width))
        return ops.transpose(split, (0, 2, 1, 3))


def extend_cache(cache, new):
    """The cache with `new`, the keys and values of a beam, behind it; {"key": [b, h, k, d_k], ...}.

    A cache that grows takes less time than one of full length, though all of it is copied at each
    step: attention is over what is written, and TensorFlow copies for a write in place, too (at
    batch 64 concatenation took 0.37 ms on the average of 30 steps, a scatter 0.72).
    """
    return {name: ops.concatenate([cache[name], new[name]], axis=2) for name in cache}


def write_cache(cache, new, position):
    """The same for a cache that has room for all: `new` is written at `position`.

    For JAX and XLA, where no shape may change.
    """
    return {name: _write(cache[name], new[name], position) for name in cache}


def _write(cache, new, position):
    batch, heads, count, width = ops.shape(cache)
    size = ops.shape(new)[2] * width  # of what one position has: m keys
    room = count * width // size
    flat = ops.reshape(cache, (batch * heads * room, size))
    rows = ops.arange(batch * heads, dtype="int32")[:, None] * room + position  # [b * h, 1]
    written = ops.scatter_update(flat, rows, ops.reshape(new, (batch * heads, size)))
    return ops.reshape(written, (batch, heads, count, width))
