"""Speed, padding and order of the input pipeline, beside tf.data's bucket_by_sequence_length.

Encoding is measured in CPU seconds over all processes, so that other work on the machine does not
count. Everything else is measured in seconds on the clock.
"""

import math
import re
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import tensorflow as tf

from pipelines import stream
from pipelines.batching import Batch, Batching
from pipelines.encode import encode_split
from pipelines.shards import EncodedSplit
from pipelines.vocabulary import FILES, PAD, Vocabulary
from pipelines.workers import cores
from t2t_repro.config import Config
from t2t_repro.problems import PROBLEMS

Row = dict[str, float | int | str]

_FEW_SHAPES = 64
_BASELINE_PAIRS = 100_000  # bucket_by_sequence_length delivers 10,000 to 20,000 per second
_GPU_TOKENS_PER_S = 400_000  # of both sides; a rate at which one GPU may ask for them


def rows(config: Config, pairs: int, repeats: int) -> Iterator[Row]:
    """Yield a row for each way to make batches of the same encoded text.

    The first rows are this package's batching with different limits on the number of shapes;
    the next are `bucket_by_sequence_length` with the boundaries of other toolkits. The last one is
    the stream of `train --stream`, which reads the text itself and encodes it.

    Args:
        config: Problem, vocabulary size, maximum length and batch size.
        pairs: Number of pairs drawn with replacement from the training text; 0: the text unchanged.
        repeats: Number of epochs to take the median of.
    """
    text = list(PROBLEMS[config.problem].examples("train", config))
    sentences = [pair[side] for pair in text for side in ("source", "target")]
    vocabulary = Vocabulary.learn(sentences, config.data.vocabulary_size)
    drawn = np.random.default_rng(0).integers(0, len(text), pairs) if pairs else range(len(text))
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "train"
        began, cpu_began = time.perf_counter(), _cpu_seconds()
        encode_split(
            lambda: (text[index] for index in drawn), vocabulary, config.data.max_length, directory
        )
        seconds, cpu_seconds = time.perf_counter() - began, _cpu_seconds() - cpu_began
        split = EncodedSplit.load(directory)
        about: Row = {"data": config.problem, "pairs": len(split)}
        sentencepiece_speed = _sentencepiece_sentences_per_cpu_s(sentences, vocabulary)
        speed: Row = {
            "prepared_sentences_per_s": 2 * len(drawn) / seconds,
            "prepared_sentences_per_cpu_s": 2 * len(drawn) / cpu_seconds,
            "sentencepiece_sentences_per_cpu_s": sentencepiece_speed,
        }
        for shapes in sorted({config.data.max_shapes, _FEW_SHAPES}, reverse=True):
            row = _plan(split, config, shapes, repeats)
            yield about | {"method": f"plan, {shapes} shapes"} | row | speed
        budget, limit = config.data.tokens_per_batch, config.data.max_length
        for toolkit, scheme in (
            ("tensor2tensor", tensor2tensor_scheme(budget, limit)),
            ("OpenNMT-tf", opennmt_scheme(budget, limit)),
        ):
            method = f"bucket_by_sequence_length, {toolkit}"
            yield about | {"method": method} | _bucket_by_sequence_length(split, *scheme)
        chosen = [text[index] for index in drawn[:_BASELINE_PAIRS]]
        yield about | {"method": "stream"} | _stream(chosen, vocabulary, config, folder, repeats)


