"""Translate stdin to stdout, one output line for every input line, from a run or an export.

A run of a parsing problem, or its export, writes one tree per sentence. In the input for it, words
and punctuation marks must be separated by spaces, as in the treebank.
"""

import argparse
import json
import os
import stat
import sys
import typing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from pipelines import progress
from pipelines.errors import BadInput
from pipelines.parsing import trees
from pipelines.sources import text_files
from t2t_repro import cli, tensorflow_import
from t2t_repro.workdir import Workdir

if typing.TYPE_CHECKING:
    from t2t_repro.decoding.aligner import Links
    from t2t_repro.decoding.guided_translator import SeededSampling
    from t2t_repro.decoding.lines import Line, Lines

    Align = Callable[[Sequence[tuple[str, str]]], list[Links]]

_Row = TypeVar("_Row")

_NOT_FOUND = -1e9  # score of a translation that the search did not find


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    flags = cli.Parser(prog="python -m t2t_repro.translate", description=__doc__)
    flags.add_argument(
        "--workdir",
        type=Path,
        nargs="+",
        help="a trained run; or several with one vocabulary, whose probabilities are averaged",
    )
    flags.add_argument("--saved_model", type=Path, help="instead: an export, or one version of it")
    flags.add_argument(
        "--litert", type=Path, help="instead: an export for LiteRT, or one version of it"
    )
    flags.add_argument(
        "--verify",
        action="store_true",
        help="first compare all files of the export with the SHA-256 in its settings.json",
    )
    cli.add_number(
        flags,
        "--nbest",
        None,
        "N output lines for every input line instead of one: the N best translations, best first, "
        "blank where the search found fewer; at most --beam_size; or N samples",
        1,
        1_000,
        metavar="N",
    )
    flags.add_argument(
        "--score",
        action="store_true",
        help="write score<TAB>translation; the score is (log-probability + length reward) / length "
        "penalty",
    )
    flags.add_argument(
        "--pretty", action="store_true", help="parsing: indent each tree, over several lines"
    )
    flags.add_argument(
        "--json",
        action="store_true",
        help='write {"source", "translations": [{"text", "score"}]} for every input line',
    )
    cli.add_strict(flags)
    cli.add_checkpoint(flags)
    _add_guidance(flags.add_argument_group("with --workdir alone"))
    cli.add_settings(flags, ["decode"])
    return flags


def _add_guidance(flags: argparse._ArgumentGroup) -> None:
    cli.add_number(
        flags,
        "--sampling_topk",
        None,
        "draw each piece from the K likeliest instead of searching; 0: from all",
        0,
        1_000_000,
        metavar="K",
    )
    text = "divides the logits before drawing: below 1 favours likelier pieces, above 1 the others"
    cli.add_number(flags, "--sampling_temperature", 1.0, text, 0.01, 100)
    text = "seed of --sampling_topk; a line's samples depend on it and on the line's number"
    # "seed" is also a setting of training
    cli.add_number(flags, "--seed", None, text, 0, 2**32 - 1, metavar="N", dest="sampling_seed")
    flags.add_argument(
        "--prefixes",
        type=Path,
        help="a file with the beginning of each line's translation; an empty line for none",
    )
    flags.add_argument(
        "--alignments",
        type=Path,
        help="write to this file which words belong together, from the attention: i-j for source "
        "word i and target word j, counted from 0",
    )


def main() -> None:
    """Parse the flags, then translate."""
    given = parser().parse_args()
    settings = cli.settings(given)
    _check(given, settings)
    if given.workdir:
        _check_runs(given, settings)  # before the slow import
    translate, align = _load(given, settings)
    # A person at the keyboard wants each translation at once.
    at_once = sys.stdin.isatty()
    sources: deque[str] = deque()  # read, and not yet translated: as many as are sorted by length
    rows = _with_sources(translate(_kept(sources), 1 if at_once else 4096), sources)
    if align:
        rows = _with_alignments(given.alignments, rows, align, 1 if at_once else 64)
    for number, (source, row) in enumerate(_with_progress(rows, at_once), start=1):
        if row[0].cut:
            _note(f"line {number}: too long, its end was cut off")
        for text in [_json(source, row)] if given.json else _columns(row, given):
            print(text, flush=at_once)


