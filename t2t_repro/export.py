"""Export a trained run as <export_dir>/<version>/, for TensorFlow Serving or for CTranslate2."""

import argparse
import contextlib
import json
import os
import shutil
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import t2t_repro
from pipelines.errors import BadInput
from t2t_repro import cli, config

if typing.TYPE_CHECKING:
    from t2t_repro.decoding.translator import IdsTranslator, Translate
    from t2t_repro.experiment import Experiment

# Types that each format can hold the weights in; the first is the default.
WEIGHTS = {"saved_model": ("float32", "bfloat16"), "ctranslate2": ("float32", "int8")}

# What `load` looks for in a signature.
_OUTPUTS = {
    "serving_default": {"translation", "score", "cut"},
    "nbest": {"translations", "scores", "cut"},
}


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = cli.Parser(prog="python -m t2t_repro.export", description=__doc__)
    flags.add_argument("--workdir", type=Path, required=True, help="a trained run")
    flags.add_argument(
        "--export_dir", type=Path, required=True, help="where versions are collected"
    )
    flags.add_argument("--version", type=int, default=1, help="the number TensorFlow Serving sees")
    flags.add_argument("--format", choices=list(WEIGHTS), default="saved_model", help="for what")
    flags.add_argument(
        "--weights",
        choices=sorted({name for names in WEIGHTS.values() for name in names}),
        default="float32",
        help="type they are stored in: bfloat16 (half the size) is for saved_model, int8 (a "
        "quarter) for ctranslate2",
    )
    flags.add_argument(
        "--ids_only",
        action="store_true",
        help="saved_model: without the tokenizer, so that core TensorFlow alone runs it",
    )
    cli.add_settings(flags, ["decode"])
    return flags


def main() -> None:
    """Flags, then one call."""
    given = parser().parse_args()
    settings = cli.settings(given)
    directory = given.export_dir / str(given.version)
    _check(given, directory)
    config.of_run(given.workdir)  # a mistake is told before the slow import
    cli.quiet_tensorflow()
    from t2t_repro import experiment
    from t2t_repro.serving import ctranslate2

    if given.format == "ctranslate2":
        ctranslate2.check_installed()
        run = experiment.restore(given.workdir, settings)
        save_ctranslate2(run, directory, given.weights)
    else:
        run = experiment.restore(given.workdir, settings)
        save(run, directory, given.weights, given.ids_only)
    print(directory)


def _check(given: argparse.Namespace, directory: Path) -> None:
    """Raises BadInput for flags that do not go together, or a place that is taken."""
    if given.version < 0:
        raise BadInput(f"--version={given.version}: wanted a whole number from 0")
    if given.weights not in WEIGHTS[given.format]:
        raise BadInput(
            f"--weights={given.weights}: --format={given.format} holds "
            f"{' or '.join(WEIGHTS[given.format])}"
        )
    if given.ids_only and given.format != "saved_model":
        raise BadInput(f"--ids_only: --format={given.format} takes pieces always; leave it out")
    if given.export_dir.is_file():
        raise BadInput(f"{given.export_dir} is a file; wanted a directory, or a new name for one")
    if directory.exists():
        raise BadInput(
            f"{directory} exists; give --version={given.version + 1} or another --export_dir"
        )


def save(
    run: "Experiment", directory: Path, weights: str = "float32", ids_only: bool = False
) -> None:
    """Writes a SavedModel; the directory appears whole or not at all.

    Signatures, b sentences and m the beam:

        serving_default   text [b] string -> translation [b] string, score [b] float32, cut [b] bool
        nbest             text [b] string -> translations [b, m], scores [b, m], cut [b]
        translate_ids     ids [b, s] int32 -> ids [b, t] int32, score [b] float32

    Loading needs tensorflow and tensorflow_text, and none of this code. With `ids_only` there are
    `translate_ids`, and the same as `serving_default`, and tensorflow alone is enough.

    For a parsing run a translation is a tree in brackets, with the words of its sentence.

    assets.extra/ holds `settings.json` (see `settings`) and requests for warming up a server.
    """
    import tensorflow as tf

    from t2t_repro.decoding.translator import IdsTranslator, Translator
    from t2t_repro.serving import warm_up

    parts = run.model, run.vocabulary, run.config.decode, weights
    translator = IdsTranslator(*parts) if ids_only else Translator(*parts, run.problem.finish)
    with _whole(directory) as unfinished:
        tf.saved_model.save(translator, str(unfinished), _signatures(translator))
        ids = [tf.ragged.constant(run.vocabulary.encode(lines)) for lines in warm_up.TEXTS]
        requests = [("translate_ids", {"ids": rows.to_tensor()}) for rows in ids]
        if not ids_only:
            requests += [
                (signature, {"text": lines}) for signature in _OUTPUTS for lines in warm_up.TEXTS
            ]
        warm_up.write(unfinished, requests)
        _write_settings(unfinished / "assets.extra", settings(run, "saved_model", weights))


