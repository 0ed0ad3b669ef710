"""Translation scores: strings in, numbers out.

Two BLEU numbers are always given together, because neither can stand for the other: the same
public base checkpoint scores 29.02 on newstest2014 English-German as the paper counted it and
27.52 with sacreBLEU (https://github.com/tensorflow/tensor2tensor/issues/317).
"""

import re
from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from pipelines.errors import BadInput

# Languages written without spaces between words; the signature names what was used.
_SACREBLEU_TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "char"}
_BOOTSTRAP = 1000  # samples of the lines; sacreBLEU's own number

# The arithmetic of Moses' multi-bleu.perl on text that is tokens already: corpus level, up to
# 4-grams, cased, and 0 when an n-gram order has no match at all (sacreBLEU would smooth that).
# `force` only silences sacreBLEU's warning that the text looks tokenised.
MULTI_BLEU = BLEU(tokenize="none", smooth_method="none", force=True)

_HYPHEN_INSIDE_WORD = re.compile(r"(\S)-(\S)")

# The quotation marks that replace-unicode-punctuation.perl leaves alone; it turns “ ” ’ into
# plain ones. Double marks become " and single ones ', as there.
_OTHER_QUOTES = str.maketrans({**dict.fromkeys("„«»", '"'), **dict.fromkeys("‚‘‹›", "'")})


def translation_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str,
    tokenized: bool = False,
) -> dict[str, float | str | int]:
    """Scores translations, one reference each, with everything needed to compare the numbers.

    Args:
        hypotheses: the system's output lines.
        references: the lines they are compared with, in the same order.
        language: two-letter code of the language both are written in, such as "de".
        tokenized: the lines are Moses tokens joined by spaces, as in Multi30k's lower-cased
            files. sacreBLEU then compares these tokens (its signature says `tok:none`), and
            paper-style BLEU splits compounds but neither normalises nor tokenises again, which
            would take entities such as `&quot;` apart.

    Returns:
        `sacrebleu`, `chrf` and `paper_bleu` in percent; `sacrebleu_interval`, half the width of
        sacreBLEU's 95 % confidence interval, from 1,000 bootstrap samples of the lines, which says
        nothing of other seeds; `sacrebleu_signature` and `chrf_signature`, with
        sacreBLEU's version; and `lines`, the number of pairs.

    Raises:
        BadInput: the numbers of lines differ, or there are none.
    """
    _check_lines(hypotheses, references)
    # `force`: good plain text may end in " ." as well; the caller has said which kind it is.
    tokenize = "none" if tokenized else _SACREBLEU_TOKENIZERS.get(language, "13a")
    bleu = BLEU(tokenize=tokenize, force=True)
    chrf = CHRF()
    paper_style = _tokenized_paper_bleu if tokenized else paper_bleu
    # Not so for chrF: sacreBLEU 2.6 fails where samples of a poor system score nothing.
    bleu_score = bleu.corpus_score(hypotheses, [references], n_bootstrap=_BOOTSTRAP)
    return {
        "sacrebleu": bleu_score.score,
        "sacrebleu_interval": float(bleu_score._ci),  # sacreBLEU has no public name for it
        "sacrebleu_signature": str(bleu.get_signature()),
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
        "paper_bleu": paper_style(hypotheses, references, language),
        "lines": len(references),
    }


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> float:
    """BLEU as the paper counted it, in percent.

    The steps are those of tensor2tensor's get_ende_bleu.sh, on both sides: Unicode punctuation
    replaced, quotation marks made plain, Moses tokenisation, compounds split (German only),
    multi-bleu.perl. Cased. Without plain quotation marks in the reference about one point is lost.

    Args:
        hypotheses: the system's output lines, plain text.
        references: the lines they are compared with, plain text, in the same order.
        language: two-letter code of the language both are written in; a language that Moses
            has no abbreviations for is tokenised with the English ones, as Moses does.

    Raises:
        BadInput: the numbers of lines differ, or there are none.
    """
    _check_lines(hypotheses, references)
    return _tokenized_paper_bleu(
        _moses_tokenize(hypotheses, language), _moses_tokenize(references, language), language
    )


def compound_split(text: str) -> str:
    """Splits hyphenated compounds of tokenised text, as evaluations of that time did.

    `E-Mail` gives `E ##AT##-##AT## Mail`: a compound with one wrong part still earns the other.
    To be applied once only: the marker holds a hyphen that a second pass would split again.
    """
    # Matches do not overlap, so a one-letter part between two hyphens keeps the second one:
    # a-b-c becomes a ##AT##-##AT## b-c. The published numbers have this in them.
    return _HYPHEN_INSIDE_WORD.sub(r"\1 ##AT##-##AT## \2", text)


def _tokenized_paper_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> float:
    """Paper-style BLEU from the tokens on: compounds split for German, then multi-bleu.perl."""
    if language == "de":
        hypotheses = [compound_split(line) for line in hypotheses]
        references = [compound_split(line) for line in references]
    return MULTI_BLEU.corpus_score(hypotheses, [references]).score


def _moses_tokenize(lines: Sequence[str], language: str) -> list[str]:
    """Plain text to Moses tokens joined by spaces, with plain punctuation and quotation marks."""
    # Of the normaliser only its port of replace-unicode-punctuation.perl: its normalize() also
    # moves commas across quotation marks (`", ` for `," `), which changes the n-grams.
    replace_punctuation = MosesPunctNormalizer().replace_unicode_punct
    tokenizer = MosesTokenizer(language)
    # tokenizer.perl writes &quot; for ", but one spelling per character on both sides, without
    # new spaces or hyphens, leaves every n-gram match as it is: no need to escape.
    return [
        tokenizer.tokenize(
            replace_punctuation(line).translate(_OTHER_QUOTES), return_str=True, escape=False
        )
        for line in lines
    ]


def _check_lines(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuses what would give a number that means nothing."""
    if len(hypotheses) != len(references):
        raise BadInput(
            f"got {len(hypotheses)} hypotheses and {len(references)} references; wanted one "
            "reference per hypothesis in the same order: check that both come from the same "
            'test set and are split into lines on "\\n" only'
        )
    if not references:
        raise BadInput(
            "got no lines to score; wanted at least one hypothesis and its reference: "
            "check that the files are not empty"
        )
