"""Section 3.2: scaled dot-product attention, multi-head attention, and the masks.

Axes: b batch, h heads, q query positions, k key positions, d d_model.
A mask is boolean, True where a query may look, and broadcasts to [b, h, q, k].
"""

import keras
from keras import ops

from t2t_repro.model import fast_ops

PAD = 0  # the id of padding; a test checks that it equals pipelines.vocabulary.PAD


def padding_mask(ids):
    """Return a mask that hides padding from every query: ids [b, k] -> bool [b, 1, 1, k]."""
    return (ids != PAD)[:, None, None, :]


def causal_mask(length):
    """Return a mask with which query i sees keys 0 ... i (3.2.3): bool [1, 1, length, length]."""
    positions = ops.arange(length, dtype="int32")
    return (positions[None, :] <= positions[:, None])[None, None, :, :]


def ancestor_mask(slots):
    """Return a mask with which each hypothesis of a beam sees the cached keys of its own prefix.

    The hypotheses of a sentence are the queries of one batch row, and its cache has t * m keys:
    position p of slot j at p * m + j. No key moves when hypotheses are swapped or dropped;
    reordering the caches instead would read and write all of them at every step.

    Args:
        slots: int32 [b, m, t], the slot that each hypothesis had at each position; -1 at positions
            that are not written yet.

    Returns:
        bool [b, 1, m, t * m].
    """
    batch, beam_size, length = ops.shape(slots)
    own = slots[:, :, :, None] == ops.arange(beam_size, dtype="int32")  # [b, m, t, m]
    return ops.reshape(own, (batch, 1, beam_size, length * beam_size))


def attention_weights(query, keys, attention_mask):
    """Compute softmax(Q K^T / sqrt(d_k)) of equation 1, in float32 whatever the precision.

    A query that may look nowhere (the padding of a batch) gets equal weights instead of the NaN
    that -inf would give.

    Args:
        query: [b, h, q, d_k].
        keys: list of [b, h, ., d_k], k keys in all.
        attention_mask: bool, or integers that are 0 for False, broadcasts to [b, h, q, k]; or
            floats, 0 where a query may look and -1e9 elsewhere, which are added.

    Returns:
        float32 [b, h, q, k].
    """
    d_k = query.shape[-1]
    scaled = query * d_k**-0.5
    logits = [ops.matmul(scaled, ops.transpose(key, (0, 1, 3, 2))) for key in keys]
    logits = logits[0] if len(keys) == 1 else ops.concatenate(logits, axis=-1)
    logits = ops.cast(logits, "float32")  # [b, h, q, k]
    if keras.backend.is_float_dtype(attention_mask.dtype):
        logits = logits + ops.cast(attention_mask, "float32")
    else:
        logits = ops.where(ops.cast(attention_mask, "bool"), logits, -1e9)
    return ops.softmax(logits, axis=-1)


def _weighted_sum(weights, values):
    """Sum one or two parts of values [b, h, ., d_v] by weights [b, h, q, k] -> [b, h, q, d_v]."""
    if len(values) == 1:
        return ops.matmul(weights, values[0])
    first, last = values
    count = ops.shape(last)[2]
    own = ops.matmul(weights[..., -count:], last)
    return ops.matmul(weights[..., :-count], first) + own


