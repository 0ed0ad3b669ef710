"""OpenNMT-tf's Transformer, which `peer_training.py` measures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import opennmt
import tensorflow as tf
from peer_training import BOS, FIRST, Workload


def step_of(peer: str, workload: Workload, bfloat16: bool, compiled: bool) -> Callable[[], float]:
    """Return a function that makes a training step and returns its loss."""
    del peer  # there is one
    tf.random.set_seed(0)
    if bfloat16:
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = opennmt.models.Transformer(
        num_layers=workload.layers,
        num_units=workload.d_model,
        num_heads=workload.heads,
        ffn_inner_dim=workload.d_ff,
        dropout=0.1,
        attention_dropout=0,
        ffn_dropout=0,
        share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
        pre_norm=False,
    )
    settings = model.auto_config()["params"] | {"learning_rate": 1e-4, "decay_type": None}
    with tempfile.TemporaryDirectory() as directory:
        pieces = Path(directory) / "pieces"
        # One more row is the unknown piece's.
        lines = ["<blank>", "<s>", "</s>", *map(str, range(workload.rows - 4))]
        pieces.write_text("\n".join(lines) + "\n")
        vocabularies = {f"{side}_vocabulary": str(pieces) for side in ("source", "target")}
        model.initialize(vocabularies, params=settings)
        model.create_variables()
    shape = workload.batch, workload.length
    source, target = (tf.random.uniform(shape, FIRST, workload.rows, tf.int64) for _ in range(2))
    shifted = tf.concat([tf.fill([workload.batch, 1], tf.cast(BOS, tf.int64)), target[:, :-1]], 1)
    lengths = tf.fill([workload.batch], workload.length)
    features = {"ids": source, "length": lengths}
    labels = {"ids": shifted, "ids_out": target, "length": lengths}
    adam = model.get_optimizer()

    @tf.function(jit_compile=compiled or None)
    def trained() -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs, _ = model(features, labels, training=True, step=adam.iterations)
            total, count, *_ = model.compute_loss(outputs, labels, training=True)
            loss = total / count
        weights = model.trainable_weights
        adam.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return lambda: float(trained())
