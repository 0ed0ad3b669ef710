"""Table 1: the other layers that map n vectors to n vectors, on the contract of self-attention.

The contract: layer(x, attention_mask) -> like x, with x [b, n, d] and attention_mask bool
[b, 1, 1, n], True at tokens and False at padding (`attention.padding_mask`). Outputs at tokens
depend neither on the ids in the padding nor on its length; outputs at padding are meaningless.
`get_config` must describe the layer, because a Transformer puts a copy into every encoder layer:

    layer = RestrictedSelfAttention(r=64, d_model=512, num_heads=8, d_k=64, d_v=64)
    model = Transformer(config.Model(), self_attention=layer)

Axes: b batch, n positions, d d_model; in restricted attention also m blocks, p positions in a
block, h heads.
"""

import keras
from keras import ops

from t2t_repro.model.attention import MultiHeadAttention

# Positions of the smallest block: a product of fewer rows takes as long as one of 16.
_LEAST_BLOCK = 16


@keras.saving.register_keras_serializable("t2t_repro")
class RestrictedSelfAttention(MultiHeadAttention):
    """Section 4: attention to "a neighborhood of size r ... centered around the output position".

    Position i sees the r positions i - r // 2 ... i - r // 2 + r - 1 (one more before it than after
    it if r is even) that exist and are not padding; r = 2n - 1 is full attention. Time and memory
    are O(r n): the queries are cut into blocks of r / 2, and each block meets the keys of its own
    block and of the two neighbouring ones. The trainable weights are those of `MultiHeadAttention`,
    and have the same paths. `return_attention_scores` is not supported: no n x n weights exist.

    Args:
        r: number of positions that each position sees, itself included.
        **attention: arguments of `MultiHeadAttention`.

    Raises:
        ValueError: r is less than 1.

    Examples:
        >>> layer = RestrictedSelfAttention(r=4, d_model=8, num_heads=2, d_k=4, d_v=4)
        >>> x, is_token = keras.random.normal((1, 50, 8)), np.ones((1, 1, 1, 50), bool)
        >>> tuple(layer(x, is_token).shape)
        (1, 50, 8)
    """

    def __init__(self, r, **attention):
        super().__init__(**attention)
        if r < 1:
            raise ValueError(f"r: wanted at least 1, got {r}")
        self.r, self.block = r, max(r // 2, _LEAST_BLOCK)

    def get_config(self):
        """Return the constructor's arguments, for Keras's serialisation."""
        return super().get_config() | {"r": self.r}

    def call(self, x, attention_mask):
        """Attend within neighbourhoods: x [b, n, d], attention_mask [b, 1, 1, n] -> [b, n, d]."""
        batch, length, width = ops.shape(x)
        x = self._blocks(x)  # [b * m, p, d]
        keys_values = {
            name: self._with_neighbours(vectors, batch)
            for name, vectors in self.keys_values(x).items()
        }
        # Numbers, because TensorFlow has no GPU kernel that rolls booleans.
        is_token = ops.reshape(ops.cast(attention_mask, "float32"), (batch, length, 1))
        is_token = self._with_neighbours(
            self._blocks(is_token)[:, None], batch
        )  # [b * m, 1, 3p, 1]
        mask = (ops.transpose(is_token, (0, 1, 3, 2)) > 0) & self._band()  # [b * m, 1, p, 3p]
        output, _ = self.attend(x, [keys_values], mask)  # [b * m, p, d]
        return ops.reshape(output, (batch, -1, width))[:, :length]

    def _blocks(self, x):
        """Cut x [b, n, w] into blocks [b * m, p, w]; pad with zeros and append a block of zeros.

        The last block is the first block's neighbour on the left, which must hold no token.
        """
        missing = self.block + -ops.shape(x)[1] % self.block
        padded = ops.pad(x, ((0, 0), (0, missing), (0, 0)))
        return ops.reshape(padded, (-1, self.block, x.shape[-1]))

    def _with_neighbours(self, x, batch):
        """Join each block [b * m, h, p, w] with its neighbours in a ring -> [b * m, h, 3p, w].

        Blocks are rolled, not sliced from a longer array: gradients of slices took a third of the
        time.
        """
        _, heads, block, width = x.shape
        x = ops.reshape(x, (batch, -1, heads, block, width))  # [b, m, h, p, w]
        ring = ops.concatenate([ops.roll(x, 1, axis=1), x, ops.roll(x, -1, axis=1)], axis=3)
        return ops.reshape(ring, (-1, heads, 3 * block, width))

    def _band(self):
        """Return which keys of three blocks each query of the middle block sees: bool [p, 3p]."""
        query = ops.arange(self.block, 2 * self.block, dtype="int32")
        key = ops.arange(3 * self.block, dtype="int32")
        offset = key[None, :] - query[:, None] + self.r // 2
        return (offset >= 0) & (offset < self.r)


@keras.saving.register_keras_serializable("t2t_repro")
class Recurrent(keras.layers.Layer):
    """A gated recurrent unit (Keras's GRU) from the first position to the last: O(n d^2).

    It takes n sequential operations; padding leaves the state unchanged.

    Args:
        d_model: width of input and output.

    Examples:
        >>> x, is_token = keras.random.normal((1, 5, 8)), np.ones((1, 1, 1, 5), bool)
        >>> tuple(Recurrent(d_model=8)(x, is_token).shape)
        (1, 5, 8)
    """

    def __init__(self, d_model, **kwargs):
        super().__init__(**kwargs)
        self.d_model = d_model
        self.gru = keras.layers.GRU(
            d_model, return_sequences=True, dtype=self.dtype_policy, name="gru"
        )

    def get_config(self):
        """Return the constructor's arguments, for Keras's serialisation."""
        return super().get_config() | {"d_model": self.d_model}

    def build(self, x_shape):
        """Make the weights; x_shape [b, n, d]."""
        self.gru.build(x_shape)
        self.built = True

    def call(self, x, attention_mask):
        """Run over the positions: x [b, n, d], attention_mask [b, 1, 1, n] -> [b, n, d]."""
        return self.gru(x, mask=attention_mask[:, 0, 0, :])


@keras.saving.register_keras_serializable("t2t_repro")
class Convolution(keras.layers.Layer):
    """A convolution of k positions, centred on the output position: O(k n d^2). Padding is zero.

    Args:
        k: positions of the kernel.
        d_model: width of input and output.
        dilation: distance between the kernel's positions. With 1, k, k^2 ... in the layers of a
            stack, O(log_k n) layers connect all positions; contiguous kernels need O(n / k)
            (section 4). For n = 256 and k = 7 these are 6 and 85 layers.

    Examples:
        >>> x, is_token = keras.random.normal((1, 5, 8)), np.ones((1, 1, 1, 5), bool)
        >>> tuple(Convolution(k=3, d_model=8)(x, is_token).shape)
        (1, 5, 8)
    """

    kind = keras.layers.Conv1D

    def __init__(self, k, d_model, dilation=1, **kwargs):
        super().__init__(**kwargs)
        self.k, self.d_model, self.dilation = k, d_model, dilation
        self.convolution = self.kind(
            d_model,
            k,
            padding="same",
            dilation_rate=dilation,
            dtype=self.dtype_policy,
            name="convolution",
        )

    def get_config(self):
        """Return the constructor's arguments, for Keras's serialisation."""
        own = {"k": self.k, "d_model": self.d_model, "dilation": self.dilation}
        return super().get_config() | own

    def build(self, x_shape):
        """Make the weights; x_shape [b, n, d]."""
        self.convolution.build(x_shape)
        self.built = True

    def call(self, x, attention_mask):
        """Convolve: x [b, n, d], attention_mask [b, 1, 1, n] -> [b, n, d]."""
        is_token = ops.cast(attention_mask[:, 0, 0, :, None], x.dtype)  # [b, n, 1]
        return self.convolution(x * is_token)


@keras.saving.register_keras_serializable("t2t_repro")
class SeparableConvolution(Convolution):
    """A `Convolution` of each of the d channels alone, then a d x d matrix: O(k n d + n d^2).

    Examples:
        >>> x, is_token = keras.random.normal((1, 5, 8)), np.ones((1, 1, 1, 5), bool)
        >>> tuple(SeparableConvolution(k=3, d_model=8)(x, is_token).shape)
        (1, 5, 8)
    """

    kind = keras.layers.SeparableConv1D
