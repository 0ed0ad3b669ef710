"""Translate with an export for CTranslate2, ranked by the paper's length penalty.

docs/engines.md, "CTranslate2", says how CTranslate2's search differs from the paper's.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import ctranslate2

from pipelines import regular_file
from pipelines.parsing.linear_trees import tree_of
from pipelines.vocabulary import EOS, Vocabulary, fold
from t2t_repro.decoding.lines import Line
from t2t_repro.serving import export_files

_LENGTH_PENALTY = 0.6  # exponent of CTranslate2's own penalty, by which it prunes
_BATCH = 64  # sentences decoded at once
# The limit of CTranslate2's outputs is one for all sentences of a call. A call's sentences differ
# by fewer pieces than this, so that the limit of each is a function of its own length.
_LENGTHS = 32
_LEAST_POSITIONS = 1024  # for sources; an export has as many if its own limit is lower
_PIECES = "shared_vocabulary.json"  # by id, as CTranslate2 reads them
_MOST_BYTES = 1 << 26  # of that file; with 37,000 pieces it has 500 KB

# What reading damaged files may raise.
_FAILURES = OSError, ValueError, ArithmeticError, LookupError, TypeError, RuntimeError, MemoryError


@dataclasses.dataclass
class _Hypothesis:
    ids: list[int]  # with EOS
    log_prob: float
    is_cut: bool


class Translator:
    """An export for CTranslate2, ready to translate.

    Args:
        directory: The export, `<export_dir>/<version>`.
        threads: Threads of the matrix products; None means one for each core.

    Raises:
        BadInput: The directory is not an export, or is damaged.
    """

    def __init__(self, directory: Path, threads: int | None = None):
        export_files.check(directory, "model.bin")
        settings = export_files.settings(directory)
        decode = export_files.decode(directory, settings)
        self.beam_size = decode.beam_size
        self._alpha, self._length_reward = decode.alpha, decode.length_reward
        self._length_ratio = decode.expected_ratio
        self._max_source_length = decode.max_source_length
        self._max_extra_length = decode.max_extra_length
        self._makes_trees = settings.get("output") == "trees"
        try:
            self._vocabulary = Vocabulary.load(directory)
            pieces = self._vocabulary.pieces
            if json.loads(regular_file.read(directory / _PIECES, _MOST_BYTES)) != pieces:
                raise ValueError(f"vocabulary.model has other pieces than {_PIECES}")
            self._ids = {piece: i for i, piece in enumerate(pieces)}
            self._translator = ctranslate2.Translator(
                str(directory), device="cpu", intra_threads=threads or 0
            )
        except _FAILURES as error:
            raise export_files.unusable(directory, error) from None

    def nbest(self, sentences: Sequence[str], count: int) -> list[list[Line]]:
        """Translate sentences, and return the `count` best translations of each, best first.

        A sentence of more than `max_source_length` pieces loses its end; its lines are marked as
        cut. Where the search finds fewer than `count` hypotheses, the last are empty with a score
        of -1e9. White space alone translates to the empty string, with score 0.
        """
        encoded, longest = self._vocabulary.encode(sentences), self._max_source_length
        sources = [[*ids[: longest - 1], EOS] if len(ids) > longest else ids for ids in encoded]
        results = []
        for sentence, ids, found in zip(
            sentences, encoded, self._decode(sources, count), strict=True
        ):
            cut = len(ids) > longest
            if len(ids) > 1:
                lines = [Line(self._text(sentence, row), score, cut) for row, score in found]
            else:
                lines = [Line("", 0.0, False)]
            lines += [Line("", -1e9, cut)] * (count - len(lines))
            results.append(lines[:count])
        return results

    def translate_ids(self, sources: Sequence[Sequence[int]]) -> list[tuple[list[int], float]]:
        """Translate sentences of ids, each ending with EOS: the best hypothesis and its score."""
        return [found[0] for found in self._decode(sources, 1)]

    def _decode(
        self, sources: Sequence[Sequence[int]], count: int
    ) -> list[list[tuple[list[int], float]]]:
        """Return the `count` best hypotheses of sentences of ids, and the paper's scores."""
        most = max(self._max_source_length, _LEAST_POSITIONS)
        groups: dict[int, list[int]] = {}  # the places of the sentences that share a limit
        for place, ids in enumerate(sources):
            longest = min(-(-len(ids) // _LENGTHS) * _LENGTHS, most)
            groups.setdefault(longest, []).append(place)
        found: list[list[_Hypothesis]] = [[] for _ in sources]
        for longest, places in groups.items():
            results = self._search([sources[place] for place in places], longest)
            for place, result in zip(places, results, strict=True):
                found[place] = self._hypotheses(result, sources[place])
        pairs = list(zip(sources, found, strict=True))
        self._complete([(ids, each) for ids, row in pairs for each in row if each.is_cut])
        scored = ([(each.ids, self._score(each, ids)) for each in row] for ids, row in pairs)
        return [sorted(row, key=lambda pair: -pair[1])[:count] for row in scored]

    def _search(
        self, sources: list[Sequence[int]], longest: int
    ) -> list[ctranslate2.TranslationResult]:
        """Decode sentences whose limit is that of one with `longest` pieces."""
        return self._translator.translate_batch(
            self._pieces(sources),
            beam_size=self.beam_size,
            num_hypotheses=self.beam_size,
            patience=2,
            length_penalty=_LENGTH_PENALTY,
            max_input_length=0,  # no limit but ours
            min_decoding_length=0,  # by itself, 1: no translation is empty
            max_decoding_length=longest + self._max_extra_length,
            max_batch_size=_BATCH,
            return_scores=True,
        )

    def _hypotheses(
        self, found: ctranslate2.TranslationResult, source: Sequence[int]
    ) -> list[_Hypothesis]:
        """Return the hypotheses found, cut at the limit of the source."""
        most = len(source) + self._max_extra_length  # with EOS, as in the paper
        hypotheses: dict[tuple[int, ...], _Hypothesis] = {}  # two may be equal once they are cut
        for tokens, score in zip(found.hypotheses, found.scores, strict=True):
            is_cut = len(tokens) >= most
            ids = [*(self._ids[token] for token in tokens[: most - 1]), EOS]
            # That of a cut one is without EOS, and with what comes behind the limit.
            log_prob = score * (len(tokens) + (not is_cut)) ** _LENGTH_PENALTY
            hypotheses.setdefault(tuple(ids), _Hypothesis(ids, log_prob, is_cut))
        return list(hypotheses.values())

    def _complete(self, cut: list[tuple[Sequence[int], _Hypothesis]]) -> None:
        """Set the log-probabilities of hypotheses that were cut, beside their sources."""
        if not cut:
            return
        sources, targets = ([pair[0] for pair in cut], [pair[1].ids for pair in cut])
        scored = self._translator.score_batch(
            self._pieces(sources), self._pieces(targets), max_input_length=0, max_batch_size=_BATCH
        )
        for (_, each), result in zip(cut, scored, strict=True):
            each.log_prob = sum(result.log_probs)

    def _score(self, hypothesis: _Hypothesis, source: Sequence[int]) -> float:
        """Return the paper's score, with the length reward."""
        length, log_prob = len(hypothesis.ids), hypothesis.log_prob
        log_prob += self._length_reward * min(length, self._length_ratio * len(source))
        return log_prob / ((5 + length) / 6) ** self._alpha

    def _pieces(self, sentences: Iterable[Sequence[int]]) -> list[list[str]]:
        """Return the pieces of sentences of ids without EOS, which CTranslate2 adds."""
        pieces = self._vocabulary.pieces
        return [[pieces[i] for i in ids[:-1]] for ids in sentences]

    def _text(self, sentence: str, ids: list[int]) -> str:
        (text,) = self._vocabulary.decode([ids])
        return tree_of(fold(sentence), text) if self._makes_trees else text
