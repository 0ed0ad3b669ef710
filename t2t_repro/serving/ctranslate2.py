"""Export to CTranslate2, an inference engine for Transformers on CPUs.

CTranslate2's own specification classes write the model into one directory:

    model.bin, config.json    the weights, for ctranslate2.Translator(directory)
    shared_vocabulary.json    the pieces by id
    vocabulary.model          the sentencepiece model, for text to pieces and back

Parts of the paper's model for which these classes have no option become weights: sinusoids are a
table of positions, heads with different d_k and d_v are padded with zeros, and pieces that may not
be produced get a bias on their logits. An option exists for the zero vector at the decoder's start.

CTranslate2's beam search differs from ours; docs/engines.md, "CTranslate2", says how.
"""

import typing
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import BadInput
from pipelines.vocabulary import EOS, UNK, Vocabulary
from t2t_repro.config import Decode
from t2t_repro.model.attention import MultiHeadAttention
from t2t_repro.model.layers import AddNorm, FeedForward, sinusoids
from t2t_repro.model.transformer import Transformer
from t2t_repro.serving.export_directory import save_for_engine

if typing.TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec

    from t2t_repro.experiment import Experiment

# Bias on the logits of pieces that must not be produced: exp(-1e4) is 0, and float16 can hold -1e4.
_FORBIDDEN = -1e4


def check_installed() -> None:
    """Raise BadInput if the optional package ctranslate2 is not installed."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError:
        raise BadInput(
            "--format=ctranslate2: wanted the package ctranslate2, which is not installed; "
            'pip install "t2t_repro[ctranslate2]"'
        ) from None


def save(run: "Experiment", directory: Path, weights: str = "float32") -> None:
    """Write an export with its settings.json, see `save_for_engine`."""

    def write(unfinished: Path) -> None:
        write_model(run.model, run.vocabulary, run.config.decode, unfinished, weights)

    save_for_engine(run, directory, "ctranslate2", weights, write)


def write_model(
    model: Transformer, vocabulary: Vocabulary, decode: Decode, directory: Path, weights: str
) -> None:
    """Write the model and its vocabulary into an existing directory.

    Args:
        model: A trained Transformer; d_k, d_v and d_model / h may all differ.
        vocabulary: The model's vocabulary. Rows of the embedding matrix beyond it are left out.
        decode: The length limits, which determine how many positions are exported.
        directory: The existing directory to write to.
        weights: "float32", or "int8", which quantises the matrices to a quarter of the size.
    """
    spec = transformer_spec(model, vocabulary, decode)
    spec.validate()
    spec.optimize(quantization="int8_float32" if weights == "int8" else weights)
    spec.save(str(directory))
    vocabulary.save(directory)


def transformer_spec(
    model: Transformer, vocabulary: Vocabulary, decode: Decode
) -> "TransformerSpec":
    """Return CTranslate2's specification of the model with its weights, not yet validated."""
    from ctranslate2.specs import transformer_spec as specs

    config = model.config
    shape = {"pre_norm": False, "head_dim": max(config.d_k, config.d_v)}
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.num_layers, config.num_heads, **shape),
        specs.TransformerDecoderSpec(config.num_layers, config.num_heads, **shape),
    )
    spec.config.layer_norm_epsilon = model.encoder[0].feed_forward_norm.norm.epsilon
    spec.config.add_source_eos = True
    spec.config.eos_token, spec.config.unk_token = vocabulary.pieces[EOS], vocabulary.pieces[UNK]
    spec.config.decoder_start_token = vocabulary.pieces[0]  # any piece: its embedding is not used
    spec.register_source_vocabulary(vocabulary.pieces)
    spec.register_target_vocabulary(vocabulary.pieces)

    matrix = np.asarray(model.embedding.matrix)[: vocabulary.size]  # [pieces, d_model]
    for embedding in (spec.encoder.embeddings[0], spec.decoder.embeddings):
        embedding.weight = matrix  # spec.*.scale_embeddings multiplies by sqrt(d_model)
    spec.decoder.start_from_zero_embedding = True
    spec.decoder.projection.weight = matrix
    spec.decoder.projection.bias = np.where(vocabulary.producible, 0, _FORBIDDEN).astype("float32")

    # By default CTranslate2 truncates a source to 1,024 pieces and then adds EOS.
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
    """Return the layer's encodings of positions 0 ... `length` - 1: float32 [length, d_model]."""
    if not config.learned_positions:
        return np.asarray(sinusoids(length, config.d_model))
    return np.asarray(layer.table)[np.minimum(np.arange(length), layer.rows - 1)]


def _self_attention(spec: Any, layer: MultiHeadAttention, norm: AddNorm) -> None:
    """Set one matrix for queries, keys and values, and one for the output."""
    _set_linear(spec.linear[0], _projections(layer)[:3])
    _attention_output(spec, layer, norm)


def _cross_attention(spec: Any, layer: MultiHeadAttention, norm: AddNorm) -> None:
    """Set matrices for the queries, for keys and values together, and for the output."""
    projections = _projections(layer)
    _set_linear(spec.linear[0], projections[:1])
    _set_linear(spec.linear[1], projections[1:3])
    _attention_output(spec, layer, norm)


def _attention_output(spec: Any, layer: MultiHeadAttention, norm: AddNorm) -> None:
    _set_linear(spec.linear[-1], _projections(layer)[3:])
    spec.queries_scale = np.float32(layer.d_k**-0.5)  # of the unpadded width
    _norm(spec.layer_norm, norm)


def _projections(layer: MultiHeadAttention) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (weight [out, in], bias [out]) of queries, keys, values and output.

    CTranslate2 has a single width for a head, so the narrower of d_k and d_v is padded with zeros.
    These add nothing to a dot product, and the output projection has zeros for them.
    """
    h, width = layer.num_heads, max(layer.d_k, layer.d_v)

    def padded(rows: np.ndarray) -> np.ndarray:
        """Pad the heads: [h * d_k or d_v, ...] -> [h * width, ...]."""
        heads = rows.reshape(h, -1, *rows.shape[1:])
        missing = [(0, 0), (0, width - heads.shape[1])] + [(0, 0)] * (rows.ndim - 1)
        return np.pad(heads, missing).reshape(h * width, *rows.shape[1:])

    inward = [
        (padded(np.asarray(dense.kernel).T), padded(np.asarray(dense.bias)))
        for dense in (layer.query, layer.key, layer.value)
    ]
    kernel = padded(np.asarray(layer.output_projection.kernel))  # [h * width, d_model]
    return [*inward, (kernel.T, np.asarray(layer.output_projection.bias))]


def _feed_forward(spec: Any, layer: FeedForward, norm: AddNorm) -> None:
    for linear, dense in ((spec.linear_0, layer.inner), (spec.linear_1, layer.outer)):
        _set_linear(linear, [(np.asarray(dense.kernel).T, np.asarray(dense.bias))])
    _norm(spec.layer_norm, norm)


def _norm(spec: Any, layer: AddNorm) -> None:
    spec.gamma, spec.beta = np.asarray(layer.norm.gamma), np.asarray(layer.norm.beta)


def _set_linear(spec: Any, projections: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Set a linear map to the concatenation of several linear maps of the same input."""
    spec.weight = np.concatenate([weight for weight, _ in projections])
    spec.bias = np.concatenate([bias for _, bias in projections])
