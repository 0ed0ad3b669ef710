"""A trained model in the format of CTranslate2, an engine for Transformers on CPUs.

Written with CTranslate2's own specification classes, into one directory:

    model.bin, config.json    the weights, for ctranslate2.Translator(directory)
    shared_vocabulary.json    the pieces by id
    vocabulary.model          the sentencepiece model, for text to pieces and back

What the paper's model has and the classes do not name is put into weights: the sinusoids as a table
of positions, d_k and d_v of different widths as heads filled up with zeros, and what may never be
produced as a bias on the logits. The zero vector that our decoder starts from has a flag there.

Its search is another one; README.md, "CTranslate2", says what differs.
"""

import typing
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from pipelines.errors import BadInput
from pipelines.vocabulary import Vocabulary
from t2t_repro.config import Decode
from t2t_repro.model.attention import MultiHeadAttention
from t2t_repro.model.layers import AddNorm, FeedForward, sinusoids
from t2t_repro.model.transformer import Transformer

if typing.TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec

# On the logits of what must not be produced: e to this is 0, and float16 still holds it.
_NEVER = -1e4


def check_installed() -> None:
    """Raises BadInput if the package is missing: it is an extra."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError:
        raise BadInput(
            "--format=ctranslate2: wanted the package ctranslate2, which is not installed; "
            'pip install "t2t_repro[ctranslate2]"'
        ) from None


def save(
    model: Transformer, vocabulary: Vocabulary, decode: Decode, directory: Path, weights: str
) -> None:
    """Writes the model and its vocabulary into an existing directory.

    Args:
        model: Any trained Transformer; widths d_k, d_v and d_model / h may all differ.
        vocabulary: Its pieces. Rows of the matrix beyond them are left out.
        decode: Says how many positions a translation can need.
        directory: Where to.
        weights: "float32", or "int8" for the matrices: a quarter of the size.
    """
    spec = transformer_spec(model, vocabulary, decode)
    spec.validate()
    spec.optimize(quantization="int8_float32" if weights == "int8" else weights)
    spec.save(str(directory))
    vocabulary.save(directory)


def transformer_spec(
    model: Transformer, vocabulary: Vocabulary, decode: Decode
) -> "TransformerSpec":
    """CTranslate2's description of the model, with its weights; not yet validated."""
    from ctranslate2.specs import transformer_spec as specs

    config = model.config
    shape = {"pre_norm": False, "head_dim": max(config.d_k, config.d_v)}
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.num_layers, config.num_heads, **shape),
        specs.TransformerDecoderSpec(config.num_layers, config.num_heads, **shape),
    )
    spec.config.layer_norm_epsilon = model.encoder[0].feed_forward_norm.norm.epsilon
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = vocabulary.pieces[0]  # any: its vector is not looked at
    spec.register_source_vocabulary(vocabulary.pieces)
    spec.register_target_vocabulary(vocabulary.pieces)

    matrix = np.asarray(model.embedding.matrix)[: vocabulary.size]  # [pieces, d_model]
    for embedding in (spec.encoder.embeddings[0], spec.decoder.embeddings):
        embedding.weight = matrix  # looked up times sqrt(d_model), as spec.*.scale_embeddings says
    spec.decoder.start_from_zero_embedding = True
    spec.decoder.projection.weight = matrix
    spec.decoder.projection.bias = np.where(vocabulary.producible, 0, _NEVER).astype("float32")

    # CTranslate2 cuts a source to 1,024 pieces unless told otherwise, and adds EOS after that.
    length = max(decode.max_source_length, 1024) + decode.max_extra_length + 1
    spec.encoder.position_encodings.encodings = _positions(model.source_positions, length, config)
    spec.decoder.position_encodings.encodings = _positions(model.target_positions, length, config)

    for described, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        _self_attention(described.self_attention, layer.self_attention, layer.self_attention_norm)
        _feed_forward(described.ffn, layer.feed_forward, layer.feed_forward_norm)
    for described, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        _self_attention(described.self_attention, layer.self_attention, layer.self_attention_norm)
        _cross_attention(described.attention, layer.cross_attention, layer.cross_attention_norm)
        _feed_forward(described.ffn, layer.feed_forward, layer.feed_forward_norm)
    return spec


def _positions(layer: Any, length: int, config: Any) -> np.ndarray:
    """What the layer adds at the positions 0 ... `length` - 1: float32 [length, d_model]."""
    if not config.learned_positions:
        return np.asarray(sinusoids(length, config.d_model))
    return np.asarray(layer(ops.zeros((1, length, config.d_model))))[0]


def _self_attention(spec: Any, layer: MultiHeadAttention, norm: AddNorm) -> None:
    """Queries, keys and values in one matrix, then the output."""
    _join(spec.linear[0], _projections(layer)[:3])
    _attention_rest(spec, layer, norm)


def _cross_attention(spec: Any, layer: MultiHeadAttention, norm: AddNorm) -> None:
    """Queries; keys and values in one matrix; the output."""
    projections = _projections(layer)
    _join(spec.linear[0], projections[:1])
    _join(spec.linear[1], projections[1:3])
    _attention_rest(spec, layer, norm)


def _attention_rest(spec: Any, layer: MultiHeadAttention, norm: AddNorm) -> None:
    _join(spec.linear[-1], _projections(layer)[3:])
    spec.queries_scale = np.float32(layer.d_k**-0.5)  # not that of the filled-up width
    _norm(spec.layer_norm, norm)


def _projections(layer: MultiHeadAttention) -> list[tuple[np.ndarray, np.ndarray]]:
    """(weight [out, in], bias [out]) of queries, keys, values and output.

    CTranslate2 knows one width of a head, so the narrower of d_k and d_v is filled up with zeros:
    they add nothing to a dot product, and meet zeros in the output projection.
    """
    h, width = layer.num_heads, max(layer.d_k, layer.d_v)

    def filled(rows: np.ndarray) -> np.ndarray:
        """[h * d_k or d_v, ...] -> [h * width, ...]."""
        heads = rows.reshape(h, -1, *rows.shape[1:])
        missing = [(0, 0), (0, width - heads.shape[1])] + [(0, 0)] * (rows.ndim - 1)
        return np.pad(heads, missing).reshape(h * width, *rows.shape[1:])

    inward = [
        (filled(np.asarray(dense.kernel).T), filled(np.asarray(dense.bias)))
        for dense in (layer.query, layer.key, layer.value)
    ]
    kernel = filled(np.asarray(layer.output_projection.kernel))  # [h * width, d_model]
    return [*inward, (kernel.T, np.asarray(layer.output_projection.bias))]


def _feed_forward(spec: Any, layer: FeedForward, norm: AddNorm) -> None:
    for linear, dense in ((spec.linear_0, layer.inner), (spec.linear_1, layer.outer)):
        _join(linear, [(np.asarray(dense.kernel).T, np.asarray(dense.bias))])
    _norm(spec.layer_norm, norm)


def _norm(spec: Any, layer: AddNorm) -> None:
    spec.gamma, spec.beta = np.asarray(layer.norm.gamma), np.asarray(layer.norm.beta)


def _join(spec: Any, projections: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Several linear maps of one input as one."""
    spec.weight = np.concatenate([weight for weight, _ in projections])
    spec.bias = np.concatenate([bias for _, bias in projections])
