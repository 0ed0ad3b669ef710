"""Problems: where their sentence pairs come from, and how the model's outputs are scored.

The hyperparameters of a problem are in configs/<name>.yaml.
"""

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.errors import BadInput
from pipelines.parsing import linear_trees, treebank
from pipelines.sources import parallel_text
from pipelines.toy import toy_ende, toy_parsing
from t2t_repro.config import Config
from t2t_repro.scoring import bleu, evalb

if typing.TYPE_CHECKING:
    import tensorflow as tf

    from pipelines.stream import Text
    from t2t_repro.decoding.translator import Postprocess

Examples = Iterator[dict[str, str]]
Scores = dict[str, float | str | int]

# The settings of the text that only some problems read.
_OF_WMT14 = ("data_dir",)
_OF_MULTI30K = ("data_dir", "tokenized")
_OF_PARALLEL_TEXT = (
    *("source_files", "target_files", "tsv_files", "dev_source_files", "dev_target_files"),
    *("test_source_files", "test_target_files", "held_out_share", "tokenized"),
)
_OF_TREEBANKS = ("data_dir", "extra_tree_files", "gold_repeats", "altered_copies", "spell_words")
_READ_BY_SOME = {*_OF_WMT14, *_OF_MULTI30K, *_OF_PARALLEL_TEXT, *_OF_TREEBANKS}


class Score(typing.Protocol):
    """The type of `Problem.score`."""

    def __call__(
        self,
        hypotheses: Sequence[str],
        references: Sequence[str],
        config: Config,
        sources: Sequence[str] | None = None,
    ) -> Scores:
        """Score hypotheses against the references in the same order."""


@dataclass(frozen=True)
class Problem:
    """The functions that make a problem.

    `examples(split, config)` yields {"source", "target"}; split is "train", "dev" or "test".

    `score(hypotheses, references, config, sources)` returns scores by name, the problem's main
    score first. `sources` is None where only files of outputs are scored.

    `postprocess(source, target)` makes the output of `translate` and of exports, string [n], from
    source and decoded target; None outputs the target itself.

    `training_files(config)` names the files that `--stream` reads; None if there are none.

    `own_settings` are those of the settings for some problems' text that it reads; the others are
    refused as flags.
    """

    examples: Callable[[str, Config], Examples]
    score: Score
    postprocess: "Postprocess | None" = None
    training_files: "Callable[[Config], Text] | None" = None
    own_settings: tuple[str, ...] = ()

    def check_flags(self, name: str, given: Mapping[str, Any]) -> None:
        """Raise BadInput for a flag about text that this problem, called `name`, does not read."""
        for flag in given:
            if flag in _READ_BY_SOME and flag not in self.own_settings:
                others = [other for other, it in PROBLEMS.items() if flag in it.own_settings]
                raise BadInput(
                    f"--{flag}: {name} does not read it; leave it out, or give another --problem, "
                    f"such as {others[-1]}"
                )


def _toy(split: str, config: Config) -> Examples:
    return toy_ende.examples(split)


def _multi30k(source: str, target: str, split: str, config: Config) -> Examples:
    from pipelines.sources import multi30k  # imports tensorflow_datasets, which takes seconds

    return multi30k.examples(
        split,
        source=source,
        target=target,
        data_dir=config.data.data_dir,
        tokenized=config.data.tokenized,
    )


def _wmt14(languages: str, split: str, config: Config) -> Examples:
    from pipelines.sources import wmt

    return wmt.examples(split, languages=languages, data_dir=config.data.data_dir)


def _wmt14_files(languages: str, config: Config) -> "Text":
    from pipelines.sources import wmt
    from pipelines.stream import TFRecordFiles  # imports tensorflow, which takes seconds

    paths = wmt.files("train", languages=languages, data_dir=config.data.data_dir)
    other = languages.removesuffix("-en")
    return TFRecordFiles(tuple((path,) for path in paths), source="en", target=other)


def _parallel_text(split: str, config: Config) -> Examples:
    data = config.data
    return parallel_text.examples(
        split,
        source_files=data.source_files,
        target_files=data.target_files,
        tsv_files=data.tsv_files,
        dev_source_files=data.dev_source_files,
        dev_target_files=data.dev_target_files,
        test_source_files=data.test_source_files,
        test_target_files=data.test_target_files,
        held_out_share=data.held_out_share,
    )


