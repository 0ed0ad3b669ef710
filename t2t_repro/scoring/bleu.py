"""Translation scores, computed from lines of text.

Two BLEU numbers are always reported together, because neither replaces the other: one public base
checkpoint scores 29.02 on newstest2014 English-German with the paper's BLEU and 27.52 with
sacreBLEU (https://github.com/tensorflow/tensor2tensor/issues/317).
"""

import re
from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from pipelines.errors import BadInput

# For languages written without spaces between words. sacreBLEU's signature names the tokeniser.
_SACREBLEU_TOKENIZERS = dict.fromkeys(("zh", "zho", "cmn"), "zh") | dict.fromkeys(
    ("ja", "jpn", "ko", "kor", "th", "tha", "lo", "lao", "km", "khm", "my", "mya"), "char"
)
_BOOTSTRAP = 1000  # samples of the lines; sacreBLEU's default

# Computes BLEU like Moses' multi-bleu.perl on tokenised text: corpus level, up to 4-grams, cased,
# and 0 if an n-gram order has no match at all (sacreBLEU's default smooths this case).
# `force` only silences sacreBLEU's warning that the text looks tokenised.
MULTI_BLEU = BLEU(tokenize="none", smooth_method="none", force=True)

_HYPHEN_INSIDE_WORD = re.compile(r"(\S)-(\S)")

# Quotation marks that replace-unicode-punctuation.perl does not replace; it handles “ ” ’ only.
# Double marks become " and single ones ', as in that script.
_OTHER_QUOTES = str.maketrans({**dict.fromkeys("„«»", '"'), **dict.fromkeys("‚‘‹›", "'")})


def translation_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str,
    tokenized: bool = False,
) -> dict[str, float | str | int]:
    """Score translations, with one reference each.

    Args:
        hypotheses: The system's output lines.
        references: The reference lines, in the same order.
        language: Code of the target language by ISO 639, such as "de".
        tokenized: Whether the lines are Moses tokens joined by spaces, as in Multi30k's lower-cased
            files. sacreBLEU then compares these tokens (its signature says `tok:none`), and
            paper-style BLEU splits compounds but does not normalise or tokenise again, because that
            would split entities such as `&quot;`.

    Returns:
        `sacrebleu`, `chrf` and `paper_bleu` in percent; `sacrebleu_interval`, half the width of
        sacreBLEU's 95 % confidence interval from 1,000 bootstrap samples of the lines, which does
        not cover the variation between seeds; `sacrebleu_signature` and `chrf_signature`, with
        sacreBLEU's version; and `lines`, the number of hypotheses.

    Raises:
        BadInput: The numbers of lines differ or are 0.
    """
    check_lines(hypotheses, references)
    bleu, chrf = metrics(language, tokenized).values()
    paper_style = _tokenized_paper_bleu if tokenized else paper_bleu
    # No bootstrap for chrF: sacreBLEU 2.6 fails if a sample of a poor system has no match.
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


def metrics(language: str, tokenized: bool) -> dict[str, Metric]:
    """Return sacreBLEU's metrics by the name of their score, BLEU first."""
    # `force`: plain text may also end in " ."; the caller says whether the lines are tokenised.
    tokenize = "none" if tokenized else _SACREBLEU_TOKENIZERS.get(language, "13a")
    return {"sacrebleu": BLEU(tokenize=tokenize, force=True), "chrf": CHRF()}


def ter_metric(language: str) -> Metric:
    """Return sacreBLEU's TER, in scripts without spaces with its support of Asian languages.

    Each Chinese character is a word then, but kana, hangul or Thai letters without a space between
    them are one word together.
    """
    spaceless = language in _SACREBLEU_TOKENIZERS
    return TER(normalized=spaceless, asian_support=spaceless)


def ter_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> dict[str, float | str | int]:
    """Return `ter`, edits per word of the reference in percent (less is better), and its signature.

    The search for shifts of words is slow: 3,000 lines of 25 words, of which a third was changed,
    took 23 s on a core of an Intel Xeon that also had other work.
    """
    check_lines(hypotheses, references)
    ter = ter_metric(language)
    score = ter.corpus_score(hypotheses, [references]).score
    return {"ter": score, "ter_signature": str(ter.get_signature())}


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> float:
    """Return cased BLEU in percent, as the paper computes it.

    The steps are those of tensor2tensor's get_ende_bleu.sh, for hypotheses and references: replace
    Unicode punctuation, replace typographic quotation marks by plain ones, tokenise with Moses,
    split compounds (German only), run multi-bleu.perl. With typographic quotation marks in the
    references the score would be about one point lower.

    Args:
        hypotheses: The system's output lines, plain text.
        references: The reference lines, plain text, in the same order.
        language: Two-letter code of the target language. Like Moses itself, this uses English
            abbreviations for a language for which Moses has no list of its own.

    Raises:
        BadInput: The numbers of lines differ or are 0.
    """
    check_lines(hypotheses, references)
    return _tokenized_paper_bleu(
        _moses_tokenize(hypotheses, language), _moses_tokenize(references, language), language
    )


def compound_split(text: str) -> str:
    """Split hyphenated compounds in tokenised text, as evaluations of that time did.

    `E-Mail` becomes `E ##AT##-##AT## Mail`, so a compound with one wrong part still gets credit for
    the other. Apply this once only: the marker contains a hyphen that a second pass would split.
    """
    # Matches do not overlap, so the second hyphen after a one-letter part is not split: a-b-c
    # becomes a ##AT##-##AT## b-c. The published scores were computed this way.
    return _HYPHEN_INSIDE_WORD.sub(r"\1 ##AT##-##AT## \2", text)


def _tokenized_paper_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str
) -> float:
    """Return paper-style BLEU of tokenised lines: split German compounds, then multi-bleu.perl."""
    if language == "de":
        hypotheses = [compound_split(line) for line in hypotheses]
        references = [compound_split(line) for line in references]
    return MULTI_BLEU.corpus_score(hypotheses, [references]).score


def _moses_tokenize(lines: Sequence[str], language: str) -> list[str]:
    """Return lines of Moses tokens joined by spaces, with plain punctuation and quotation marks."""
    # Only the normaliser's port of replace-unicode-punctuation.perl is used. Its normalize() would
    # also move commas across quotation marks (`", ` for `," `), which changes the n-grams.
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # takes 0.4 s

    replace_punctuation = MosesPunctNormalizer().replace_unicode_punct
    tokenizer = MosesTokenizer(language)
    # tokenizer.perl writes &quot; for ". Escaping changes both sides alike and adds no spaces or
    # hyphens, so it does not affect any n-gram match and is left out.
    return [
        tokenizer.tokenize(
            replace_punctuation(line).translate(_OTHER_QUOTES), return_str=True, escape=False
        )
        for line in lines
    ]


def check_lines(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise BadInput if the lines cannot give a meaningful score."""
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