def tensor2tensor_scheme(budget: int, max_length: int) -> tuple[list[int], list[int]]:
    """Return (boundaries, batch sizes): lengths from 8 on, each 1.1 times the one before.

    These are the buckets of tensor2tensor's `data_reader.py`.
    """
    boundaries, length = [], 8
    while length < max_length:
        boundaries.append(length + 1)
        length = max(length + 1, int(length * 1.1))
    return boundaries, [max(1, budget // (b - 1)) for b in boundaries] + [
        max(1, budget // max_length)
    ]


def opennmt_scheme(budget: int, max_length: int) -> tuple[list[int], list[int]]:
    """Return (boundaries, batch sizes) of OpenNMT-tf's Transformer: a bucket for each length."""
    boundaries = list(range(2, max_length + 1))
    return boundaries, [max(1, budget // (b - 1)) for b in boundaries] + [
        max(1, budget // max_length)
    ]


def _sentencepiece_sentences_per_cpu_s(sentences: list[str], vocabulary: Vocabulary) -> float:
    """Measure how many sentences per CPU second the library alone encodes into Python lists."""
    with tempfile.TemporaryDirectory() as folder:
        vocabulary.save(folder)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(Path(folder) / FILES[0]))
    some = sentences[:100_000]
    cpu_began = _cpu_seconds()
    processor.encode(some, num_threads=1)
    return len(some) / (_cpu_seconds() - cpu_began)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the child processes that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _plan(split: EncodedSplit, config: Config, shapes: int, repeats: int) -> Row:
    data = config.data
    batching = Batching(
        split,
        tokens_per_batch=data.tokens_per_batch,
        max_shapes=shapes,
        count_padding=data.count_padding,
        seed=config.train.seed,
    )
    began = time.perf_counter()
    plan, after = batching.plan(0), batching.plan(1)
    planning = (time.perf_counter() - began) / 2
    memory = [_epoch(batching, epoch) for epoch in range(repeats + 1)][1:]  # without the warm-up
    seconds = float(np.median([seconds for seconds, _ in memory]))
    tokens = int(split.lengths.sum())
    cells = sum(len(b.pairs) * (b.source_length + b.target_length) for b in plan)
    middle = len(plan) // 2
    return {
        "tokens_per_s": tokens / seconds,
        "pairs_per_s": len(split) / seconds,
        "padding_share": 1 - tokens / cells,
        "shapes": len({(len(b.pairs), *b[1:]) for b in plan}),
        "batches": len(plan),
        "plan_s": planning,
        "resume_s": _seconds(lambda: next(iter(batching.batches(0, middle)))),
        "neighbour_distance": _neighbour_distance(plan, len(split)),
        "meet_again_share": _meet_again_share(plan, after, len(split)),
        "memory_mb": memory[-1][1],
        "memory_growth_mb": memory[-1][1] - memory[0][1],
    }


def _epoch(batching: Batching, epoch: int) -> tuple[float, float]:
    """Return (seconds of the epoch, MB of memory in use after it)."""
    began = time.perf_counter()
    for _ in batching.batches(epoch):
        pass
    return time.perf_counter() - began, _memory_mb()


def _batch_of(plan: list[Batch], pairs: int) -> np.ndarray:
    """Return the number of each pair's batch in the plan: int64 [pairs]."""
    result = np.zeros(pairs, np.int64)
    for number, batch in enumerate(plan):
        result[batch.pairs[batch.pairs >= 0]] = number
    return result


def _neighbour_distance(plan: list[Batch], pairs: int) -> float:
    """Return the mean distance in the epoch, as a share of it, of pairs adjacent in the file.

    A random order gives 1/3; a single pair has no neighbour, NaN.
    """
    distances = np.abs(np.diff(_batch_of(plan, pairs)))
    return float(distances.mean() / len(plan)) if distances.size else math.nan


def _meet_again_share(plan: list[Batch], after: list[Batch], pairs: int) -> float:
    """Return the probability that two pairs of a batch share a batch in the next epoch, too."""
    later = _batch_of(after, pairs)
    met, again = 0, 0
    for batch in plan:
        numbers = later[batch.pairs[batch.pairs >= 0]]
        counts = np.unique(numbers, return_counts=True)[1]
        met += len(numbers) * (len(numbers) - 1)
        again += int((counts * (counts - 1)).sum())
    return again / max(1, met)


def _bucket_by_sequence_length(split: EncodedSplit, boundaries: list[int], sizes: list[int]) -> Row:
    """Measure a tf.data pipeline: shuffle, look up, bucket by the longer side, pad, prefetch.

    The ids are in memory.
    """
    chosen = np.random.default_rng(0).permutation(len(split))[:_BASELINE_PAIRS]
    lengths = split.lengths[chosen]
    sides = split.padded(chosen, *lengths.max(axis=0).tolist())
    source, target = (
        tf.RaggedTensor.from_tensor(side, lengths=length)
        for side, length in zip(sides, lengths.T, strict=True)
    )
    dataset = (
        tf.data.Dataset.range(len(chosen))
        .shuffle(len(chosen))
        .map(lambda index: (source[index], target[index]), tf.data.AUTOTUNE)
        .bucket_by_sequence_length(
            lambda source, target: tf.maximum(tf.shape(source)[0], tf.shape(target)[0]),
            boundaries,
            sizes,
            padded_shapes=([None], [None]),
            padding_values=tf.constant(PAD),
        )
        .prefetch(tf.data.AUTOTUNE)
    )
    began = time.perf_counter()
    shapes = [(tuple(source.shape), tuple(target.shape)) for source, target in dataset]
    seconds = time.perf_counter() - began
    cells = sum(math.prod(side) for pair in shapes for side in pair)
    return {
        "tokens_per_s": lengths.sum() / seconds,
        "pairs_per_s": len(chosen) / seconds,
        "padding_share": 1 - lengths.sum() / cells,
        "shapes": len(set(shapes)),
        "batches": len(shapes),
        "of_pairs": len(chosen),
    }


def _stream(
    text: Sequence[dict[str, str]],
    vocabulary: Vocabulary,
    config: Config,
    folder: str,
    repeats: int,
) -> Row:
    """Measure a stream from two text files to batches."""
    paths = f"{folder}/source", f"{folder}/target"
    for path, side in zip(paths, ("source", "target"), strict=True):
        Path(path).write_text("".join(f"{pair[side]}\n" for pair in text), encoding="utf-8")
    data, seed = config.data, config.train.seed
    files, encode_text = stream.AlignedFiles((paths,)), vocabulary.graph_encoder()
    began = time.perf_counter()
    lengths = stream.sample(files, encode_text, seed, data.max_length)
    buckets = stream.choose(
        lengths,
        tokens_per_batch=data.tokens_per_batch,
        max_shapes=data.max_shapes,
        count_padding=data.count_padding,
        max_length=data.max_length,
    )
    plan_s = time.perf_counter() - began
    own = stream.Stream(files, buckets, encode_text, max_length=data.max_length, seed=seed)
    seconds, cpu_seconds = [], []
    for epoch in range(repeats + 1):  # the first one is the warm-up
        began, cpu_began = time.perf_counter(), _cpu_seconds()
        batches = [(tuple(s.shape), tuple(t.shape)) for s, t in own.dataset(epoch)]
        seconds.append(time.perf_counter() - began)
        cpu_seconds.append(_cpu_seconds() - cpu_began)
    tokens = sum(int(tf.math.count_nonzero(side)) for batch in own.dataset(0) for side in batch)
    speed = tokens / float(np.median(seconds[1:]))
    return {
        "tokens_per_s": speed,
        "tokens_per_cpu_s": tokens / float(np.median(cpu_seconds[1:])),
        "share_of_a_gpu": speed / _GPU_TOKENS_PER_S,
        "cores": cores(),
        "pairs_per_s": speed / tokens * len(text),
        "padding_share": 1 - tokens / sum(math.prod(side) for batch in batches for side in batch),
        "shapes": len(set(batches)),
        "batches": len(batches),
        "plan_s": plan_s,
        "of_pairs": len(text),
    }


def _memory_mb() -> float:
    """Return the anonymous memory (RssAnon) of this process in MB, or NaN without /proc."""
    status = Path("/proc/self/status")
    found = re.search(r"RssAnon:\s+(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) / 1024 if found else math.nan


def _seconds(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
