"""Speed of the LiteRT export in int8 beside CTranslate2's int8.

The model and the workloads are those of `bench.decode`: base size with random weights and 32,000
pieces, beam 4, alpha 0.6. All engines get the same weights and sentences. Each workload is measured
in one engine after the other, each in a process of its own, because threads that wait for work in
one engine would take the cores from the other. The speeds are of ids: pieces are split and joined
elsewhere.

CTranslate2 is measured with a thread for each core, and with one: on an idle virtual machine its
threads sleep so deeply between products that one thread can be faster.
"""

import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.vocabulary import Vocabulary
from pipelines.workers import cores
from t2t_repro import config
from t2t_repro.bench.decode import BATCHES, LENGTH, MIXED, ROWS, sources

Row = dict[str, Any]

LENGTHS = (10, LENGTH, 60)  # of the single sentences whose latencies are measured
CALLS = 20  # single sentences for each repeat
CORES = cores()


class Call(typing.NamedTuple):
    """The seconds of a call, and the target tokens that it produced, EOS included."""

    seconds: float
    tokens: int


def rows(repeats: int) -> Iterator[Row]:
    """Yield rows of start, of batches, of single sentences, and of a file of mixed lengths.

    Yields:
        `file_mb`: size of the model file.
        `first_translation_s`: from the start of a fresh Python to its first translation.
        `load_s`: of which the time to load the export.
        `target_tokens_per_s`, `ctranslate2`, `ctranslate2_one_thread`: target tokens per second.
            Outputs have the length of their sources. In the file, CTranslate2 has one length for
            each batch; tokens are counted as each engine produced them.
        `ratio`, `ratio_one_thread`: the first over the second, and over the third.
        `p50_ms`, `p99_ms`, and the same of CTranslate2: latencies of one sentence, of which `ratio`
            and `ratio_one_thread` compare the medians.
    """
    with tempfile.TemporaryDirectory() as directory:
        export, peer = Path(directory, "litert"), Path(directory, "ctranslate2")
        _write(export, peer)
        yield _start(export)

        def measured(lengths: np.ndarray, calls: int, forced: bool = True) -> list[list[Call]]:
            batch = [row[row > 0].tolist() for row in sources(lengths)]
            return [
                _in_a_process(_litert_calls, export, batch, calls, forced),
                _in_a_process(_ctranslate2_calls, peer, batch, calls, CORES),
                _in_a_process(_ctranslate2_calls, peer, batch, calls, 1),
            ]

        for size in BATCHES:
            yield {"batch": size, **_speeds(measured(np.full(size, LENGTH), repeats))}
        for length in LENGTHS:
            calls = measured(np.full(1, length), repeats * CALLS)
            yield {"length": length, **_latencies(calls)}
        mixed = measured(np.sort(MIXED)[::-1], repeats, forced=False)
        yield {"batch": "mixed", **_speeds(mixed)}


def _write(export: Path, peer: Path) -> None:
    """Write the same random model in both formats."""
    from t2t_repro.model.transformer import Transformer
    from t2t_repro.serving import ctranslate2

    vocabulary, decode = random_vocabulary(), config.Decode()
    model = Transformer(config.Model(), ROWS, "float32")
    write_export(model, vocabulary, decode, export)
    peer.mkdir()
    ctranslate2.write_model(model, vocabulary, decode, peer, "int8")


def write_export(model: Any, vocabulary: Vocabulary, decode: config.Decode, export: Path) -> None:
    """Write a model that no run has trained as a LiteRT export in int8, in a new directory."""
    from t2t_repro.serving import litert
    from t2t_repro.serving.export_files import FORMAT_VERSION, write_settings

    export.mkdir()
    litert.write_model(model, vocabulary, decode, export, "int8")
    settings = {
        **{"format": "litert", "format_version": FORMAT_VERSION, "output": "text"},
        **{"problem": "random words", "variant": "base", "model": vars(config.Model())},
        "decode": vars(decode),
    }
    write_settings(export, settings)


