"""Translate with an export for CTranslate2, ranked by the paper's length penalty.

docs/serving.md, "CTranslate2", says how CTranslate2's search differs from the paper's.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import ctranslate2

from pipelines.errors import BadInput
from pipelines.parsing.linear_trees import tree_of
from pipelines.vocabulary import Vocabulary
from t2t_repro.decoding.lines import Line

_LENGTH_PENALTY = 0.6  # exponent of CTranslate2's own penalty, by which it prunes
_BATCH = 64  # sentences decoded at once

# What reading damaged files may raise.
_FAILURES = (OSError, ValueError, ArithmeticError, LookupError, TypeError, RuntimeError)


class Translator:
    """An export for CTranslate2, ready to translate.

    Args:
        directory: The export, `<export_dir>/<version>`.

    Raises:
        BadInput: The directory is not an export, or is damaged.
    """

    def __init__(self, directory: Path):
        try:
            settings = json.loads((directory / "settings.json").read_text(encoding="utf-8"))
            decode = settings["decode"]
            self.beam_size, self._alpha = int(decode["beam_size"]), float(decode["alpha"])
            self._max_source_length = int(decode["max_source_length"])
            self._max_extra_length = int(decode["max_extra_length"])
            self._makes_trees = settings.get("output") == "trees"
            self._vocabulary = Vocabulary.load(directory)
            self._ids = {piece: i for i, piece in enumerate(self._vocabulary.pieces)}
            self._translator = ctranslate2.Translator(str(directory), device="cpu")
        except _FAILURES as error:
            reason = " ".join(str(error).split())[:200]
            raise BadInput(
                f"{directory}: not a usable export ({reason}); make one with "
                "python -m t2t_repro.export"
            ) from None

    def nbest(self, sentences: Sequence[str], count: int) -> list[list[Line]]:
        """Translate sentences, and return the `count` best translations of each, best first.

        A sentence of more than `max_source_length` pieces loses its end; its lines are marked as
        cut. Where the search finds fewer than `count` hypotheses, the last are empty with a score
        of -1e9. White space alone translates to the empty string, with score 0.
        """
        encoded, pieces = self._vocabulary.encode(sentences), self._vocabulary.pieces
        longest = self._max_source_length - 1  # CTranslate2 adds EOS
        sources = [[pieces[i] for i in ids[:-1][:longest]] for ids in encoded]
        found = self._translator.translate_batch(
            sources,
            beam_size=self.beam_size,
            num_hypotheses=self.beam_size,
            patience=2,
            length_penalty=_LENGTH_PENALTY,
            max_input_length=0,  # no limit but ours
            max_decoding_length=max(map(len, sources), default=0) + 1 + self._max_extra_length,
            max_batch_size=_BATCH,
            return_scores=True,
        )
        results = []
        for sentence, ids, source, result in zip(sentences, encoded, sources, found, strict=True):
            lines = [Line("", 0.0, False)]
            if source:
                cut = len(ids) > self._max_source_length
                pairs = zip(result.hypotheses, result.scores, strict=True)
                lines = [self._line(sentence, tokens, score, cut) for tokens, score in pairs]
            lines.sort(key=lambda line: -line.score)
            lines += [Line("", -1e9, lines[0].cut)] * (count - len(lines))
            results.append(lines[:count])
        return results

    def _line(self, sentence: str, tokens: list[str], score: float, cut: bool) -> Line:
        length = len(tokens) + 1  # EOS counts
        log_prob = score * length**_LENGTH_PENALTY
        ids = [self._ids[token] for token in tokens]
        (text,) = self._vocabulary.decode([ids])
        if self._makes_trees:
            text = tree_of(sentence, text)
        return Line(text, log_prob / ((5 + length) / 6) ** self._alpha, cut)
