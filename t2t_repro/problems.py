"""A problem: where its sentence pairs come from, and how its translations are scored.

The hyperparameters of a problem are in configs/<name>.yaml.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipelines import parallel_text, toy
from t2t_repro import metrics
from t2t_repro.config import Config

Examples = Iterator[dict[str, str]]
Scores = dict[str, float | str | int]


@dataclass(frozen=True)
class Problem:
    """`examples(split, config)` yields {"source", "target"}; split is "train", "dev" or "test".

    `score(hypotheses, references, config)` gives numbers; the first one is the problem's main one.
    """

    examples: Callable[[str, Config], Examples]
    score: Callable[[Sequence[str], Sequence[str], Config], Scores]


def _toy(split: str, config: Config) -> Examples:
    return toy.examples(split)


def _multi30k(split: str, config: Config) -> Examples:
    from pipelines import multi30k  # imports tensorflow_datasets, which takes seconds

    data = config.data
    return multi30k.examples(split, data_dir=data.data_dir, tokenized=data.tokenized)


def _wmt14_ende(split: str, config: Config) -> Examples:
    from pipelines import wmt

    return wmt.examples(split, languages="de-en", data_dir=config.data.data_dir)


def _wmt14_enfr(split: str, config: Config) -> Examples:
    from pipelines import wmt

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


def _bleu(hypotheses: Sequence[str], references: Sequence[str], config: Config) -> Scores:
    data = config.data
    return metrics.translation_scores(
        hypotheses, references, language=data.target_language, tokenized=data.tokenized
    )


PROBLEMS = {
    "toy_ende": Problem(_toy, _bleu),
    "multi30k_ende": Problem(_multi30k, _bleu),
    "wmt14_ende": Problem(_wmt14_ende, _bleu),
    "wmt14_enfr": Problem(_wmt14_enfr, _bleu),
    "parallel_text": Problem(_parallel_text, _bleu),
}
