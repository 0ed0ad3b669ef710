"""Export a trained run as <export_dir>/<version>/, for TensorFlow, LiteRT, CTranslate2 or Keras."""

import argparse
import os
from pathlib import Path

from pipelines.errors import BadInput
from t2t_repro import cli, tensorflow_import
from t2t_repro.workdir import Workdir

# The types that each format can store weights in; the first is the default.
WEIGHTS = {
    "saved_model": ("float32", "bfloat16"),
    "litert": ("float32", "int8"),
    "ctranslate2": ("float32", "int8"),
    "keras": ("float32",),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    flags = cli.Parser(prog="python -m t2t_repro.export", description=__doc__)
    flags.add_argument("--workdir", type=Path, required=True, help="a trained run")
    flags.add_argument(
        "--export_dir",
        type=Path,
        required=True,
        help="directory of the export; each version is a folder in it",
    )
    # TensorFlow Serving holds it in 64 bits.
    number = "number and folder of this version"
    cli.add_number(flags, "--export_version", 1, number, 0, 2**63 - 1)
    flags.add_argument(
        "--format", choices=list(WEIGHTS), default="saved_model", help="format of the export"
    )
    flags.add_argument(
        "--weights",
        choices=sorted({name for names in WEIGHTS.values() for name in names}),
        default="float32",
        help="type that the weights are stored in: bfloat16 (half the size) for saved_model, int8 "
        "(a quarter) for litert and ctranslate2",
    )
    flags.add_argument(
        "--ids_only",
        action="store_true",
        help="saved_model: without the tokenizer, so that core TensorFlow alone runs it",
    )
    cli.add_strict(flags)
    cli.add_checkpoint(flags)
    cli.add_settings(flags, ["decode"])
    return flags


def main() -> None:
    """Parse the flags, then export."""
    given = parser().parse_args()
    settings = cli.settings(given)
    directory = given.export_dir / str(given.export_version)
    _check(given, directory)
    workdir = Workdir(given.workdir)
    workdir.config(settings)  # finds a mistake before the slow import
    # oneDNN's allocator gives no memory back: with it, the big model's export takes 1.2 GB more.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    tensorflow_import.quiet()
    from t2t_repro import experiment
    from t2t_repro.serving import ctranslate2, keras_preset, litert, saved_model

    if given.format == "ctranslate2":
        ctranslate2.check_installed()
    run = experiment.restore(workdir, settings, given.strict, given.checkpoint)
    if given.format == "saved_model":
        saved_model.save(run, directory, given.weights, given.ids_only)
    else:
        writers = {"litert": litert, "ctranslate2": ctranslate2, "keras": keras_preset}
        writers[given.format].save(run, directory, given.weights)
    print(directory)


def _check(given: argparse.Namespace, directory: Path) -> None:
    """Raise BadInput for flags that do not go together, or a directory that exists."""
    if given.weights not in WEIGHTS[given.format]:
        raise BadInput(
            f"--weights={given.weights}: --format={given.format} holds "
            f"{' or '.join(WEIGHTS[given.format])}"
        )
    if given.ids_only and given.format != "saved_model":
        raise BadInput(f"--ids_only: --format={given.format} takes pieces always; leave it out")
    if given.export_dir.exists() and not given.export_dir.is_dir():
        raise BadInput(f"{given.export_dir} is a file; wanted a directory, or a new name for one")
    if directory.exists():
        raise BadInput(
            f"{directory} exists; give --export_version={given.export_version + 1} or another "
            "--export_dir"
        )


if __name__ == "__main__":
    cli.run(main)
