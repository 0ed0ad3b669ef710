"""Sections 3.1 and 3.3 to 3.5: add and norm, feed-forward, the shared matrix, positions.

Axes: b batch, n positions, d d_model, v rows of the shared matrix.
"""

import keras
from keras import ops

from t2t_repro.model.attention import PAD


class AddNorm(keras.layers.Layer):
    """LayerNorm(x + Dropout(sublayer(x))): post-norm (3.1, 5.4).

    The paper does not state LayerNorm's epsilon; 1e-6 is the authors' first code.
    """

    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.norm = keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=self.dtype_policy, name="norm"
        )

    def build(self, x_shape):
        """x_shape: [..., d]."""
        self.norm.build(x_shape)
        self.built = True

    def call(self, x, sublayer_output):
        """Both [b, n, d] -> [b, n, d]."""
        return self.norm(x + self.dropout(sublayer_output))


class FeedForward(keras.layers.Layer):
    """Equation 2: max(0, x W1 + b1) W2 + b2, the same at every position."""

    def __init__(self, d_model, d_ff, **kwargs):
        super().__init__(**kwargs)
        self.d_ff = d_ff
        self.inner = keras.layers.Dense(
            d_ff, activation="relu", dtype=self.dtype_policy, name="inner"
        )
        self.outer = keras.layers.Dense(d_model, dtype=self.dtype_policy, name="outer")

    def build(self, x_shape):
        """x_shape: [..., d]."""
        self.inner.build(x_shape)
        self.outer.build((*x_shape[:-1], self.d_ff))
        self.built = True

    def call(self, x):
        """[b, n, d] -> [b, n, d]."""
        return self.outer(self.inner(x))


class SharedEmbedding(keras.layers.Layer):
    """Section 3.4: one matrix for source, target and the linear map before the softmax.

    Looked-up vectors are multiplied by sqrt(d_model), and PAD is looked up as the zero vector, so
    that a target shifted right by one PAD starts from zeros, as in the authors' first code (no BOS
    piece). The matrix is drawn from N(0, 1 / d_model), so a vector enters the stack with variance 1
    and the logits start with variance 1. The output map has no bias.
    """

    def __init__(self, rows, d_model, **kwargs):
        super().__init__(**kwargs)
        self.d_model = d_model
        self.matrix = self.add_weight(
            name="matrix",
            shape=(rows, d_model),
            initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )

    def call(self, ids):
        """Ids [b, n] -> vectors [b, n, d]."""
        vectors = ops.take(self.matrix, ids, axis=0) * self.d_model**0.5
        return vectors * ops.cast(ids != PAD, vectors.dtype)[:, :, None]

    def logits(self, x):
        """X [..., d] -> float32 [..., v], whatever the precision (softmax and loss want it)."""
        matrix = ops.cast(self.matrix, x.dtype)
        return ops.cast(ops.matmul(x, ops.transpose(matrix)), "float32")

    def output_map(self, bias):
        """A function x [n, d] -> float32 logits [n, rows], with a bias [rows] added.

        For many products with one matrix. In float32 the transposed matrix is laid out once: a
        product of 4 rows with 32,000 x 512 numbers takes 2.7 ms then, else 4.0. In bfloat16 it
        takes 2.7 ms then, else 2.0. Rows of the map beyond those of the matrix are zero.
        """
        rows = len(bias)
        matrix = ops.cast(self.matrix, self.compute_dtype)[:rows]
        matrix = ops.pad(matrix, ((0, rows - matrix.shape[0]), (0, 0)))
        bias = ops.convert_to_tensor(bias, "float32")
        if self.compute_dtype == "float32":
            kernel = ops.transpose(matrix)
            return lambda x: ops.matmul(x, kernel) + bias  # one operation
        return lambda x: ops.cast(ops.matmul(x, ops.transpose(matrix)), "float32") + bias


class SinusoidalPositions(keras.layers.Layer):
    """Section 3.5, interleaved as printed: sine on even, cosine on odd dimensions.

    PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos(the same). No weights.
    """

    def call(self, x, position=0):
        """x [b, n, d] whose first vector stands at `position` -> x + PE, [b, n, d]."""
        length, d_model = ops.shape(x)[1], x.shape[-1]
        return x + ops.cast(sinusoids(length, d_model, position), x.dtype)[None]


def sinusoids(length, d_model, position=0):
    """PE of the positions `position` ... `position` + `length` - 1: float32 [n, d]."""
    positions = ops.cast(position + ops.arange(length, dtype="int32"), "float32")
    exponents = ops.arange(0, d_model, 2, dtype="float32") / d_model
    angles = positions[:, None] / ops.power(10000.0, exponents)[None, :]  # [n, d / 2]
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # [n, d / 2, 2]
    return ops.reshape(pairs, (length, d_model))


class LearnedPositions(keras.layers.Layer):
    """Table 3 (E): a learned vector for each position instead of the sinusoids.

    Positions beyond the table use its last row; the paper does not say what it did there.
    """

    def __init__(self, rows, d_model, **kwargs):
        super().__init__(**kwargs)
        self.rows = rows
        self.table = self.add_weight(
            name="table",
            shape=(rows, d_model),
            initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )

    def call(self, x, position=0):
        """x [b, n, d] whose first vector stands at `position` -> x + table rows, [b, n, d]."""
        positions = position + ops.arange(ops.shape(x)[1], dtype="int32")
        return x + ops.take(self.table, ops.minimum(positions, self.rows - 1), axis=0)[None]