def _check(given: argparse.Namespace, settings: dict[str, Any]) -> None:
    models = given.workdir, given.saved_model, given.litert
    if sum(model is not None for model in models) != 1:
        raise BadInput("wanted one of --workdir, --saved_model and --litert")
    if settings and not given.workdir:
        raise BadInput(f"--{next(iter(settings))}: an export has its decode settings in it")
    if given.verify and given.workdir:
        raise BadInput("--verify: an export's files have digests; wanted --saved_model or --litert")
    if given.strict and not given.workdir:
        raise BadInput("--strict: an export has no checkpoints; leave it out")
    if given.checkpoint != "average" and not given.workdir:
        raise BadInput("--checkpoint: an export has the weights it was made with; leave it out")
    for name in ("sampling_topk", "prefixes", "alignments"):
        if getattr(given, name) is not None and not given.workdir:
            raise BadInput(f"--{name}: an export has no input for it; wanted --workdir")
    if given.sampling_topk is None and (
        given.sampling_temperature != 1 or given.sampling_seed is not None
    ):
        raise BadInput(
            "--sampling_temperature and --seed are for sampling; wanted --sampling_topk=K too (0: "
            "all pieces)"
        )
    if given.sampling_topk is not None and "beam_size" in settings:
        raise BadInput("--beam_size: sampling has no beam; --nbest=N draws N translations")
    if given.json and (given.pretty or given.score):
        raise BadInput("--json: it has scores, and a line for each input; leave out the other flag")


def _check_runs(given: argparse.Namespace, settings: dict[str, Any]) -> None:
    for number, path in enumerate(given.workdir):
        run = Workdir(path).config(settings)
        if number == 0 and given.sampling_topk is None:  # the first run's beam is that of all
            _check_nbest(given.nbest, run.decode.beam_size, "give a greater --beam_size too")
        _check_pretty(given.pretty, run.problem)
        for name in ("prefixes", "alignments"):
            _check_words(name, getattr(given, name), run.problem)
    if given.alignments:
        _check_alignments(given.alignments, given.prefixes)