def _parallel_text_files(config: Config) -> "Text":
    from pipelines.stream import AlignedFiles, TabSeparatedFiles

    data = config.data
    _check_files_are_whole(config)
    if data.tsv_files:
        return TabSeparatedFiles(tuple((path,) for path in data.tsv_files))
    return AlignedFiles(tuple(parallel_text.each_pair("", data.source_files, data.target_files)))


def _check_files_are_whole(config: Config) -> None:
    """Raise BadInput unless all pairs of the training files are for training, in every epoch."""
    data = config.data
    if data.held_out_share and not (data.dev_source_files and data.test_source_files):
        raise BadInput(
            "--stream: reads all pairs of the training files, so none can be held out; give "
            "--dev_source_files and --dev_target_files, and test files or --held_out_share=0"
        )
    for path in (*data.source_files, *data.target_files, *data.tsv_files):
        if not Path(path).is_file():
            raise BadInput(
                f"{path}: no such file; --stream reads it again in each epoch: bring it back, or "
                "leave --stream out"
            )


def _wsj_parsing(split: str, config: Config) -> Examples:
    data = config.data
    return treebank.examples(
        split,
        data_dir=data.data_dir,
        extra_tree_files=data.extra_tree_files,
        gold_repeats=data.gold_repeats,
        altered_copies=data.altered_copies,
        spell_words=data.spell_words,
    )


def _toy_parsing(split: str, config: Config) -> Examples:
    return toy_parsing.examples(split)


def _bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    config: Config,
    sources: Sequence[str] | None = None,
) -> Scores:
    """Score translations; a metric that needs the source is added here."""
    data = config.data
    return bleu.translation_scores(
        hypotheses, references, language=data.target_language, tokenized=data.tokenized
    )


def _brackets(
    hypotheses: Sequence[str],
    references: Sequence[str],
    config: Config,
    sources: Sequence[str] | None = None,
) -> Scores:
    """Score parses: bracketed trees, as in any system's files, or a run's targets and outputs.

    Targets hold no words: those of the sources are put into both sides or, without sources,
    numbers. A run's parse always has all words; it fails only if it takes punctuation for a word,
    or a word for punctuation, because EVALB deletes by tag.
    """
    if len(hypotheses) == len(references) and linear_trees.are_linear(references):
        if sources is None:
            pairs = map(linear_trees.with_numbered_words, references, hypotheses)
            references, hypotheses = zip(*pairs, strict=True)
        else:
            references, hypotheses = (
                list(map(linear_trees.tree_of, sources, side)) for side in (references, hypotheses)
            )
    return evalb.scores(hypotheses, references)


def _tree(source: "tf.Tensor", target: "tf.Tensor") -> "tf.Tensor":
    """Return trees with their words, in brackets: string [n]."""
    from pipelines.parsing import tree_graph  # imports tensorflow, which takes seconds

    return tree_graph.bracketed(source, target)


PROBLEMS = {
    "toy_ende": Problem(_toy, _bleu),
    "multi30k_ende": Problem(partial(_multi30k, "en", "de"), _bleu, own_settings=_OF_MULTI30K),
    "multi30k_deen": Problem(partial(_multi30k, "de", "en"), _bleu, own_settings=_OF_MULTI30K),
    "multi30k_enfr": Problem(partial(_multi30k, "en", "fr"), _bleu, own_settings=_OF_MULTI30K),
    "wmt14_ende": Problem(
        *(partial(_wmt14, "de-en"), _bleu),
        training_files=partial(_wmt14_files, "de-en"),
        own_settings=_OF_WMT14,
    ),
    "wmt14_enfr": Problem(
        *(partial(_wmt14, "fr-en"), _bleu),
        training_files=partial(_wmt14_files, "fr-en"),
        own_settings=_OF_WMT14,
    ),
    "parallel_text": Problem(
        *(_parallel_text, _bleu),
        training_files=_parallel_text_files,
        own_settings=_OF_PARALLEL_TEXT,
    ),
    "wsj_parsing": Problem(_wsj_parsing, _brackets, _tree, own_settings=_OF_TREEBANKS),
    "toy_parsing": Problem(_toy_parsing, _brackets, _tree),
}
