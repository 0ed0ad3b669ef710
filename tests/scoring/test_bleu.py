"""The two BLEU numbers and each step in which they differ."""

import json
import logging
import math
import random
import subprocess
import sys
from collections import Counter
from importlib.metadata import version

import numpy as np
import pytest
from paths import DATA, ROOT
from sacrebleu.metrics import BLEU

from pipelines.errors import BadInput
from t2t_repro.scoring.bleu import MULTI_BLEU, compound_split, paper_bleu, translation_scores


def read_lines(name: str, limit: int | None = None) -> list[str]:
    """Return the lines of a file of real text, or skip the test if the checkout lacks the file."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs {name} under {DATA}")
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")[:limit]


def ngram_counts(tokens: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[start:] for start in range(order)), strict=False))


def bleu_by_hand(hypotheses: list[str], references: list[str]) -> float:
    """Compute BLEU of tokens as in Papineni et al. 2002, sections 2.1-2.3, without any library."""
    pairs = [(h.split(), r.split()) for h, r in zip(hypotheses, references, strict=True)]
    precisions = []
    for order in range(1, 5):
        counts = [(ngram_counts(h, order), ngram_counts(r, order)) for h, r in pairs]
        matches = sum((h & r).total() for h, r in counts)
        precisions.append(matches / sum(h.total() for h, _ in counts))
    if min(precisions) == 0:
        return 0.0
    length_ratio = sum(len(r) for _, r in pairs) / sum(len(h) for h, _ in pairs)
    return 100 * math.exp(min(0, 1 - length_ratio)) * math.prod(precisions) ** (1 / 4)


def perl_lower(text: str) -> str:
    """Lower-case like multi-bleu.perl -lc, which works on bytes: only ASCII letters change."""
    return text.encode().lower().decode()


def test_multi_bleu_line_equals_that_of_the_perl_script():
    cases = json.loads("\n".join(read_lines("bleu_small/cases.json")))
    assert len(cases) == 20
    for case in cases:
        fold = perl_lower if case["lowercase"] else str
        score = MULTI_BLEU.corpus_score(
            [fold(line) for line in case["hypotheses"]],
            [[fold(line) for line in reference] for reference in case["references"]],
        )
        precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
        line = (
            f"BLEU = {score.score:.2f}, {precisions} (BP={score.bp:.3f}, ratio={score.ratio:.3f}, "
            f"hyp_len={score.sys_len}, ref_len={score.ref_len})"
        )
        assert line == case["multi_bleu_perl"], case["name"]


def test_compound_split_equals_the_table():
    header, *rows = read_lines("bleu_small/compound_split.tsv")
    assert header == "input\toutput"
    assert len(rows) >= 15
    for row in rows:
        text, wanted = row.split("\t")
        assert compound_split(text) == wanted


def test_splitting_compounds_twice_breaks_the_marker():
    once = compound_split("die E-Mail")
    assert once == "die E ##AT##-##AT## Mail"
    assert compound_split(once) != once


def test_bleu_arithmetic_by_counting():
    # Matches of 1..4-grams: "the" is clipped to the reference's one, "x" matches nothing.
    #   hypothesis  the the small dog ran home today   reference  the small dog ran home late today
    #   1-grams 6/7, 2-grams 4/6, 3-grams 3/5, 4-grams 2/4; lengths are equal: no penalty
    score = paper_bleu(
        ["the the small dog ran home today"], ["the small dog ran home late today"], "en"
    )
    assert score == pytest.approx(100 * (6 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** (1 / 4))


def test_short_hypotheses_pay_the_brevity_penalty_over_the_corpus():
    # All n-grams match; 4 + 5 tokens against 8 + 5. The mean over sentences would be different.
    hypotheses = ["we saw the house", "it was not far away"]
    references = ["we saw the house of my old aunt", "it was not far away"]
    assert paper_bleu(hypotheses, references, "en") == pytest.approx(100 * math.exp(1 - 13 / 9))


def test_long_hypotheses_earn_no_bonus():
    score = paper_bleu(["a b c d e f g h"], ["a b c d"], "fr")
    assert score == pytest.approx(100 * (4 / 8 * 3 / 7 * 2 / 6 * 1 / 5) ** (1 / 4))


def test_without_a_four_gram_match_paper_bleu_is_zero_and_sacrebleu_is_smoothed():
    scores = translation_scores(["the cat sat here"], ["the cat sat there"], language="en")
    assert scores["paper_bleu"] == 0
    assert scores["sacrebleu"] > 0


@pytest.mark.parametrize("share_kept", [0.95, 0.7])
def test_real_tokens_score_as_the_formula_says(share_kept):
    references = read_lines("multi30k/tok/val.lc.norm.tok.en", 300)
    draw = random.Random(7)
    hypotheses = [
        " ".join(word for word in line.split() if draw.random() < share_kept) for line in references
    ]
    scores = translation_scores(hypotheses, references, language="en", tokenized=True)
    assert 0 < scores["paper_bleu"] < 90
    assert scores["paper_bleu"] == pytest.approx(bleu_by_hand(hypotheses, references))


@pytest.mark.parametrize(
    ("language", "plain", "typographic"),
    [
        ("de", 'Er sagte: "Es ist nichts."', "Er sagte: „Es ist nichts.“"),
        ("de", 'Er sagte: "Es ist nichts."', "Er sagte: »Es ist nichts.«"),
        ("de", "Er sagte: 'Es ist nichts.'", "Er sagte: ‚Es ist nichts.‘"),
        ("en", 'He said: "It isn\'t so."', "He said: “It isn’t so.”"),
        ("fr", 'Il dit: "Ce n\'est rien."', "Il dit: «\u00a0Ce n’est rien.\u00a0»"),
    ],
)
def test_quotation_marks_of_either_side_count_as_plain_ones(language, plain, typographic):
    assert paper_bleu([plain], [typographic], language) == pytest.approx(100)
    assert paper_bleu([typographic], [plain], language) == pytest.approx(100)
    scores = translation_scores([plain], [typographic], language=language)
    assert scores["sacrebleu"] < 90


def test_a_comma_stays_on_its_side_of_the_quotation_mark():
    # normalize-punctuation.perl -l de would make these two equal.
    hypotheses, references = ['"Es ist nichts," sagte er.'], ['"Es ist nichts", sagte er.']
    assert paper_bleu(hypotheses, references, "de") < 90


def test_case_counts():
    hypotheses, references = ["die Katze sitzt auf der Matte"], ["Die Katze sitzt auf der Matte"]
    for score in ("sacrebleu", "paper_bleu"):
        assert translation_scores(hypotheses, references, language="de")[score] < 90


def test_apostrophes_are_tokenised_by_the_rules_of_the_language():
    hypotheses, references = ["voici l'homme de l'art moderne"], ["voici l'ami de l'art moderne"]
    # French: voici l' homme de l' art moderne; German: voici l ' homme de l ' art moderne
    french = (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** (1 / 4)
    german = (8 / 9 * 6 / 8 * 4 / 7 * 2 / 6) ** (1 / 4)
    assert paper_bleu(hypotheses, references, "fr") == pytest.approx(100 * french)
    assert paper_bleu(hypotheses, references, "de") == pytest.approx(100 * german)


def test_compounds_are_split_once_in_german_and_left_whole_in_french():
    # German: der E ##AT##-##AT## Mail Text kam an .   French: der E-Mail Text kam an .
    hypotheses, references = ["der E-Mail Text kam an ."], ["der E-Post Text kam an ."]
    german = (7 / 8 * 5 / 7 * 3 / 6 * 1 / 5) ** (1 / 4)
    french = (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4)
    assert paper_bleu(hypotheses, references, "de") == pytest.approx(100 * german)
    assert paper_bleu(hypotheses, references, "fr") == pytest.approx(100 * french)


def test_tokenized_text_is_not_tokenised_again_but_its_compounds_are_split():
    hypotheses = ["ein &quot; E-Mail &quot; von ihr"]
    references = ["ein &quot; E-Brief &quot; von ihr"]
    scores = translation_scores(hypotheses, references, language="de", tokenized=True)
    # ein &quot; E ##AT##-##AT## Mail &quot; von ihr: eight tokens, the fifth of them wrong
    split = (7 / 8 * 5 / 7 * 3 / 6 * 1 / 5) ** (1 / 4)
    assert scores["paper_bleu"] == pytest.approx(100 * split)


def test_signatures_say_how_the_numbers_came_about():
    plain = translation_scores(["a b c d"], ["a b c d"], language="de")
    tokens = translation_scores(["a b c d"], ["a b c d"], language="de", tokenized=True)
    sacrebleu_version = f"version:{version('sacrebleu')}"
    for scores in (plain, tokens):
        assert sacrebleu_version in scores["sacrebleu_signature"].split("|")
        assert sacrebleu_version in scores["chrf_signature"].split("|")
        assert {"nrefs:1", "case:mixed"} <= set(scores["sacrebleu_signature"].split("|"))
    assert "tok:13a" in plain["sacrebleu_signature"].split("|")
    assert "tok:none" in tokens["sacrebleu_signature"].split("|")


@pytest.mark.parametrize(
    ("language", "tokeniser"),
    [("ja", "char"), ("jpn", "char"), ("ko", "char"), ("th", "char"), ("zh", "zh"), ("zho", "zh")],
)
def test_scripts_without_spaces_have_their_own_tokeniser(language, tokeniser):
    scores = translation_scores(["\u732b\u304c"], ["\u732b\u304c"], language=language)
    assert f"tok:{tokeniser}" in scores["sacrebleu_signature"].split("|")


def test_scores_of_a_perfect_translation():
    lines = ["Das ist ein Satz.", "Und noch einer."]
    scores = translation_scores(lines, lines, language="de")
    assert scores["lines"] == 2
    for score in ("sacrebleu", "chrf", "paper_bleu"):
        assert isinstance(scores[score], float)
        assert scores[score] == pytest.approx(100)
    json.dumps(scores)


def test_an_empty_hypothesis_scores_zero():
    scores = translation_scores([""], ["Das ist ein Satz."], language="de")
    assert (scores["sacrebleu"], scores["chrf"], scores["paper_bleu"]) == (0, 0, 0)


@pytest.mark.parametrize("tokenized", [False, True])
def test_text_that_looks_tokenised_makes_no_noise(tokenized, caplog, capfd):
    lines = ["das ist ein satz ."] * 100  # where sacreBLEU begins to warn
    with caplog.at_level(logging.DEBUG):
        translation_scores(lines, lines, language="de", tokenized=tokenized)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("language", ["de", "fr"])
def test_real_news_against_itself_is_perfect_and_the_order_of_lines_is_no_matter(language):
    references = read_lines(f"wmt_news/newstest2012.{language}", 500)
    assert paper_bleu(references, references, language) == pytest.approx(100)
    hypotheses = [" ".join(line.split()[:-2]) for line in references]
    order = random.Random(3).sample(range(500), 500)
    shuffled = [[lines[i] for i in order] for lines in (hypotheses, references)]
    score = paper_bleu(hypotheses, references, language)
    assert 70 < score < 99
    assert paper_bleu(*shuffled, language) == pytest.approx(score)


def test_next_line_character_inside_a_line_is_a_space():
    # The news tests of 2009 contain U+0085 inside lines.
    assert paper_bleu(["eins zwei\u0085drei vier"], ["eins zwei drei vier"], "de") == pytest.approx(
        100
    )


@pytest.mark.parametrize("tokenized", [False, True])
@pytest.mark.parametrize(
    ("hypotheses", "references", "said"),
    [
        (["a", "b", "c"], ["a", "b"], "got 3 hypotheses and 2 references"),
        ([], ["a"], "got 0 hypotheses and 1 references"),
        ([], [], "got no lines"),
    ],
)
def test_lines_that_cannot_be_paired_are_bad_input(hypotheses, references, said, tokenized):
    with pytest.raises(BadInput, match=said) as error:
        translation_scores(hypotheses, references, language="de", tokenized=tokenized)
    assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match=said):
        paper_bleu(hypotheses, references, "de")


def test_metrics_need_neither_tensorflow_nor_keras():
    program = (
        "import sys, t2t_repro.scoring.bleu; "
        "print(sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout == "[]\n"


def test_confidence_interval_is_that_of_resampled_lines():
    """The interval agrees with a bootstrap of 300 samples written here."""
    draw = np.random.default_rng(0)
    words = [f"w{index}" for index in range(30)]
    references = [" ".join(draw.choice(words, 12)) for _ in range(60)]
    # Every third line is right; the others are right in their first half.
    hypotheses = [
        line if index % 3 == 0 else line[: len(line) // 2] + " x y z u v"
        for index, line in enumerate(references)
    ]
    scores = translation_scores(hypotheses, references, language="de")
    samples = []
    for _ in range(300):
        chosen = draw.integers(0, 60, 60)
        some = [[lines[index] for index in chosen] for lines in (hypotheses, references)]
        samples.append(BLEU().corpus_score(some[0], [some[1]]).score)
    low, high = np.quantile(samples, [0.025, 0.975])
    assert scores["sacrebleu_interval"] == pytest.approx((high - low) / 2, rel=0.25)


def test_lines_all_alike_leave_no_doubt():
    scores = translation_scores(["ein Haus am See"] * 5, ["ein Haus am Meer"] * 5, language="de")
    assert scores["sacrebleu_interval"] == 0


@pytest.mark.parametrize("bad", ["", "x", "q q q q q q q q q"])
def test_poor_output_has_an_interval_too(bad):
    hypotheses = [bad, bad, "", "ein Haus"]
    scores = translation_scores(hypotheses, ["ein Haus am Meer"] * 4, language="de")
    assert 0 <= scores["sacrebleu_interval"] < 100


def test_chrf_compares_characters_and_no_words():
    """chrF ignores spaces; chrF++, which also counts words, gives 75 here."""
    scores = translation_scores(["ab cd ef"], ["abc def"], language="de")
    assert scores["chrf"] == 100
    assert "|nc:6|nw:0|" in scores["chrf_signature"]
