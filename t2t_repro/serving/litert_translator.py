"""Translate with a LiteRT export: NumPy, sentencepiece and ai-edge-litert are all it needs.

`python -m t2t_repro.export --format=litert` puts a copy of this file into the export, as
translator.py. In the export's directory, `python translator.py < input > output` translates lines,
and a program translates with

    Translator(directory).translate(["The house is old."])  # ['Das Haus ist alt.']

model.tflite holds two functions. `encode` maps the ids of sentences to the keys and values that
the decoder's layers read. `decode` computes one position of the hypotheses of several sentences,
and returns the likeliest continuations of each beam. The search between these calls is here; it is
the search of the paper's section 6.1, with the length penalty of Wu et al. 2016, equation 14.

Axes: b sentences, m hypotheses of a sentence, h heads, s source positions, t target positions.
"""

import ctypes
import hashlib
import json
import mmap
import os
import re
import sys
import typing
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from ai_edge_litert.interpreter import Interpreter

MODEL, PIECES, SETTINGS = "model.tflite", "vocabulary.model", "settings.json"
FORMAT_VERSION = 1  # of the directory; raised when an older reader could not use it

PAD, EOS = 0, 1
IMPOSSIBLE = -1e9  # log-probability of a forbidden token; finite, so that no sum is NaN

# Sentences decoded at once, at most: so many, so many positions of source and target together, and
# so many numbers in the cache at one position: 16 sentences of the paper's base. More would
# not fit the processor's own cache: 64 sentences take 1.3 s by 16, and 1.6 s at once (2 cores).
_LINES = 64
_POSITIONS = 8_192
_NUMBERS = 400_000
_ENCODED = 128  # source positions encoded at once, unless one sentence has more
# Target positions by which the cache grows, or a quarter of what it has; finished sentences are
# dropped then, too.
_ROOM = 8

# Characters that would end a line, and lone surrogates, are read and written as a space.
_fold = re.compile("[\x00\n\v\f\r\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]")

# What reading damaged files may raise.
_FAILURES = (
    OSError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
)


class Unusable(ValueError):
    """A directory that is not an export this reader can use; the message says why."""


class Line(typing.NamedTuple):
    """A translation of one line."""

    translation: str
    score: float  # log-probability and length reward over length penalty
    cut: bool  # whether the source was too long and lost its end


class Hypotheses(typing.NamedTuple):
    """The finished hypotheses of one sentence, best first."""

    ids: np.ndarray  # int32 [m, t], each ending with EOS, then PAD
    scores: np.ndarray  # float32 [m], descending; IMPOSSIBLE if not found


