"""A trained run as a SavedModel: written for TensorFlow Serving, and loaded again.

Signatures, for b sentences of s source and t target pieces, a beam of m, n layers and h heads:

    serving_default   text [b] string -> translation [b] string, score [b] float32, cut [b] bool
    nbest             text [b] string -> translations [b, m], scores [b, m], cut [b]
    translate_ids     ids [b, s] int32 -> ids [b, t] int32, score [b] float32
    attention         text [] string -> translation [] string, source_pieces [s], target_pieces [t],
                      encoder [n, h, s, s] float32, decoder [n, h, t, t], cross [n, h, t, s]

A model whose encoder has no full self-attention has no `attention`.
"""

import typing
from pathlib import Path
from typing import Any

import tensorflow as tf

from t2t_repro.decoding.translator import IdsTranslator, Translate, Translator
from t2t_repro.serving import export_files, warm_up
from t2t_repro.serving.export_directory import atomic_directory, settings
from t2t_repro.serving.export_files import write_settings

if typing.TYPE_CHECKING:
    from t2t_repro.experiment import Experiment

# Type and number of axes of each input and output, see above.
_Specs = dict[str, tuple[tf.DType, int]]
_WEIGHTS: _Specs = {name: (tf.float32, 4) for name in ("encoder", "decoder", "cross")}
_PIECES: _Specs = {f"{side}_pieces": (tf.string, 1) for side in ("source", "target")}
_OF_TEXT: dict[str, tuple[_Specs, _Specs]] = {
    "serving_default": (
        {"text": (tf.string, 1)},
        {"translation": (tf.string, 1), "score": (tf.float32, 1), "cut": (tf.bool, 1)},
    ),
    "nbest": (
        {"text": (tf.string, 1)},
        {"translations": (tf.string, 2), "scores": (tf.float32, 2), "cut": (tf.bool, 1)},
    ),
}
_OPTIONAL: dict[str, tuple[_Specs, _Specs]] = {
    "translate_ids": ({"ids": (tf.int32, 2)}, {"ids": (tf.int32, 2), "score": (tf.float32, 1)}),
    "attention": (
        {"text": (tf.string, 0)},
        {"translation": (tf.string, 0), **_PIECES, **_WEIGHTS},
    ),
}


def save(
    run: "Experiment", directory: Path, weights: str = "float32", ids_only: bool = False
) -> None:
    """Write a SavedModel; the directory appears whole or not at all.

    Loading needs tensorflow and tensorflow_text, and none of this code. With `ids_only` the only
    signature is `translate_ids`, which is also `serving_default`, and tensorflow alone is enough.

    A parsing run's translations are trees in brackets, with the words of their sentences.

    assets.extra/ holds `settings.json`, the vocabulary, which programs that send ids need, and
    requests with which a server warms up.

    Args:
        run: The restored run.
        directory: The directory to make, <export_dir>/<version>.
        weights: "float32" or "bfloat16", the type that the weights are stored in.
        ids_only: Whether to leave out the tokenizer.

    Raises:
        BadInput: the directory cannot be written.
    """
    parts = run.model, run.vocabulary, run.config.decode, weights
    translator = IdsTranslator(*parts) if ids_only else Translator(*parts, run.problem.postprocess)
    with atomic_directory(directory) as unfinished:
        tf.saved_model.save(translator, str(unfinished), _signatures(translator))
        ids = [tf.ragged.constant(run.vocabulary.encode(lines)) for lines in warm_up.TEXTS]
        requests = [("translate_ids", {"ids": rows.to_tensor()}) for rows in ids]
        if not ids_only:
            requests += [
                (signature, {"text": lines}) for signature in _OF_TEXT for lines in warm_up.TEXTS
            ]
        warm_up.write(unfinished, requests)
        run.vocabulary.save(unfinished / "assets.extra")
        write_settings(unfinished, settings(run, "saved_model", weights))


def _signatures(translator: IdsTranslator) -> dict[str, Any]:
    ids = translator.translate_ids.get_concrete_function()
    if not isinstance(translator, Translator):
        return {"serving_default": ids, "translate_ids": ids}
    signatures = {
        "serving_default": translator.translate.get_concrete_function(),
        "nbest": translator.nbest.get_concrete_function(),
        "translate_ids": ids,
    }
    if translator.attention:
        signatures["attention"] = translator.attention.get_concrete_function()
    return signatures


def load(path: Path) -> dict[str, Translate]:
    """Load one version of an export, and return its signatures by name.

    TensorFlow compares the variables with their checksums; the other files, a few megabytes, are
    compared with those in settings.json, in 6 ms of the 3 s that loading takes.

    Raises:
        BadInput: there is no SavedModel, or it is damaged, or lacks the signatures of text that
            exports of this project have.
    """
    import tensorflow_text  # noqa: F401  registers the tokenizer's operations

    export_files.check(path, "saved_model.pb", but=("variables/variables.data",))
    try:
        signatures = dict(tf.saved_model.load(str(path)).signatures)
        for name, specs in _OF_TEXT.items():
            if not _has(signatures.get(name), specs):
                raise ValueError(f"no '{name}' of text in it; was it made with --ids_only?")
        for name, specs in _OPTIONAL.items():
            if name in signatures and not _has(signatures[name], specs):
                raise ValueError(f"its '{name}' has other inputs or outputs than ours")
    # TensorFlow's reader raises nearly anything, such as an IndexError where a file is truncated.
    except Exception as error:
        raise export_files.unusable(path, error) from None
    return signatures


def _has(signature: Any, specs: tuple[_Specs, _Specs]) -> bool:
    """Return whether a signature has exactly these inputs, and these outputs among others."""
    if signature is None:
        return False
    sides = signature.structured_input_signature[1], signature.structured_outputs
    inputs, outputs = (
        {name: (spec.dtype, spec.shape.rank) for name, spec in side.items()} for side in sides
    )
    return inputs == specs[0] and specs[1].items() <= outputs.items()