def save_ctranslate2(run: "Experiment", directory: Path, weights: str = "float32") -> None:
    """Writes what CTranslate2 loads, whole or not at all, and settings.json beside it."""
    from t2t_repro.serving import ctranslate2

    with _whole(directory) as unfinished:
        ctranslate2.save(run.model, run.vocabulary, run.config.decode, unfinished, weights)
        _write_settings(unfinished, settings(run, "ctranslate2", weights))


def settings(run: "Experiment", format: str, weights: str) -> dict[str, Any]:
    """What an export says of itself, for people and for programs without TensorFlow."""
    import tensorflow as tf

    saved = config.flat(run.config)
    state = tf.train.get_checkpoint_state(str(run.checkpoint_dir))
    averaged = [Path(path).name for path in state.all_model_checkpoint_paths]
    averaged = averaged[-run.config.decode.average_last :]
    return {
        "t2t_repro": t2t_repro.__version__,
        "format": format,
        "weights": weights,
        "problem": run.config.problem,
        "variant": run.config.variant,
        "training_step": int(averaged[-1].removeprefix("step-")),
        "averaged_checkpoints": averaged,
        "vocabulary_sha256": run.vocabulary.fingerprint,
        **{
            group: {field.name: saved[field.name] for of, field in config.fields() if of == group}
            for group in ("model", "decode")
        },
    }


def _write_settings(directory: Path, values: dict[str, Any]) -> None:
    text = json.dumps(values, indent=2) + "\n"
    (directory / "settings.json").write_text(text, encoding="utf-8")


def _signatures(translator: "IdsTranslator") -> dict[str, Any]:
    from t2t_repro.decoding.translator import Translator

    ids = translator.translate_ids.get_concrete_function()
    if not isinstance(translator, Translator):
        return {"serving_default": ids, "translate_ids": ids}
    return {
        "serving_default": translator.translate.get_concrete_function(),
        "nbest": translator.nbest.get_concrete_function(),
        "translate_ids": ids,
    }


@contextlib.contextmanager
def _whole(directory: Path) -> Iterator[Path]:
    """A directory to fill, which becomes `directory` at the end, or goes if there is an exception.

    Raises:
        BadInput: it cannot be written.
    """
    import tensorflow as tf

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            yield unfinished
            os.chmod(unfinished, 0o755)  # mkdtemp's 0o700 would lock a server's own user out
            os.rename(unfinished, directory)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).strip().splitlines()[0]
        raise BadInput(
            f"{directory}: could not be written: {reason.rstrip('.')}. Nothing is left of it; make "
            "room, or give another --export_dir"
        ) from None


def load(path: Path, signature: str = "serving_default") -> "Translate":
    """A signature from text of an export; of its newest version if `path` holds several.

    Raises:
        BadInput: there is no SavedModel, or it is damaged or none of ours.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers the tokenizer's operations

    versions = [child for child in path.glob("*") if child.name.isdecimal()]
    newest = max(versions, key=lambda child: int(child.name), default=path)
    try:
        translate = tf.saved_model.load(str(newest)).signatures.get(signature)
        if not (translate and _OUTPUTS[signature] <= translate.structured_outputs.keys()):
            raise ValueError(f"no '{signature}' of text in it; was it made with --ids_only?")
    # IndexError: how TensorFlow's reader reports a truncated file.
    except (OSError, LookupError, ValueError, tf.errors.OpError) as error:
        raise BadInput(
            f"{path}: not a usable export ({' '.join(str(error).split())[:200]}); make one with "
            "python -m t2t_repro.export"
        ) from None
    return translate


if __name__ == "__main__":
    cli.run(main)
