"""Draw what the attention heads of a trained run look at, as in the paper's Figures 3 to 5."""

import argparse
import typing
from pathlib import Path

from pipelines import storage
from pipelines.errors import BadInput
from pipelines.vocabulary import EOS, Vocabulary
from t2t_repro import cli, config, tensorflow_import
from t2t_repro.workdir import Workdir

if typing.TYPE_CHECKING:
    from t2t_repro.experiment import Experiment
    from t2t_repro.paper.attention_figure import AttentionFigure

_KINDS = ("encoder", "decoder", "cross")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    flags = cli.Parser(prog="python -m t2t_repro.visualize", description=__doc__)
    flags.add_argument("--workdir", type=Path, required=True, help="a trained run")
    flags.add_argument("--sentence", required=True, help="source sentence")
    flags.add_argument(
        "--target", help="a translation to look at instead of the model's own", metavar="TEXT"
    )
    flags.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="F.html|F.png",
        help="HTML page with all layers and heads, or PNG of one layer",
    )
    flags.add_argument(
        "--kind",
        choices=_KINDS,
        default="encoder",
        help="self-attention of the encoder or decoder, or encoder-decoder attention (cross); an "
        "HTML page opens with this choice and with those below",
    )
    layer = "layer (default: the paper's 5, or the last)"
    cli.add_number(flags, "--layer", None, layer, 1, 1_000, metavar="N")
    heads = "heads to show (default: all)"
    cli.add_number(flags, "--heads", None, heads, 1, 1_024, nargs="+", metavar="N")
    flags.add_argument(
        "--word", help="show the attention of this word's first piece alone, as in Figure 3"
    )
    cli.add_strict(flags)
    cli.add_checkpoint(flags)
    cli.add_settings(flags, ["decode"])
    return flags


def main() -> None:
    """Parse the flags, then draw."""
    given = parser().parse_args()
    settings = cli.settings(given)
    if given.output.suffix not in (".html", ".png"):
        raise BadInput(f"--output={given.output}: wanted a name that ends with .html or .png")
    if not given.output.parent.is_dir():
        raise BadInput(f"--output={given.output}: {given.output.parent} is no directory; make it")
    workdir = Workdir(given.workdir)
    workdir.config(settings)  # finds a mistake before the slow import
    tensorflow_import.quiet()
    from t2t_repro import experiment

    run = experiment.restore(workdir, settings, given.strict, given.checkpoint)
    if not run.model.has_attention_weights:
        raise BadInput(
            f"{given.workdir}: the encoder has no full self-attention, whose weights could be "
            "drawn; wanted a run with it"
        )
    figure = _figure(run, given.sentence, given.target)
    view = figure.view(given.kind, given.layer, given.heads, given.word)
    if given.output.suffix == ".html":
        content = figure.html(view, _described(run.config)).encode()
    else:
        from t2t_repro.paper.attention_picture import picture

        content = picture(figure, view)
    storage.write(str(given.output.parent), given.output.name, content)
    print(figure.translation)


def _figure(run: "Experiment", sentence: str, target: str | None) -> "AttentionFigure":
    """Make the figure of a sentence and a translation, given or by the model itself."""
    from t2t_repro.decoding.translator import MOST_DRAWN_PIECES
    from t2t_repro.paper.attention_figure import attention_figure

    most = min(MOST_DRAWN_PIECES, run.config.decode.max_source_length)
    source = _encoded(run.vocabulary, "sentence", sentence, most)
    if target is not None:
        ids = _encoded(run.vocabulary, "target", target, MOST_DRAWN_PIECES)
    else:
        translator = run.translator()
        ids = translator.translate_ids([source])["ids"][0].numpy().tolist()
        ids = ids[: ids.index(EOS) + 1] if EOS in ids else ids
    return attention_figure(run.model, run.vocabulary, source, ids)


def _described(settings: config.Config) -> str:
    size = f"{settings.model.num_layers} layers of {settings.model.num_heads} heads"
    return f"{settings.problem}, {settings.variant}: {size}"


def _encoded(vocabulary: Vocabulary, flag: str, text: str, most: int) -> list[int]:
    (ids,) = vocabulary.encode([text])
    if not 1 < len(ids) <= most:
        raise BadInput(f"--{flag}: {len(ids) - 1} pieces; wanted a sentence of 1 to {most - 1}")
    return ids


if __name__ == "__main__":
    cli.run(main)