def _check_alignments(path: Path, prefixes: Path | None) -> None:
    """Raise BadInput if the alignments cannot be written, or would replace what is read."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        return  # a pipe, whose reader would take the end of this look for the end of all
    is_new = not os.path.lexists(path)  # a link to nothing stays
    try:
        with path.open("ab") as file:
            own = os.fstat(file.fileno())
        if is_new:
            path.unlink()
    except OSError as error:
        raise BadInput(f"--alignments={path}: {error.strerror}; give another file") from None
    read = [os.fstat(0)] if sys.stdin else []
    read += [prefixes.stat()] if prefixes and prefixes.exists() else []
    if any(os.path.samestat(own, other) for other in read):
        raise BadInput(f"--alignments={path}: it is read, too; give another file to write to")


def _check_words(name: str, value: Path | None, problem: str) -> None:
    from t2t_repro.problems import PROBLEMS

    if value and PROBLEMS[problem].postprocess is not None:
        raise BadInput(f"--{name}: {problem} writes trees; wanted a run that translates")


def _kept(sources: deque[str]) -> Iterator[str]:
    """Yield the lines of stdin, and append each to the sources."""
    for line in _lines():
        sources.append(line)
        yield line


def _with_sources(
    rows: "Iterator[list[Line]]", sources: deque[str]
) -> "Iterator[tuple[str, list[Line]]]":
    for row in rows:
        yield sources.popleft(), row


def _with_alignments(
    path: Path, rows: "Iterator[tuple[str, list[Line]]]", align: "Align", count: int
) -> "Iterator[tuple[str, list[Line]]]":
    """Yield the rows, and write the alignment of each translation to a file, in Pharaoh's format.

    Args:
        path: The file, which gets a line for each translation.
        rows: (source, its translations).
        align: See `Aligner.align`.
        count: Rows to read before the first result.
    """
    chunk = list(islice(rows, count))
    with path.open("ab", buffering=0) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(0)  # only now that the input could be translated
        while chunk:
            pairs = [(source, line.translation) for source, row in chunk for line in row]
            lines = (" ".join(f"{i}-{j}" for i, j in links) + "\n" for links in align(pairs))
            content = "".join(lines).encode()
            try:
                written = file.write(content)
            except OSError as error:
                raise BadInput(f"--alignments={path}: {error.strerror}; make room") from None
            if written < len(content):
                raise BadInput(f"--alignments={path}: the disk is full; make room")
            yield from chunk
            chunk = list(islice(rows, count))


def _json(source: str, row: "list[Line]") -> str:
    """Return the translations that were found as JSON."""
    found = [line for line in row if line.score > _NOT_FOUND]
    translations = [{"text": line.translation, "score": round(line.score, 4)} for line in found]
    return json.dumps({"source": source, "translations": translations}, ensure_ascii=False)


def _columns(row: "list[Line]", given: argparse.Namespace) -> Iterator[str]:
    for line in row:
        score = f"{line.score:.4f}\t" if given.score else ""
        yield score + (_indented(line.translation) if given.pretty else line.translation)


def _indented(tree: str) -> str:
    try:
        return trees.indented(trees.parse(tree))
    except BadInput as error:  # from an export; `_check_pretty` covers runs
        raise BadInput(f"--pretty: wanted the export of a run that parses; {error}") from None


def _check_pretty(pretty: bool, problem: str) -> None:
    from t2t_repro.problems import PROBLEMS

    if pretty and PROBLEMS[problem].postprocess is None:
        raise BadInput(f"--pretty: {problem} does not parse, and only trees are indented")


def _check_nbest(nbest: int | None, beam_size: int, way_out: str) -> None:
    if nbest and nbest > beam_size:
        raise BadInput(f"--nbest={nbest}: the search keeps {beam_size} hypotheses; {way_out}")


def _load(given: argparse.Namespace, settings: dict[str, Any]) -> "tuple[Lines, Align | None]":
    """Load the runs or the export.

    Returns:
        A function from lines to their n best translations; and with --alignments the aligner.
    """
    from t2t_repro.serving import exports

    n_best = given.nbest or 1
    if given.verify:
        exports.verify(given.saved_model or given.litert)
    if given.litert:  # needs no TensorFlow
        return exports.litert(given.litert, n_best), None
    tensorflow_import.quiet()
    if given.saved_model:
        return exports.saved_model(given.saved_model, n_best), None
    from t2t_repro import experiment

    workdirs = [Workdir(path) for path in given.workdir]
    run, *others = experiment.restore_several(workdirs, settings, given.strict, given.checkpoint)
    align = run.aligner().align if given.alignments else None
    if not (others or given.prefixes or given.sampling_topk is not None):
        return run.translator(postprocess=True).lines(n_best), align
    prefixes = text_files.lines(given.prefixes) if given.prefixes else None
    guided = run.guided_translator(n_best, _sampling(given), others)
    return guided.guided_lines(prefixes), align


def _sampling(given: argparse.Namespace) -> "SeededSampling | None":
    if given.sampling_topk is None:
        return None
    from t2t_repro.decoding.guided_translator import SeededSampling
    from t2t_repro.decoding.sampling import Sampling

    drawn_from = Sampling(given.sampling_topk, given.sampling_temperature)
    return SeededSampling(drawn_from, given.sampling_seed or 0)


def _lines() -> Iterator[str]:
    """Yield lines of stdin, split at line feeds only; invalid UTF-8 becomes U+FFFD, with a note."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if number == 1:
            text_files.check_plain("stdin", line)
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield line.decode()
        except UnicodeDecodeError:
            _note(f"line {number}: not UTF-8, read with replacement characters")
            yield line.decode(errors="replace")


def _with_progress(rows: Iterator[_Row], at_once: bool) -> Iterator[_Row]:
    """Yield the rows, with a progress bar on stderr unless translations appear on the terminal."""
    interval = progress.interval()
    hidden = at_once or sys.stdout.isatty()
    bar = tqdm(rows, desc="translate", unit="line", mininterval=interval, delay=2, disable=hidden)
    yield from bar


def _note(message: str) -> None:
    """Print a line on stderr, above the progress bar if there is one."""
    if sys.stderr.isatty():
        tqdm.write(message, file=sys.stderr)
    else:
        print(message, file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