@keras.saving.register_keras_serializable("t2t_repro")
class MultiHeadAttention(keras.layers.Layer):
    """Section 3.2.2: h heads of width d_k (queries, keys) and d_v (values), with biases.

    The paper does not say whether the four projections have biases; Table 3's parameter counts fit
    only with them. d_k and d_v are independent of d_model / h: rows (B) change d_k alone.

    Calling layer(x, attention_mask) computes self-attention, [b, q, d] -> [b, q, d]: the contract
    of every layer that can be the self-attention of an EncoderLayer. The decoder uses the two
    halves of that call: `keys_values` once for each position, and `attend` against all cached keys
    and values.

    All three also accept rows, [b * q, d], with `rows` = (b, q), either of which may be -1: the
    projections are then products of two matrices, without the dozen operations that TensorFlow
    needs to find the shape of a third axis.

    Args:
        d_model: width of input and output.
        num_heads: h.
        d_k: width of one head's queries and keys.
        d_v: width of one head's values.
        dropout: rate on the attention weights; 0 for translation, tuned for parsing (6.3).

    Examples:
        >>> layer = MultiHeadAttention(d_model=512, num_heads=8, d_k=64, d_v=64)
        >>> x = keras.random.normal((2, 5, 512))
        >>> tuple(layer(x, causal_mask(5)).shape)
        (2, 5, 512)
        >>> output, weights = layer(x, causal_mask(5), return_attention_scores=True)
        >>> tuple(weights.shape)
        (2, 8, 5, 5)
    """

    def __init__(self, d_model, num_heads, d_k, d_v, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.d_model, self.num_heads, self.d_k, self.d_v = d_model, num_heads, d_k, d_v
        self.query = self._projection(d_k, "query")
        self.key = self._projection(d_k, "key")
        self.value = self._projection(d_v, "value")
        self.output_projection = keras.layers.Dense(
            d_model, dtype=self.dtype_policy, name="output_projection"
        )
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def _projection(self, width, name):
        """Make one matrix for all heads, initialised like a part of a joint Q, K and V matrix.

        The joint matrix is Glorot uniform, as in the self-attention of the authors' first code, and
        in all attention of fairseq and PyTorch. If each matrix were drawn separately, its values
        would be larger by sqrt(2), and deep models would learn late: 4 + 4 layers of width 128 have
        a dev perplexity of 35 on Multi30k after 1,000 updates, and would have 55.
        """
        joint = self.num_heads * (2 * self.d_k + self.d_v)
        limit = (6 / (self.d_model + joint)) ** 0.5
        return keras.layers.Dense(
            self.num_heads * width,
            kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, x_shape):
        """Make the weights; x_shape [..., d] is the shape of the queries and of the memory."""
        for projection in (self.query, self.key, self.value):
            projection.build(x_shape)
        self.output_projection.build((*x_shape[:-1], self.num_heads * self.d_v))
        self.built = True

    def call(self, x, attention_mask, rows=None, return_attention_scores=False):
        """Compute self-attention.

        Args:
            x: [b, q, d], or rows.
            attention_mask: [b or 1, 1, 1 or q, q], see `attention_weights`.
            rows: (b, q) if x is rows.
            return_attention_scores: whether to return the weights too, as Keras's own layer does.

        Returns:
            like x, or (like x, weights float32 [b, h, q, q]).
        """
        query, key, value = self._projected(x, rows)
        parts, shape = [{"key": key, "value": value}], (-1,) if rows else ops.shape(x)[:-1]
        output, weights = self._attend(query, parts, attention_mask, shape)
        return (output, weights) if return_attention_scores else output

    def keys_values(self, memory, rows=None):
        """Project memory [b, k, d] to {"key": [b, h, k, d_k], "value": [b, h, k, d_v]}."""
        self._build_for(memory)
        return {
            "key": self._split_heads(self.key(memory), rows, self.d_k),
            "value": self._split_heads(self.value(memory), rows, self.d_v),
        }

    def attend(self, x, parts, attention_mask, rows=None):
        """Attend from x, which the queries are computed from, to the given keys and values.

        Args:
            x: [b, q, d], or rows.
            parts: list of keys and values, each as `keys_values` returns them: one, or two whose
                positions follow each other. A cache and what is new need no copy into one.
            attention_mask: broadcasts to [b, h, q, k], see `attention_weights`.
            rows: (b, q) if x is rows.

        Returns:
            (output like x, attention weights float32 [b, h, q, k] before dropout).
        """
        self._build_for(x)
        query = self._split_heads(self.query(x), rows, self.d_k)
        return self._attend(query, parts, attention_mask, (-1,) if rows else ops.shape(x)[:-1])

    def _build_for(self, x):
        if not self.built:  # Keras builds a layer only when it is called
            self.build(x.shape)

    def _projected(self, x, rows):
        """Project x to queries, keys and values, each [b, h, n, .]."""
        layers, widths = (self.query, self.key, self.value), (self.d_k, self.d_k, self.d_v)
        is_quantized = self.query.quantization_mode is not None  # a kernel alone is codes then
        parts = [each(x) for each in layers] if is_quantized else self._one_product(x, layers)
        return [self._split_heads(p, rows, w) for p, w in zip(parts, widths, strict=True)]

    def _one_product(self, x, layers):
        """Apply the three projections to x by a single product: [queries, keys, values]."""
        kernel = ops.concatenate([ops.cast(one.kernel, x.dtype) for one in layers], axis=1)
        bias = ops.concatenate([ops.cast(one.bias, x.dtype) for one in layers], axis=0)
        keys = self.num_heads * self.d_k
        ends = 3 if self.d_k == self.d_v else [keys, 2 * keys]  # equal parts take fewer operations
        return ops.split(ops.add(ops.matmul(x, kernel), bias), ends, axis=-1)

    def _attend(self, query, parts, attention_mask, shape):
        """Attend from queries [b, h, q, d_k]; `shape` is the output's, without its last axis."""
        keys, values = ([part[name] for part in parts] for name in ("key", "value"))
        weights = attention_weights(query, keys, attention_mask)
        fusible = (query, keys[0], values[0], attention_mask)
        if len(keys) == 1 and not self.dropout.rate and fast_ops.fuses_attention(*fusible):
            # In a compiled step nothing reads the weights then, and XLA leaves them out.
            heads = fast_ops.attention(*fusible)
        else:
            heads = _weighted_sum(self.dropout(ops.cast(weights, query.dtype)), values)
        heads = ops.transpose(heads, (0, 2, 1, 3))  # [b, h, q, d_v] -> [b, q, h, d_v]
        joined = ops.reshape(heads, (*shape, self.num_heads * self.d_v))
        return self.output_projection(joined), weights

    def _split_heads(self, x, rows, width):
        """Reshape x [b, n, h * width], or rows, to [b, h, n, width]."""
        # -1 would be 1 in an empty batch of sentences; with rows there is no empty batch.
        split = ops.reshape(x, (*(rows or ops.shape(x)[:2]), self.num_heads, width))
        return ops.transpose(split, (0, 2, 1, 3))

    def get_config(self):
        """Return the constructor's arguments, for Keras's serialisation."""
        return super().get_config() | {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_k": self.d_k,
            "d_v": self.d_v,
            "dropout": self.dropout.rate,
        }


def extend_cache(cache, new):
    """Return the cache with `new`, the keys and values of a beam, appended.

    Both are {"key": [b, h, k, d_k], "value": [b, h, k, d_v]}. A growing cache takes less time than
    one of full length, although all of it is copied at each step: attention covers only the
    positions written so far, and TensorFlow also copies the cache for a write in place (at batch 64
    concatenation took 0.37 ms on average over 30 steps, a scatter 0.72).
    """
    (part,) = cache
    return [{name: ops.concatenate([part[name], new[name]], axis=2) for name in part}]


def write_cache(cache, new, position):
    """Return a cache of fixed size with `new`, the keys and values of a beam, at `position`.

    This is for JAX and XLA, where no shape may change. `extend_cache` describes the shapes.
    """
    (part,) = cache
    return [{name: _write(part[name], new[name], position) for name in part}]


def _write(cache, new, position):
    batch, heads, count, width = ops.shape(cache)
    size = ops.shape(new)[2] * width  # numbers at one position: m keys
    room = count * width // size
    flat = ops.reshape(cache, (batch * heads * room, size))
    rows = ops.arange(batch * heads, dtype="int32")[:, None] * room + position  # [b * h, 1]
    written = ops.scatter_update(flat, rows, ops.reshape(new, (batch * heads, size)))
    return ops.reshape(written, (batch, heads, count, width))
