"""Export to LiteRT, TensorFlow's engine for inference on phones and CPUs, without TensorFlow.

One directory holds all that a reader needs:

    model.tflite        two functions, `encode` and `decode`, that share one copy of the weights
    vocabulary.model    the sentencepiece model, for text to pieces and back
    settings.json       the decode settings, and what identifies the export
    translator.py       the search around these functions, `litert_translator`

A parsing run's export also holds the modules of `pipelines` that make trees of outputs.

Only the search's bookkeeping is outside the model file: a loop inside it would rewrite the whole
cache at every step, as `write_cache` does. The sizes of `encode` and `decode` are chosen before
each call, so no sentence is padded to a size that is fixed here.

With int8 weights, every matrix is stored with a scale for each of its outputs, and products are
computed in int8 from inputs that are quantised as they come ("dynamic range"). The rows of the
shared matrix have one scale each; the embedding reads the same numbers as the output map.

Axes: b sentences, m hypotheses of a sentence, s source positions, k cached keys, d d_model, v rows
of the shared matrix, with padding to blocks.
"""

import shutil
import tempfile
import typing
from pathlib import Path

import numpy as np
import tensorflow as tf
from keras import ops
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

import pipelines
from pipelines.vocabulary import EOS, PAD, Vocabulary
from t2t_repro.config import Decode
from t2t_repro.decoding.beam_search import IMPOSSIBLE
from t2t_repro.model.fast_ops import BLOCK, pad_to_blocks
from t2t_repro.model.transformer import Transformer
from t2t_repro.serving.export_directory import save_for_engine

if typing.TYPE_CHECKING:
    from t2t_repro.experiment import Experiment

# The modules that `litert_translator` imports to make trees of a parsing run's outputs. Without
# __init__.py, another package called `pipelines` would go before this one.
_TREES = (
    *(
        "__init__",
        "errors",
        "regular_file",
        "parsing/__init__",
        "parsing/linear_trees",
        "parsing/trees",
    ),
    *("sources/__init__", "sources/text_files"),
)


def save(run: "Experiment", directory: Path, weights: str = "float32") -> None:
    """Write an export with its settings.json, see `save_for_engine`."""

    def write(unfinished: Path) -> None:
        write_model(run.model, run.vocabulary, run.config.decode, unfinished, weights)
        if run.problem.postprocess:
            _copy_modules(unfinished)

    save_for_engine(run, directory, "litert", weights, write)


def write_model(
    model: Transformer, vocabulary: Vocabulary, decode: Decode, directory: Path, weights: str
) -> None:
    """Write the model, its vocabulary and the reader into an existing directory.

    Args:
        model: A trained Transformer with full self-attention.
        vocabulary: The model's vocabulary.
        decode: The decode settings.
        directory: The existing directory to write to.
        weights: "float32" or "int8".
    """
    content = convert(model, vocabulary, decode, weights, scratch=directory)
    (directory / "model.tflite").write_bytes(content)
    vocabulary.save(directory)
    shutil.copy(Path(__file__).with_name("litert_translator.py"), directory / "translator.py")


def _copy_modules(directory: Path) -> None:
    """Copy the modules that make trees, which need no package beyond Python's own."""
    package = Path(pipelines.__file__).parent
    for name in _TREES:
        copied = directory / "pipelines" / f"{name}.py"
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / f"{name}.py", copied)