class Translator:
    """A LiteRT export, ready to translate, in one thread at a time.

    Args:
        directory: The export, `<export_dir>/<version>`.
        threads: Threads of the matrix products; None means one for each core.

    Raises:
        Unusable: The directory is not an export, is damaged, or is newer than this reader.
    """

    def __init__(self, directory: str | os.PathLike[str], threads: int | None = None):
        directory = Path(directory)
        try:
            settings = json.loads((directory / SETTINGS).read_text(encoding="utf-8"))
            _check(settings)
            for name in (MODEL, PIECES):
                _check_content(directory / name, settings["sha256"][name])
            self._makes_trees = settings["output"] == "trees"
            decode = settings["decode"]
            self.alpha = float(decode["alpha"])
            self.length_reward = float(decode["length_reward"])
            self.length_ratio = float(decode["length_ratio"] or 1)  # null: none was measured
            self.max_extra_length = int(decode["max_extra_length"])
            self.max_source_length = int(decode["max_source_length"])
            lengths = self.max_extra_length, self.max_source_length - 2
            reasonable = all(0 <= value <= 10 for value in (self.alpha, self.length_reward))
            if not (reasonable and 0 < self.length_ratio <= 100 and min(lengths) >= 0):
                raise ValueError(f"the decode settings in {SETTINGS} cannot be")
            self._pieces = sentencepiece.SentencePieceProcessor()
            self._pieces.LoadFromSerializedProto((directory / PIECES).read_bytes())
            if (self._pieces.pad_id(), self._pieces.eos_id()) != (PAD, EOS):
                raise ValueError(f"{PIECES} is the vocabulary of another program")
            self._model = _Model(directory / MODEL, threads or _cores())
        except _FAILURES as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
            if isinstance(error, OSError) and error.filename:
                reason = f"{Path(error.filename).name}: {reason}"
            raise Unusable(f"{directory}: not a usable LiteRT export ({reason})") from None
        self.beam_size = self._model.beam_size

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """Translate sentences, in their order."""
        return [lines[0].translation for lines in self.nbest(sentences, 1)]

    def nbest(self, sentences: Sequence[str], count: int) -> list[list[Line]]:
        """Translate sentences, and return the `count` best translations of each, best first.

        A sentence of more than `max_source_length` pieces loses its end; its lines are marked as
        cut. Where the search finds fewer than `count` hypotheses, the last are empty with a score
        of IMPOSSIBLE. White space alone translates to the empty string, with score 0.

        Raises:
            ValueError: `count` is not between 1 and the beam size.
        """
        if not 1 <= count <= self.beam_size:
            raise ValueError(f"count: wanted 1 to the beam size {self.beam_size}, got {count}")
        texts = [_fold.sub(" ", sentence) for sentence in sentences]
        pieces, longest = self._pieces.encode(texts), self.max_source_length - 1
        sources = [[*ids[:longest], EOS] for ids in pieces]
        spoken = [number for number, ids in enumerate(sources) if len(ids) > 1]
        found = self.decode([sources[number] for number in spoken], count)
        blank = [Line("", 0.0, False)] + [Line("", IMPOSSIBLE, False)] * (count - 1)
        results = [blank] * len(sources)
        for number, hypotheses in zip(spoken, found, strict=True):
            cut = len(pieces[number]) > longest
            results[number] = self._lines(texts[number], hypotheses, cut)[:count]
        return results

    def translate_ids(self, sources: Sequence[Sequence[int]]) -> list[tuple[list[int], float]]:
        """Translate sentences of ids, each ending with EOS: the best hypothesis and its score."""
        return [
            (found.ids[0][found.ids[0] != PAD].tolist(), float(found.scores[0]))
            for found in self.decode(sources)
        ]

    def decode(
        self, sources: Sequence[Sequence[int]], n_best: int = 1, forced_length: int | None = None
    ) -> list[Hypotheses]:
        """Decode sentences of ids, each ending with EOS.

        Args:
            sources: The ids.
            n_best: Hypotheses that have to be certain before a sentence's search ends.
            forced_length: Length of every output, EOS included, to measure speed. None: at most
                the length of the source + `max_extra_length`, as in the paper.
        """
        results: list[Hypotheses | None] = [None] * len(sources)
        for numbers in self._batches(sources):
            batch = self._decode([sources[i] for i in numbers], n_best, forced_length)
            for number, hypotheses in zip(numbers, batch, strict=True):
                results[number] = hypotheses
        return typing.cast(list[Hypotheses], results)

    def _batches(self, sources: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Yield numbers of sentences in batches, longest first."""
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        while order:
            positions = 2 * len(sources[order[0]]) + self.max_extra_length
            limits = _LINES, _POSITIONS // positions, _NUMBERS // self._model.numbers
            count = max(1, min(limits))
            yield order[:count]
            order = order[count:]

    def _decode(
        self, sources: list[Sequence[int]], n_best: int, forced_length: int | None
    ) -> list[Hypotheses]:
        source = np.array([len(ids) for ids in sources])
        most = source * 0 + forced_length if forced_length else source + self.max_extra_length
        expected = np.float32(self.length_ratio) * source.astype("float32")
        lengths = expected, most, most if forced_length else most * 0
        beam = _Beam(lengths, self.beam_size, self.alpha, self.length_reward)
        results: dict[int, Hypotheses] = {}
        numbers = np.arange(len(sources))  # of the sentences that are still searched
        self._model.start(sources)
        while True:
            going = beam.can_improve(n_best)
            if beam.position == beam.room or not going.any():
                for row in np.flatnonzero(~going):
                    results[int(numbers[row])] = beam.hypotheses(int(row))
                if not going.any():
                    return [results[number] for number in range(len(sources))]
                numbers = numbers[going]
                beam.keep(going)
                beam.make_room(max(_ROOM, beam.room // 4))
                self._model.resize(going, beam.room)
            beam.grow(*self._model.step(beam))

    def _lines(self, sentence: str, hypotheses: Hypotheses, cut: bool) -> list[Line]:
        found = hypotheses.scores > IMPOSSIBLE
        rows = [row[(row != PAD) & (row != EOS)].tolist() for row in hypotheses.ids[found]]
        texts = [_fold.sub(" ", text) for text in self._pieces.decode(rows)]
        if self._makes_trees:
            from pipelines.parsing.linear_trees import tree_of  # lies in a parsing run's export

            texts = [tree_of(sentence, text) for text in texts]
        texts += [""] * int(np.sum(~found))
        return [Line(*pair, cut) for pair in zip(texts, hypotheses.scores.tolist(), strict=True)]


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # not Linux


def _check(settings: Any) -> None:
    """Raise ValueError unless settings.json describes a directory that this reader can use."""
    if not isinstance(settings, dict) or settings.get("format") != "litert":
        raise ValueError(f"{SETTINGS} does not say that the format is litert")
    version = settings.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ValueError(
            f"format_version {version}, and this reader knows versions up to {FORMAT_VERSION}: "
            "use the translator.py in the export, or a newer t2t_repro"
        )


def _check_content(path: Path, digest: str) -> None:
    """Raise ValueError if a file is not the one that was exported."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):  # `hashlib.file_digest` needs Python 3.11
            found.update(block)
    if found.hexdigest() != digest:
        raise ValueError(f"{path.name} is damaged: its SHA-256 is not the one in {SETTINGS}")


class _Model:
    """model.tflite: the encoder, one step of the decoder, and the decoder's cache.

    The cache and the encoder's output lie in the interpreter's own input tensors. The functions
    that return views of these are kept; a view itself must be gone before the interpreter runs.
    """

    def __init__(self, path: Path, threads: int):
        self._interpreter = Interpreter(str(path), num_threads=threads)
        runner = self._interpreter.get_signature_runner("decode")
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        self._index = {name: detail["index"] for name, detail in inputs.items()}
        self._input, self._output = (
            {name: self._interpreter.tensor(detail["index"]) for name, detail in details.items()}
            for details in (inputs, outputs)
        )
        self._shape = {name: detail["shape_signature"] for name, detail in inputs.items()}
        self.beam_size = int(self._shape["tokens"][1])
        self._cached = sorted(name for name in inputs if name.startswith(("key_", "value_")))
        self._memory = sorted(name for name in inputs if name.startswith("memory_"))
        # In the cache at one position of one sentence.
        self.numbers = sum(
            self.beam_size * int(self._shape[name][1]) * int(self._shape[name][3])
            for name in self._cached
        )
        if not (self._cached and self._memory):
            raise ValueError(f"{path.name} has no inputs for keys and values")
        # SignatureRunner holds on to the interpreter, which then refuses to run.
        del runner
        self._warm_up(path)

    def _warm_up(self, path: Path) -> None:
        """Encode, and allocate the decoder; XNNPACK then copies the weights to its own layout."""
        self.start([[EOS]])
        _release(path)
        self.resize(np.array([True]), 1)
        _release(path)

    def start(self, sources: Sequence[Sequence[int]]) -> None:
        """Begin with the ids of sentences: encode them, with an empty cache."""
        lengths = np.array([len(ids) for ids in sources])
        padding = np.arange(lengths.max()) >= lengths[:, None]  # [b, s]
        self._source_mask = np.where(padding, IMPOSSIBLE, 0).astype("float32")[:, None, None]
        self._kept = {}
        for name in (*self._cached, *self._memory):
            _, heads, _, width = self._shape[name]
            positions = lengths.max() if name in self._memory else 0
            self._kept[name] = np.zeros((len(sources), heads, positions, width), "float32")
        first = 0
        while first < len(sources):
            # Together until their products are large enough for all threads.
            count = int(np.sum(np.cumsum(lengths[first:]) <= _ENCODED)) or 1
            self._encode(sources[first : first + count], first)
            first += count

    def _encode(self, sources: Sequence[Sequence[int]], row: int) -> None:
        """Encode sentences into the rows from `row` on."""
        number = np.repeat(np.arange(len(sources)), [len(ids) for ids in sources])
        mask = np.where(number[:, None] == number, 0, IMPOSSIBLE).astype("float32")
        outputs = self._interpreter.get_signature_runner("encode")(
            ids=np.concatenate(sources).astype("int32"),
            position=np.concatenate([np.arange(len(ids)) for ids in sources]).astype("int32"),
            mask=mask[None, None],
        )
        for name in self._memory:
            values, first = outputs[name.removeprefix("memory_")][0], 0
            for place, ids in enumerate(sources, start=row):
                self._kept[name][place, :, : len(ids)] = values[:, first : first + len(ids)]
                first += len(ids)

    def resize(self, going: np.ndarray, room: int) -> None:
        """Drop the sentences that are not `going` [b], and make room for `room` positions."""
        kept = self._kept
        if not kept:  # in the interpreter's memory, which does not outlast a change of sizes
            names = (*self._cached, *self._memory)
            kept = {name: self._input[name]()[going] for name in names}
        self._kept = {}
        self._source_mask = self._source_mask[going]
        sentences, source_length = len(self._source_mask), self._source_mask.shape[-1]
        for name, shape in self._shape.items():
            size = [sentences, *shape[1:]]
            if name == "position":
                size = [1]
            elif name == "mask":
                size[3] = (room + 1) * self.beam_size
            elif name in self._cached:
                size[2] = room * self.beam_size
            elif name in self._memory or name == "source_mask":
                size[shape.tolist().index(-1, 1)] = source_length
            self._interpreter.resize_tensor_input(self._index[name], size)
        self._interpreter.allocate_tensors()
        for name, values in kept.items():
            view = self._input[name]()
            view[:, :, : values.shape[2]] = values
            view[:, :, values.shape[2] :] = 0  # memory is not cleared, and NaN times 0 is NaN
        self._input["source_mask"]()[...] = self._source_mask
        own = np.where(np.eye(self.beam_size), 0, IMPOSSIBLE)  # the keys of the newest position
        self._input["mask"]()[..., -self.beam_size :] = own

    def step(self, beam: "_Beam") -> tuple[np.ndarray, ...]:
        """Compute the 2 m best continuations of each beam, and remember this position's keys.

        Returns:
            log_prob float32 [b, 2m], descending; parent and token int32 [b, 2m]; and the
            log-probability of each hypothesis if it ends here, float32 [b, m].
        """
        self._input["tokens"]()[...] = beam.tokens
        self._input["position"]()[...] = beam.position
        self._input["log_prob"]()[...] = beam.alive_log_prob
        cached = beam.mask.reshape(len(beam.mask), 1, self.beam_size, -1)
        self._input["mask"]()[..., : -self.beam_size] = cached
        self._interpreter.invoke()
        first = beam.position * self.beam_size
        for name in self._cached:
            self._input[name]()[:, :, first : first + self.beam_size] = self._output[name]()
        names = ("log_prob", "parent", "token", "ending")
        return tuple(self._output[name]().copy() for name in names)


def _release(path: Path) -> None:
    """Give the pages of a mapped file back to the system, which reads them again when needed.

    XNNPACK has its own copy of the weights; the original would double the memory in use.
    """
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            fields = [line.split(maxsplit=5) for line in maps]
    except OSError:  # not Linux
        return
    free = ctypes.CDLL(None).madvise
    for span, *_, name in (field for field in fields if len(field) == 6):
        if name.rstrip("\n") == str(path.resolve()):
            start, end = (int(address, 16) for address in span.split("-"))
            free(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


class _Beam:
    """The hypotheses of several sentences: `t2t_repro.decoding.beam_search`, in NumPy."""

    def __init__(self, lengths: Sequence[np.ndarray], beam_size: int, alpha: float, reward: float):
        batch = len(lengths[0])
        self.expected, self.most, self.least = lengths
        self.alpha, self.reward = alpha, reward
        self.position = 0
        self.alive = np.zeros((batch, beam_size, 0), np.int32)
        self.alive_log_prob = np.full((batch, beam_size), IMPOSSIBLE, np.float32)
        self.alive_log_prob[:, 0] = 0
        self.finished = np.zeros((batch, beam_size, 0), np.int32)
        self.finished_score = np.full((batch, beam_size), IMPOSSIBLE, np.float32)
        # 0 where a hypothesis has its key of an earlier position, in the slot of its ancestor; and
        # IMPOSSIBLE elsewhere. [b, m, t, m]
        self.mask = np.zeros((batch, beam_size, 0, beam_size), np.float32)

    @property
    def room(self) -> int:
        """The number of positions that there is room for."""
        return self.alive.shape[2]

    @property
    def tokens(self) -> np.ndarray:
        """The last token of every hypothesis, int32 [b, m]; PAD at the start."""
        return self.alive[:, :, self.position - 1] if self.position else self.alive[:, :, 0] * 0

    def can_improve(self, n_best: int) -> np.ndarray:
        """Return whether a hypothesis can still become one of the n best: bool [b]."""
        best = self.alive_log_prob[:, 0]
        # Log-probabilities only fall, so no score can be better than `bound`.
        numerator = best + self.reward * self.expected
        length = np.where(numerator < 0, self.most, self.position + 1)
        bound = (numerator / _penalty(length, self.alpha)).astype(np.float32)
        is_better = bound > self.finished_score[:, n_best - 1]
        return is_better & (best > IMPOSSIBLE / 2) & (self.position < self.most)

    def hypotheses(self, row: int) -> Hypotheses:
        """Return the finished hypotheses of a sentence."""
        return Hypotheses(self.finished[row], self.finished_score[row])

    def keep(self, going: np.ndarray) -> None:
        """Drop the sentences that are not `going` [b]."""
        hypotheses = "alive", "alive_log_prob", "finished", "finished_score"
        for name in ("expected", "most", "least", *hypotheses):
            setattr(self, name, getattr(self, name)[going])
        self.mask = self.mask[going]

    def make_room(self, positions: int) -> None:
        """Make room for more positions."""
        more = ((0, 0), (0, 0), (0, positions))
        self.alive, self.finished = np.pad(self.alive, more), np.pad(self.finished, more)
        self.mask = np.pad(self.mask, (*more, (0, 0)), constant_values=IMPOSSIBLE)

    def grow(
        self, log_prob: np.ndarray, parent: np.ndarray, token: np.ndarray, ending: np.ndarray
    ) -> None:
        """Append a token to every hypothesis; keep the m best alive and the m best finished."""
        beam_size, rows = self.alive.shape[1], np.arange(len(self.alive))[:, None]
        length = self.position + 1
        must_end = length >= self.most
        if must_end.any():
            order = _best(ending, beam_size)
            last = np.pad(ending[rows, order], ((0, 0), (0, beam_size)), constant_values=IMPOSSIBLE)
            log_prob = np.where(must_end[:, None], last, log_prob)
            parent = np.where(must_end[:, None], np.tile(order, 2), parent)
            token = np.where(must_end[:, None], EOS, token)
        ended = token == EOS
        too_early = ended & (length < self.least)[:, None]
        log_prob = np.where(too_early, IMPOSSIBLE, log_prob)

        grown = self.alive[rows, parent]  # [b, 2m, t]
        grown[:, :, self.position] = token
        reward = self.reward * np.minimum(length, self.expected)[:, None]
        score = (log_prob + reward) / _penalty(length, self.alpha)
        score = np.where(ended & (log_prob > IMPOSSIBLE / 2), score, IMPOSSIBLE)
        scores = np.concatenate([self.finished_score, score], axis=1).astype(np.float32)
        best = _best(scores, beam_size)
        self.finished = np.concatenate([self.finished, grown], axis=1)[rows, best]
        self.finished_score = scores[rows, best]

        # Ended hypotheses rank below impossible ones, so that none goes on where all have to end.
        going_on = np.where(ended, 2 * IMPOSSIBLE, log_prob).astype(np.float32)
        keep = _best(going_on, beam_size)
        self.alive, self.alive_log_prob = grown[rows, keep], going_on[rows, keep]
        parent = parent[rows, keep]
        self.mask = self.mask[rows, parent]
        self.mask[rows, np.arange(beam_size), self.position, parent] = 0
        self.position = length


def _penalty(length: Any, alpha: float) -> Any:
    """Compute ((5 + length) / 6)^alpha, Wu et al. 2016 equation 14; length counts EOS."""
    return ((np.float32(5) + np.asarray(length, np.float32)) / np.float32(6)) ** np.float32(alpha)


def _best(values: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the `count` greatest of each row, the first ones in case of ties."""
    return np.argsort(-values, axis=1, kind="stable")[:, :count]


def main() -> None:
    """Translate stdin to stdout, with the export in this file's directory."""
    try:
        translator = Translator(Path(__file__).parent)
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    lines = (line.removesuffix(b"\n").decode(errors="replace") for line in sys.stdin.buffer)
    try:
        while window := list(islice(lines, 4096)):
            print(*translator.translate(window), sep="\n", flush=True)
    except BrokenPipeError:  # the reader of stdout went away, as `head` does
        os._exit(1)  # at the end Python would write to it once more
    except OSError as error:  # the disk is full
        print(f"error: stdout: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(2)


if __name__ == "__main__":
    main()
