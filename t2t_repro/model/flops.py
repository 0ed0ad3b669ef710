"""Trainable parameters and FLOPs of a Transformer, by count.

The forward pass needs one multiplication and one addition for each weight of a matrix at each
position, and the backward pass needs twice as many, for the gradients of the input and of the
weight. Together they need 6 FLOPs. Attention's products, which have no weights, are counted
separately. Embedding lookup needs none; softmax, norms, dropout and Adam, 1 to 3 % of base, are
left out.

Axes: b batch, s source positions, t target positions.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from pipelines.errors import BadInput
from t2t_repro.config import Model

Shape = tuple[int, int, int]  # of a batch: (b, s, t)

MOST_PARAMETERS = 100_000_000_000  # 0.4 TB in float32, and 1.6 TB in training


class Weights(NamedTuple):
    """Weights in matrices, by the positions that they act on."""

    source: int  # the encoder, and cross-attention's projections of its output to keys and values
    target: int  # the rest of the decoder, and the output matrix


class Positions(NamedTuple):
    """Numbers of positions in batches, padding included, and of pairs that attention compares."""

    source: int  # b s
    target: int  # b t
    source_source: int  # b s s
    target_target: int  # b t t; the masked half is computed too
    target_source: int  # b t s


class Flops(NamedTuple):
    """FLOPs of training steps, forward and backward."""

    matrices: int
    attention: int  # products of queries with keys, and of weights with values

    @property
    def total(self) -> int:
        """FLOPs of all products."""
        return self.matrices + self.attention


def matrix_weights(model: Model, rows: int) -> Weights:
    """Count the weights of all projections, feed-forward layers and the output matrix.

    Biases, norms and learned positions are not part of a matrix product.

    Args:
        model: the model.
        rows: rows of the shared embedding matrix.
    """
    keys_values = model.d_model * model.num_heads * (model.d_k + model.d_v)
    queries_outputs = keys_values  # also one matrix of width d_k and one of width d_v
    attention, feed_forward = keys_values + queries_outputs, 2 * model.d_model * model.d_ff
    return Weights(
        source=model.num_layers * (attention + feed_forward + keys_values),
        target=model.num_layers * (attention + feed_forward + queries_outputs)
        + rows * model.d_model,
    )


def trainable_parameters(model: Model, rows: int) -> int:
    """Count the trainable parameters: matrices, biases, norms and learned positions.

    Sinusoids have none. Base with 40,960 rows has 65,110,016, which Table 3 prints as 65 million.
    """
    d = model.d_model
    heads = model.num_heads * (2 * model.d_k + model.d_v)
    attention_biases, feed_forward_biases, norm = heads + d, model.d_ff + d, 2 * d
    encoder_layer = attention_biases + feed_forward_biases + 2 * norm
    decoder_layer = 2 * attention_biases + feed_forward_biases + 3 * norm
    vectors = model.num_layers * (encoder_layer + decoder_layer) + 2 * model.learned_positions * d
    return sum(matrix_weights(model, rows)) + vectors


def check_size(model: Model, rows: int) -> None:
    """Raise BadInput for a model that no memory could hold.

    Each setting is within its bounds then, but not their product.
    """
    if (count := trainable_parameters(model, rows)) > MOST_PARAMETERS:
        raise BadInput(
            f"a model of {count:,} parameters; wanted at most {MOST_PARAMETERS:,}: lower "
            "num_layers, d_model, d_ff, num_heads, d_k, d_v or the rows of the embedding"
        )


def positions(batches: Iterable[Shape]) -> Positions:
    """Add up the positions of batches of these shapes."""
    b, s, t = np.array(list(batches), np.int64).reshape(-1, 3).T
    return Positions(*(int(n.sum()) for n in (b * s, b * t, b * s * s, b * t * t, b * t * s)))


def training_flops(model: Model, rows: int, positions: Positions) -> Flops:
    """Count the FLOPs of training on these positions; the forward pass is a third of them."""
    weights = matrix_weights(model, rows)
    width = model.num_heads * (model.d_k + model.d_v)  # a product of d_k and one of d_v per head
    compared = positions.source_source + positions.target_target + positions.target_source
    return Flops(
        matrices=6 * (weights.source * positions.source + weights.target * positions.target),
        attention=6 * model.num_layers * width * compared,
    )
