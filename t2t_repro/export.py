"""Export a trained run as a SavedModel, <export_dir>/<version>/, which TensorFlow Serving loads."""

import argparse
import os
import shutil
import tempfile
import typing
from pathlib import Path

from pipelines.errors import BadInput
from t2t_repro import command, config

if typing.TYPE_CHECKING:
    from t2t_repro.translator import Translate, Translator


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = command.Parser(prog="python -m t2t_repro.export", description=__doc__)
    flags.add_argument("--workdir", type=Path, required=True, help="a trained run")
    flags.add_argument(
        "--export_dir", type=Path, required=True, help="where versions are collected"
    )
    flags.add_argument("--version", type=int, default=1, help="the number TensorFlow Serving sees")
    command.add_settings(flags, ["decode"])
    return flags


def main() -> None:
    """Flags, then one call."""
    given = parser().parse_args()
    settings = command.settings(given)
    directory = given.export_dir / str(given.version)
    if given.version < 0:
        raise BadInput(f"--version={given.version}: wanted a whole number from 0")
    if given.export_dir.is_file():
        raise BadInput(f"{given.export_dir} is a file; wanted a directory, or a new name for one")
    if directory.exists():
        raise BadInput(
            f"{directory} exists; give --version={given.version + 1} or another --export_dir"
        )
    config.of_run(given.workdir)  # a mistake is told before the slow import
    command.quiet_tensorflow()
    from t2t_repro import experiment

    save(experiment.restore(given.workdir, settings).translator(), directory)
    print(directory)


def save(translator: "Translator", directory: Path) -> None:
    """Writes the SavedModel; the directory appears whole or not at all.

    Signatures: `serving_default` takes `text` [b] string and gives `translation` [b] string and
    `score` [b] float32 (and `cut` [b] bool); `translate_ids` takes and gives `ids` [b, n] int32.
    Loading needs tensorflow and tensorflow_text, and none of this code.
    """
    import tensorflow as tf

    signatures = {
        "serving_default": translator.translate.get_concrete_function(),
        "translate_ids": translator.translate_ids.get_concrete_function(),
    }
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent)
    try:
        tf.saved_model.save(translator, unfinished, signatures)
        os.chmod(unfinished, 0o755)  # mkdtemp's 0o700 would lock a server's own user out
        os.rename(unfinished, directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def load(path: Path) -> "Translate":
    """The `serving_default` of an export; of its newest version if `path` holds several.

    Raises:
        BadInput: there is no SavedModel, or it is damaged or none of ours.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers the tokenizer's operations

    versions = [child for child in path.glob("*") if child.name.isdecimal()]
    newest = max(versions, key=lambda child: int(child.name), default=path)
    try:
        translate = tf.saved_model.load(str(newest)).signatures["serving_default"]
        if not {"translation", "score", "cut"} <= translate.structured_outputs.keys():
            raise ValueError("it gives no translation")
    # IndexError: how TensorFlow's reader reports a truncated file.
    except (OSError, LookupError, ValueError, tf.errors.OpError) as error:
        raise BadInput(
            f"{path}: not a usable export ({' '.join(str(error).split())[:200]}); make one with "
            "python -m t2t_repro.export"
        ) from None
    return translate


if __name__ == "__main__":
    command.run(main)
