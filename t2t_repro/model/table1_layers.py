"""Table 1: the other layers that map n vectors to n vectors, on the contract of self-attention.

The contract: layer(x, attention_mask) -> like x, with x [b, n, d] and attention_mask bool
[b, 1, 1, n], True at the tokens and False at the padding (`attention.padding_mask`). Outputs at
tokens do not depend on what stands in the padding, nor on how much of it there is; outputs at
padding mean nothing. Each layer takes `name` and `dtype` like any of Keras, so that a Transformer
can be told to make one in every encoder layer:

    >>> layer = functools.partial(RestrictedSelfAttention, 64, d_model=512, num_heads=8, d_k=64,
    ...                           d_v=64)
    >>> model = Transformer(config.Model(), self_attention=layer)

Axes: b batch, n positions, d d_model; of restricted attention m blocks, p positions of a block,
h heads.
"""

import keras
from keras import ops

from t2t_repro.model.attention import MultiHeadAttention

# Positions of the smallest block. Products of fewer rows cost as much as of so many.
_LEAST_BLOCK = 16


class RestrictedSelfAttention(MultiHeadAttention):
    """Section 4: attention to "a neighborhood of size r ... centered around the output position".

    Position i sees the r positions i - r // 2 ... i - r // 2 + r - 1, one more before it than
    behind it if r is even, as far as they are there and no padding; so r = 2n - 1 is full
    attention. Time and memory are O(r n): the queries are cut into blocks of r / 2, and each block
    meets the keys of its own block and of the two beside it. The weights are those of
    `MultiHeadAttention`, and have the same paths.

    Args:
        r: positions that a position sees, itself among them.
        **attention: of `MultiHeadAttention`.
    """

    def __init__(self, r, **attention):
        super().__init__(**attention)
        self.r, self.block = r, max(r // 2, _LEAST_BLOCK)

    def call(self, x, attention_mask):
        """x [b, n, d], attention_mask [b, 1, 1, n] -> [b, n, d]."""
        batch, length, width = ops.shape(x)
        x = self._blocks(x)  # [b * m, p, d]
        keys_values = {
            name: self._with_neighbours(vectors, batch)
            for name, vectors in self.keys_values(x).items()
        }
        # As numbers: TensorFlow has no kernels on GPUs that roll what is boolean.
        is_token = ops.reshape(ops.cast(attention_mask, "float32"), (batch, length, 1))
        is_token = self._with_neighbours(
            self._blocks(is_token)[:, None], batch
        )  # [b * m, 1, 3p, 1]
        mask = (ops.transpose(is_token, (0, 1, 3, 2)) > 0) & self._band()  # [b * m, 1, p, 3p]
        return ops.reshape(self.attend(x, keys_values, mask), (batch, -1, width))[:, :length]

    def _blocks(self, x):
        """x [b, n, w] -> [b * m, p, w]; zeros behind the last position, and as a last block.

        The first block's neighbour before it is the last, and it finds no token there.
        """
        missing = self.block + -ops.shape(x)[1] % self.block
        padded = ops.pad(x, ((0, 0), (0, missing), (0, 0)))
        return ops.reshape(padded, (-1, self.block, x.shape[-1]))

    def _with_neighbours(self, x, batch):
        """What blocks [b * m, h, p, w] have, and those beside them in a ring -> [b * m, h, 3p, w].

        Rolled, and not cut out of a longer array: the gradients of slices took a third of the time.
        """
        _, heads, block, width = x.shape
        x = ops.reshape(x, (batch, -1, heads, block, width))  # [b, m, h, p, w]
        ring = ops.concatenate([ops.roll(x, 1, axis=1), x, ops.roll(x, -1, axis=1)], axis=3)
        return ops.reshape(ring, (-1, heads, 3 * block, width))

    def _band(self):
        """Which keys [3p] of the three blocks a query [p] of the middle one sees: bool [p, 3p]."""
        query = ops.arange(self.block, 2 * self.block, dtype="int32")
        key = ops.arange(3 * self.block, dtype="int32")
        offset = key[None, :] - query[:, None] + self.r // 2
        return (offset >= 0) & (offset < self.r)


class Recurrent(keras.layers.Layer):
    """A gated recurrent unit (Keras's GRU) from the first position to the last: O(n d^2).

    n operations one after another; padding leaves the state as it is.
    """

    def __init__(self, d_model, **kwargs):
        super().__init__(**kwargs)
        self.gru = keras.layers.GRU(
            d_model, return_sequences=True, dtype=self.dtype_policy, name="gru"
        )

    def build(self, x_shape):
        """x_shape: [b, n, d]."""
        self.gru.build(x_shape)
        self.built = True

    def call(self, x, attention_mask):
        """x [b, n, d], attention_mask [b, 1, 1, n] -> [b, n, d]."""
        return self.gru(x, mask=attention_mask[:, 0, 0, :])


class Convolution(keras.layers.Layer):
    """A convolution of k positions, centred on the output position: O(k n d^2). Padding is zero.

    Args:
        k: positions of the kernel.
        d_model: width of input and output.
        dilation: distance between these positions. 1, k, k^2 ... in the layers of a stack let
            log_k n of them connect all positions, where contiguous kernels need n / k (section 4).
    """

    kind = keras.layers.Conv1D

    def __init__(self, k, d_model, dilation=1, **kwargs):
        super().__init__(**kwargs)
        self.convolution = self.kind(
            d_model,
            k,
            padding="same",
            dilation_rate=dilation,
            dtype=self.dtype_policy,
            name="convolution",
        )

    def build(self, x_shape):
        """x_shape: [b, n, d]."""
        self.convolution.build(x_shape)
        self.built = True

    def call(self, x, attention_mask):
        """x [b, n, d], attention_mask [b, 1, 1, n] -> [b, n, d]."""
        is_token = ops.cast(attention_mask[:, 0, 0, :, None], x.dtype)  # [b, n, 1]
        return self.convolution(x * is_token)


class SeparableConvolution(Convolution):
    """The same for each of the d channels by itself, then a d x d matrix: O(k n d + n d^2)."""

    kind = keras.layers.SeparableConv1D