def random_vocabulary() -> Vocabulary:
    """Learn `ROWS` pieces from random words."""
    rng = np.random.default_rng(0)
    letters = rng.integers(ord("a"), ord("z") + 1, (ROWS, 12), dtype=np.uint8)
    return Vocabulary.learn((row.tobytes().decode() for row in letters), ROWS)


def _start(export: Path) -> Row:
    """Measure the start of a fresh Python, without this package, up to its first translation."""
    code = (
        "import sys, time\n"
        "from translator import Translator\n"
        "began = time.perf_counter()\n"
        "translator = Translator('.')\n"
        "print(time.perf_counter() - began, flush=True)\n"
        f"translator.decode([[3] * {LENGTH - 1} + [1]], forced_length={LENGTH})\n"
    )
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=export, check=True, capture_output=True, text=True
    )
    seconds = time.perf_counter() - began
    size = (export / "model.tflite").stat().st_size
    return {
        "file_mb": size / 1e6,
        "first_translation_s": seconds,
        "load_s": float(done.stdout),
    }


def _in_a_process(measure: Callable[..., list[Call]], *arguments: Any) -> list[Call]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def _timed(call: Callable[[], int], count: int) -> list[Call]:
    """Return `count` calls, after two to warm up."""
    calls = []
    for _ in range(count + 2):
        began = time.perf_counter()
        tokens = call()
        calls.append(Call(time.perf_counter() - began, tokens))
    return calls[2:]


def _litert_calls(export: Path, batch: list[list[int]], count: int, forced: bool) -> list[Call]:
    from t2t_repro.serving.litert_translator import Translator

    translator = Translator(export)
    translator.max_extra_length = 0  # with random weights a hypothesis may never end

    def decode() -> int:
        length = max(map(len, batch)) if forced else None
        found = translator.decode(batch, forced_length=length)
        return sum(int(np.sum(hypotheses.ids[0] > 0)) for hypotheses in found)

    return _timed(decode, count)


def _ctranslate2_calls(peer: Path, batch: list[list[int]], count: int, threads: int) -> list[Call]:
    import ctranslate2

    translator = ctranslate2.Translator(str(peer), device="cpu", intra_threads=threads)
    pieces = Vocabulary.load(peer).pieces
    words = [[pieces[i] for i in ids[:-1]] for ids in batch]  # CTranslate2 adds EOS

    def decode() -> int:
        tokens = 0
        for first in range(0, len(words), max(BATCHES)):
            part = words[first : first + max(BATCHES)]
            length = max(map(len, part)) + 1
            results = translator.translate_batch(
                part,
                beam_size=config.Decode().beam_size,
                length_penalty=config.Decode().alpha,
                min_decoding_length=length,
                max_decoding_length=length,
            )
            tokens += sum(len(result.hypotheses[0]) for result in results)
        return tokens

    return _timed(decode, count)


def _speeds(engines: list[list[Call]]) -> Row:
    """Return the medians of target tokens per second, and their ratios."""
    ours, theirs, one_thread = (
        statistics.median(call.tokens / call.seconds for call in calls) for calls in engines
    )
    return {
        "target_tokens_per_s": ours,
        "ctranslate2": theirs,
        "ctranslate2_one_thread": one_thread,
        "ratio": ours / theirs,
        "ratio_one_thread": ours / one_thread,
    }


def _latencies(engines: list[list[Call]]) -> Row:
    """Return percentiles of the milliseconds of a call, and the ratios of the medians."""
    row = {
        f"{name}p{percent}_ms": float(
            np.percentile([call.seconds * 1e3 for call in calls], percent)
        )
        for name, calls in zip(("", "ctranslate2_", "one_thread_"), engines, strict=True)
        for percent in (50, 99)
    }
    ratios = {
        "ratio": row["ctranslate2_p50_ms"] / row["p50_ms"],
        "ratio_one_thread": row["one_thread_p50_ms"] / row["p50_ms"],
    }
    return row | ratios