def convert(
    model: Transformer,
    vocabulary: Vocabulary,
    decode: Decode,
    weights: str,
    scratch: Path | None = None,
) -> bytes:
    """Return the content of model.tflite.

    Args:
        model: A trained Transformer with full self-attention, of any precision.
        vocabulary: The model's vocabulary. Rows of the embedding matrix beyond it are left out.
        decode: The decode settings; the beam size and the greatest lengths are part of the model.
        weights: "float32" or "int8".
        scratch: Where a SavedModel lies meanwhile; None means the system's temporary directory.
    """
    float32 = model
    if model.compute_dtype != "float32":
        float32 = Transformer(model.config, model.rows, "float32")
        float32.set_weights(model.get_weights())
    functions = _Functions(float32, vocabulary, decode, weights)
    # The interpreter's calls that copy nothing know the first signature only: "decode".
    signatures = {"decode": functions.decode, "encode": functions.encode}
    # The Keras model itself would want a signature of its own in a SavedModel.
    module = tf.Module()
    module.weights = functions.weights()
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        # Functions of one SavedModel share their variables, and still do when converted.
        tf.saved_model.save(module, directory, signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(
            directory, signature_keys=list(signatures)
        )
        converter._trackable_obj = None  # a copy of all weights, which `convert` does not read
        if weights == "float32":
            return converter.convert()
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return _with_one_matrix(converter.convert(), tuple(functions.matrix.shape))


class _Functions:
    """The two functions of model.tflite."""

    def __init__(self, model: Transformer, vocabulary: Vocabulary, decode: Decode, weights: str):
        self.model, self.beam_size = model, decode.beam_size
        self.bias = pad_to_blocks(np.where(vocabulary.producible, 0.0, IMPOSSIBLE), IMPOSSIBLE)
        rows = np.asarray(model.embedding.matrix)[: vocabulary.size]
        matrix = np.pad(rows, ((0, len(self.bias) - len(rows)), (0, 0)))  # [v, d]
        # Variables: a graph would hold constants, and graphs are copied again and again on the way
        # to model.tflite. With constants the export of the big model takes 6.6 GB.
        self.matrix = tf.Variable(matrix)
        if weights == "int8":
            # As the converter quantises the output map, which `_with_one_matrix` relies on.
            self.scale = np.maximum(np.abs(matrix).max(1), 1e-9).astype("float32") / 127
            self.table = tf.Variable(np.round(matrix / self.scale[:, None]).astype("int8"))
        else:
            self.scale, self.table = np.ones(len(matrix), "float32"), self.matrix
        longest = decode.max_source_length + decode.max_extra_length
        zeros = ops.zeros((1, longest, model.config.d_model))
        self.source_positions = np.asarray(model.source_positions(zeros)[0])
        self.target_positions = np.asarray(model.target_positions(zeros)[0])
        self.decode = tf.function(self._decode, input_signature=self._decode_inputs())

    def weights(self) -> list[tf.Variable]:
        """Return the variables that the functions read."""
        shared = self.model.embedding.matrix.value  # they read `matrix` and `table` in its place
        own = [variable.value for variable in self.model.weights]
        return [self.matrix, self.table, *(each for each in own if each is not shared)]

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int32, "ids"),
            tf.TensorSpec([None], tf.int32, "position"),
            tf.TensorSpec([1, 1, None, None], tf.float32, "mask"),
        ]
    )
    def encode(self, ids: tf.Tensor, position: tf.Tensor, mask: tf.Tensor) -> dict[str, tf.Tensor]:
        """Encode sentences that follow each other, without padding.

        Args:
            ids: Int32 [s], sentences that each end with EOS.
            position: Int32 [s], places in the sentences: 0, 1, ... from the start of each.
            mask: Float32 [1, 1, s, s], 0 where both places are of one sentence, -1e9 elsewhere.

        Returns:
            For each decoder layer i, `key_i` float32 [1, h, s, d_k] and `value_i` [1, h, s, d_v].
        """
        rows = (1, -1)
        x = self._embedded(ids, self.source_positions, position)
        x = self.model.encode_rows(x, mask, rows)
        return _named(self.model.memory(x, rows))

    def _decode_inputs(self) -> list[tf.TensorSpec]:
        config, m = self.model.config, self.beam_size
        inputs = {
            "tokens": tf.TensorSpec([None, m], tf.int32),
            "position": tf.TensorSpec([1], tf.int32),
            "log_prob": tf.TensorSpec([None, m]),
            "mask": tf.TensorSpec([None, 1, m, None]),
            "source_mask": tf.TensorSpec([None, 1, 1, None]),
        }
        for prefix in ("", "memory_"):
            for layer in range(config.num_layers):
                for name, width in (("key", config.d_k), ("value", config.d_v)):
                    shape = [None, config.num_heads, None, width]
                    inputs[f"{prefix}{name}_{layer}"] = tf.TensorSpec(shape)
        return [tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in inputs.items()]

    def _decode(
        self,
        tokens: tf.Tensor,
        position: tf.Tensor,
        log_prob: tf.Tensor,
        mask: tf.Tensor,
        source_mask: tf.Tensor,
        *keys_values: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Decode one position of the hypotheses, and find the 2 m best continuations of each beam.

        Args:
            tokens: Int32 [b, m], the last token of each hypothesis; PAD at position 0.
            position: Int32 [1], the number of tokens before this position.
            log_prob: Float32 [b, m], the hypotheses' log-probabilities.
            mask: Float32 [b, 1, m, k + m], 0 where a hypothesis may look and -1e9 elsewhere: at the
                k cached keys, and then at the m keys of this position, of which one is its own.
            source_mask: Float32 [b, 1, 1, s], 0 for tokens and -1e9 for padding.
            *keys_values: The cache, `key_i` and `value_i` of each layer, float32 [b, h, k, width];
                then `memory_key_i` and `memory_value_i` [b, h, s, width], from `encode`.

        Returns:
            `log_prob` float32 [b, 2m], descending, `parent` int32 [b, 2m] and `token` int32
            [b, 2m]: the continuations. `ending` float32 [b, m]: the log-probability of each
            hypothesis followed by EOS. `key_i` and `value_i` [b, h, m, width], to be cached.
        """
        x = self._embedded(tf.reshape(tokens, [-1]), self.target_positions, position)
        pairs = zip(keys_values[::2], keys_values[1::2], strict=True)
        parts = [{"key": key, "value": value} for key, value in pairs]
        layers = len(parts) // 2
        x, cache = self.model.decode_rows(
            x,
            self.beam_size,
            parts[layers:],
            source_mask,
            mask,
            [[part] for part in parts[:layers]],
            append=lambda kept, new: [*kept, new],
        )
        logits = tf.matmul(x, self.matrix, transpose_b=True) + self.bias.astype("float32")
        return self._continuations(logits, log_prob) | _named([parts[-1] for parts in cache])

    def _embedded(self, ids: tf.Tensor, table: np.ndarray, position: tf.Tensor) -> tf.Tensor:
        """Embed ids [n] as `SharedEmbedding` does, and add the positions' encodings -> [n, d]."""
        # The converter would quantise a table that `gather` reads, with one scale for all rows.
        scale = tf.gather_nd(self.scale * self.matrix.shape[1] ** 0.5, ids[:, None])  # [n]
        scale = scale * tf.cast(ids != PAD, tf.float32)
        vectors = tf.cast(tf.gather(self.table, ids), tf.float32) * scale[:, None]
        return vectors + tf.gather_nd(table, position[:, None])

    def _continuations(self, logits: tf.Tensor, log_prob: tf.Tensor) -> dict[str, tf.Tensor]:
        """Find the 2 m best continuations by blocks, as `fast_ops.top_k`.

        Args:
            logits: Float32 [b * m, v].
            log_prob: Float32 [b, m], log-probabilities of the hypotheses.
        """
        m, blocks = self.beam_size, len(self.bias) // BLOCK
        count = 2 * m
        by_block = tf.reshape(logits, (-1, m * blocks, BLOCK))  # [b, m * blocks, BLOCK]
        greatest = tf.reduce_max(tf.reshape(logits, (-1, blocks, BLOCK)), axis=2)  # [b * m, blocks]
        # As in `fast_ops.top_log_probs`, the log-sum-exp follows from the greatest probability.
        highest = tf.reduce_max(tf.nn.softmax(logits), axis=1, keepdims=True)
        log_norm = tf.reduce_max(greatest, axis=1, keepdims=True) - tf.math.log(highest)
        base = tf.reshape(log_prob, (-1, 1)) - log_norm  # [b * m, 1]
        _, found = tf.math.top_k(tf.reshape(greatest + base, (-1, m * blocks)), count)
        found = -tf.math.top_k(-found, count)[0]  # in ascending order, so that ties keep theirs
        own = tf.gather(tf.reshape(base, (-1, m)), found // blocks, batch_dims=1)  # [b, 2m]
        candidates = tf.gather(by_block, found, batch_dims=1) + own[:, :, None]
        best, place = tf.math.top_k(tf.reshape(candidates, (-1, count * BLOCK)), count)
        block = tf.gather(found, place // BLOCK, batch_dims=1)
        return {
            "log_prob": best,
            "parent": block // blocks,
            "token": block % blocks * BLOCK + place % BLOCK,
            "ending": tf.reshape(logits[:, EOS : EOS + 1] + base, (-1, m)),
        }


def _named(layers: list[dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    """Name the keys and values of the layers `key_0`, `value_0` and so on."""
    return {f"{name}_{i}": part[name] for i, part in enumerate(layers) for name in part}


def _with_one_matrix(content: bytes, shape: tuple[int, ...]) -> bytes:
    """Let the embedding read the int8 numbers of the output map, which are the same.

    They are the same up to rounding: 26 of 16 million differ by one.
    """
    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    same = [
        tensor
        for graph in model.subgraphs
        for tensor in graph.tensors
        if tensor.type == schema.TensorType.INT8 and tuple(tensor.shape) == shape
    ]
    # Only the embedding has no scales in the file; other matrices may have the same shape.
    (table,) = {tensor.buffer for tensor in same if tensor.quantization.scale is None}
    scaled = {tensor.buffer for tensor in same} - {table}

    def numbers(buffer: int) -> np.ndarray:
        return model.buffers[buffer].data.view("int8").astype("int16")

    for buffer in scaled:  # unless the numbers are equal, and the converter shares them itself
        if np.abs(numbers(buffer) - numbers(table)).max() <= 1:
            for tensor in same:
                if tensor.buffer == table:
                    tensor.buffer = buffer
            model.buffers[table].data = None
            break
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))
