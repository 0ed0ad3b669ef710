"""Sections 3.1 and 3.3 to 3.5: add and norm, feed-forward, the shared matrix, positions.

Axes: b batch, n positions, d d_model, v rows of the shared matrix.
"""

import keras
from keras import ops

from t2t_repro.model import fast_ops
from t2t_repro.model.attention import PAD


@keras.saving.register_keras_serializable("t2t_repro")
class Dropout(keras.layers.Dropout):
    """Dropout (5.4) with the random numbers of `fast_ops.dropout_mask`.

    Args:
        rate: P_drop.
        noise_shape: shape of the random numbers, as for Keras's own layer: None where it is x's.

    Examples:
        >>> tuple(Dropout(0.1)(keras.random.normal((2, 5, 8)), training=True).shape)
        (2, 5, 8)
    """

    def call(self, x, training=False):
        """Drop numbers of x [..., d], and scale the others, if `training`."""
        if not (training and self.rate):
            return x
        factor = fast_ops.dropout_factor(self.mask(ops.shape(x)), self.rate)
        return ops.cast(ops.cast(x, "float32") * factor, x.dtype)

    def mask(self, shape):
        """Draw which numbers are kept: bool that broadcasts to that shape."""
        if self.noise_shape:
            shape = [
                n if own is None else own for n, own in zip(shape, self.noise_shape, strict=True)
            ]
        return fast_ops.dropout_mask(shape, self.rate, self.seed_generator)


@keras.saving.register_keras_serializable("t2t_repro")
class AddNorm(keras.layers.Layer):
    """LayerNorm(x + Dropout(Sublayer(x))): post-norm (3.1, 5.4).

    The paper does not state LayerNorm's epsilon; 1e-6 is the value in the authors' first code.

    Args:
        dropout: P_drop on the sub-layer's output.

    Examples:
        >>> add_norm, feed_forward = AddNorm(dropout=0.1), FeedForward(d_model=8, d_ff=32)
        >>> x = keras.random.normal((2, 5, 8))
        >>> tuple(add_norm(x, feed_forward(add_norm.sublayer_input(x))).shape)
        (2, 5, 8)
    """

    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = Dropout(dropout, dtype=self.dtype_policy)
        self.norm = keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=self.dtype_policy, name="norm"
        )

    def build(self, x_shape):
        """Make the weights; x_shape [..., d]."""
        self.norm.build(x_shape)
        self.built = True

    def sublayer_input(self, x):
        """Return the input of the sub-layer: x itself; a pre-norm layer would normalise x here."""
        return x

    def call(self, x, sublayer_output, training=False):
        """Add and normalise, both [b, n, d] -> [b, n, d]."""
        if not (training and self.dropout.rate):
            return self.norm(x + sublayer_output)
        # Copies, because a gradient of our own takes no variables.
        gamma, beta = (
            ops.cast(ops.copy(each), "float32") for each in (self.norm.gamma, self.norm.beta)
        )
        rate, kept = self.dropout.rate, self.dropout.mask(ops.shape(x))
        return fast_ops.add_norm(x, sublayer_output, kept, rate, gamma, beta, self.norm.epsilon)

    def get_config(self):
        """Return the constructor's arguments, for Keras's serialisation."""
        return super().get_config() | {"dropout": self.dropout.rate}


@keras.saving.register_keras_serializable("t2t_repro")
class FeedForward(keras.layers.Layer):
    """Equation 2: max(0, x W1 + b1) W2 + b2, the same at every position.

    Args:
        d_model: width of input and output.
        d_ff: width of the inner layer.

    Examples:
        >>> tuple(FeedForward(d_model=8, d_ff=32)(keras.random.normal((2, 5, 8))).shape)
        (2, 5, 8)
    """

    def __init__(self, d_model, d_ff, **kwargs):
        super().__init__(**kwargs)
        self.d_model, self.d_ff = d_model, d_ff
        self.inner = keras.layers.Dense(
            d_ff, activation="relu", dtype=self.dtype_policy, name="inner"
        )
        self.outer = keras.layers.Dense(d_model, dtype=self.dtype_policy, name="outer")

    def build(self, x_shape):
        """Make the weights; x_shape [..., d]."""
        self.inner.build(x_shape)
        self.outer.build((*x_shape[:-1], self.d_ff))
        self.built = True

    def call(self, x):
        """Transform each position, [b, n, d] -> [b, n, d]."""
        return self.outer(self.inner(x))

    def get_config(self):
        """Return the constructor's arguments, for Keras's serialisation."""
        return super().get_config() | {"d_model": self.d_model, "d_ff": self.d_ff}


