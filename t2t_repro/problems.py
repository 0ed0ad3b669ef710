"""A problem: where its sentence pairs come from, and how what the model makes of them is scored.

The hyperparameters of a problem are in configs/<name>.yaml.
"""

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipelines.parsing import linear_trees, treebank
from pipelines.sources import parallel_text
from pipelines.toy import toy_ende, toy_parsing
from t2t_repro.config import Config
from t2t_repro.scoring import bleu, evalb

if typing.TYPE_CHECKING:
    import tensorflow as tf

    from t2t_repro.decoding.translator import Finish

Examples = Iterator[dict[str, str]]
Scores = dict[str, float | str | int]


@dataclass(frozen=True)
class Problem:
    """`examples(split, config)` yields {"source", "target"}; split is "train", "dev" or "test".

    `score(hypotheses, references, config)` gives numbers; the first one is the problem's main one.
    `finish(source, target)` is what `translate` and an export answer to a source of which the model
    made that target; None: the target.
    """

    examples: Callable[[str, Config], Examples]
    score: Callable[[Sequence[str], Sequence[str], Config], Scores]
    finish: "Finish | None" = None


def _toy(split: str, config: Config) -> Examples:
    return toy_ende.examples(split)


def _multi30k(split: str, config: Config) -> Examples:
    from pipelines.sources import multi30k  # imports tensorflow_datasets, which takes seconds

    data = config.data
    return multi30k.examples(split, data_dir=data.data_dir, tokenized=data.tokenized)


def _wmt14_ende(split: str, config: Config) -> Examples:
    from pipelines.sources import wmt

    return wmt.examples(split, languages="de-en", data_dir=config.data.data_dir)


def _wmt14_enfr(split: str, config: Config) -> Examples:
    from pipelines.sources import wmt

    return wmt.examples(split, languages="fr-en", data_dir=config.data.data_dir)


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


def _bleu(hypotheses: Sequence[str], references: Sequence[str], config: Config) -> Scores:
    data = config.data
    return bleu.translation_scores(
        hypotheses, references, language=data.target_language, tokenized=data.tokenized
    )


def _brackets(hypotheses: Sequence[str], references: Sequence[str], config: Config) -> Scores:
    """Of bracketed trees, as in any system's files; or of a run's targets and outputs.

    These hold no words, but both sides of a run are about the same ones: numbers stand for them. A
    run's parse always has all words; it can fail only where it takes punctuation for a word, or a
    word for punctuation, since EVALB deletes by tag.
    """
    if len(hypotheses) == len(references) and linear_trees.are_linear(references):
        pairs = map(linear_trees.with_numbered_words, references, hypotheses)
        references, hypotheses = zip(*pairs, strict=True)
    return evalb.scores(hypotheses, references)


def _tree(source: "tf.Tensor", target: "tf.Tensor") -> "tf.Tensor":
    """The whole tree with its words, in brackets."""
    from pipelines.parsing import tree_graph  # imports tensorflow, which takes seconds

    return tree_graph.bracketed(source, target)


PROBLEMS = {
    "toy_ende": Problem(_toy, _bleu),
    "multi30k_ende": Problem(_multi30k, _bleu),
    "wmt14_ende": Problem(_wmt14_ende, _bleu),
    "wmt14_enfr": Problem(_wmt14_enfr, _bleu),
    "parallel_text": Problem(_parallel_text, _bleu),
    "wsj_parsing": Problem(_wsj_parsing, _brackets, _tree),
    "toy_parsing": Problem(_toy_parsing, _brackets, _tree),
}