@keras.saving.register_keras_serializable("t2t_repro")
class SharedEmbedding(keras.layers.Layer):
    """Section 3.4: one matrix for source, target and the linear map before the softmax.

    Looked-up vectors are multiplied by sqrt(d_model), and PAD is looked up as the zero vector, so
    that a target shifted right by one PAD starts from zeros, as in the authors' first code (no BOS
    piece). The matrix is drawn from N(0, 1 / d_model), so a vector enters the stack with variance 1
    and the logits start with variance 1. The output map has no bias.

    Args:
        rows: v, rows of the matrix.
        d_model: width of a vector.

    Examples:
        >>> embedding = SharedEmbedding(rows=100, d_model=8)
        >>> vectors = embedding(np.array([[5, 7, 1]]))
        >>> tuple(vectors.shape), tuple(embedding.logits(vectors).shape)
        ((1, 3, 8), (1, 3, 100))
    """

    def __init__(self, rows, d_model, **kwargs):
        # A float id above 256 would be another one in bfloat16, so Keras must not cast the input.
        super().__init__(autocast=False, **kwargs)
        self.rows, self.d_model = rows, d_model
        self.matrix = self.add_weight(
            name="matrix",
            shape=(rows, d_model),
            initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
            autocast=False,  # rows are cast after they are looked up, not the whole matrix before
        )

    def call(self, ids, reverse=False):
        """Look up ids [b, n] -> vectors [b, n, d]; with `reverse` do what `logits` does."""
        if reverse:
            return self._logits(ids)
        ids = ops.cast(ids, "int32")
        factor = ops.where(ids != PAD, self.d_model**0.5, 0.0)[:, :, None]
        vectors = ops.take(self.matrix, ids, axis=0)
        return ops.cast(vectors * ops.cast(factor, vectors.dtype), self.compute_dtype)

    def logits(self, x):
        """Map x [..., d] to float32 [..., v]; the product is in the type of x."""
        return self(x, reverse=True)  # a call, so that a functional model has the layer twice

    def _logits(self, x):
        matrix = ops.cast(self.matrix, x.dtype)
        return ops.cast(ops.matmul(x, ops.transpose(matrix)), "float32")

    def output_map(self, bias):
        """Return a function x [n, d] -> float32 logits [n, len(bias)] with a bias, for many calls.

        Rows of the matrix beyond the bias are left out, and missing ones are zero.
        """
        return fast_ops.output_map(ops.cast(self.matrix, self.compute_dtype), bias)

    def get_config(self):
        """Return the constructor's arguments, for Keras's serialisation."""
        return super().get_config() | {"rows": self.rows, "d_model": self.d_model}


@keras.saving.register_keras_serializable("t2t_repro")
class SinusoidalPositions(keras.layers.Layer):
    """Section 3.5, interleaved as printed: sine on even, cosine on odd dimensions.

    PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos(the same). No weights.

    Examples:
        >>> tuple(SinusoidalPositions()(keras.ops.zeros((1, 3, 8))).shape)
        (1, 3, 8)
    """

    def call(self, x, position=0):
        """Add PE to x [b, n, d], whose first vector is at `position` -> [b, n, d]."""
        length, d_model = ops.shape(x)[1], x.shape[-1]
        return x + ops.cast(sinusoids(length, d_model, position), x.dtype)[None]


def sinusoids(length, d_model, position=0):
    """Compute PE of the positions `position` ... `position` + `length` - 1: float32 [n, d].

    Raises:
        ValueError: d_model is odd; half of a vector are sines, half are cosines.
    """
    if d_model % 2:
        raise ValueError(f"d_model: wanted an even number, got {d_model}")
    positions = ops.cast(position + ops.arange(length, dtype="int32"), "float32")
    exponents = ops.arange(0, d_model, 2, dtype="float32") / d_model
    angles = positions[:, None] / ops.power(10000.0, exponents)[None, :]  # [n, d / 2]
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # [n, d / 2, 2]
    return ops.reshape(pairs, (length, d_model))


@keras.saving.register_keras_serializable("t2t_repro")
class LearnedPositions(keras.layers.Layer):
    """Table 3 (E): a learned vector for each position instead of the sinusoids.

    Positions beyond the table use its last row; the paper does not specify this case.

    Args:
        rows: positions in the table.
        d_model: width of a vector.

    Examples:
        >>> tuple(LearnedPositions(rows=64, d_model=8)(keras.ops.zeros((1, 3, 8))).shape)
        (1, 3, 8)
    """

    def __init__(self, rows, d_model, **kwargs):
        super().__init__(**kwargs)
        self.rows, self.d_model = rows, d_model
        self.table = self.add_weight(
            name="table",
            shape=(rows, d_model),
            initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )

    def call(self, x, position=0):
        """Add rows of the table to x [b, n, d], whose first vector is at `position`."""
        positions = position + ops.arange(ops.shape(x)[1], dtype="int32")
        return x + ops.take(self.table, ops.minimum(positions, self.rows - 1), axis=0)[None]

    def get_config(self):
        """Return the constructor's arguments, for Keras's serialisation."""
        return super().get_config() | {"rows": self.rows, "d_model": self.d_model}
