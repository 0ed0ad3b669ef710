"""Paired bootstrap resampling of outputs, as `evaluate --compare` prints it."""

import json
import random

import commands
import pytest

from t2t_repro.scoring import bleu
from t2t_repro.scoring.bleu import translation_scores

WORDS = ["der", "die", "das", "Hund", "Haus", "ist", "alt", "sieht", "und", "ein", "warm"]


def spoilt(lines, share, seed):
    """Return lines with a share of their words replaced."""
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(WORDS) if rng.random() < share else word for word in line.split())
        for line in lines
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write references, two outputs that are about as good, and one that is worse."""
    folder, rng = tmp_path_factory.mktemp("compared"), random.Random(1)
    references = [" ".join(rng.choices(WORDS, k=12)) for _ in range(80)]
    texts = {"references": references, "a": spoilt(references, 0.2, 2)}
    texts |= {"b": spoilt(references, 0.2, 3), "worse": spoilt(references, 0.5, 4)}
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines))
    return {name: folder / name for name in texts}


def evaluate(files, capsys, *flags):
    status = commands.call("evaluate", *flags, "--references", files["references"])
    return status, *capsys.readouterr()


@pytest.mark.slow
def test_a_worse_system_differs_and_an_equal_one_does_not(files, capsys):
    systems = [files[name] for name in ("a", "b", "worse")]
    _, stdout, _ = evaluate(files, capsys, "--compare", *systems, "--ter", "--json")
    compared = json.loads(stdout)
    baseline, equal, worse = compared["systems"]
    assert baseline["system"] == str(files["a"])
    for metric in ("sacrebleu", "chrf", "ter"):
        assert baseline[metric]["p_value"] is None
        assert worse[metric]["p_value"] < 0.01 < equal[metric]["p_value"]
        assert 0 < equal[metric]["interval"] < 10
    assert worse["ter"]["score"] > baseline["ter"]["score"] > 5
    lines = [files[name].read_text().split("\n") for name in ("a", "references")]
    alone = translation_scores(*lines, language="de")
    assert baseline["sacrebleu"]["score"] == pytest.approx(alone["sacrebleu"])
    assert baseline["chrf"]["score"] == pytest.approx(alone["chrf"])
    assert "bs:1000" in compared["signatures"]["sacrebleu"]


def test_the_table_has_a_row_for_each_system(files, capsys):
    status, stdout, _ = evaluate(files, capsys, "--compare", files["a"], files["worse"])
    assert status == 0
    head, first, second, *signatures = stdout.splitlines()
    assert head.split() == ["sacrebleu", "p", "chrf", "p"]
    assert first.split()[:3] == [str(files["a"]), first.split()[1], "±"]
    assert second.split()[4] == "0.0010"
    assert [line.split(":")[0] for line in signatures] == ["sacrebleu", "chrf"]


def test_a_system_does_not_differ_from_itself(files, capsys):
    systems = files["a"], files["a"]
    _, stdout, _ = evaluate(files, capsys, "--compare", *systems, "--json")
    _, same = json.loads(stdout)["systems"]
    assert (same["sacrebleu"]["p_value"], same["chrf"]["p_value"]) == (1, 1)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--compare", "{a}"], "--compare: wanted two files or more, the baseline first"),
        (["--compare", "{a}", "{a}", "--strict"], "--strict: does not go with --compare; leave"),
        (["--compare", "{a}", "{a}", "--comet={a}"], "--comet: does not go with --compare"),
        (["--compare", "{a}", "{a}", "--problem=toy_parsing"], "--compare: compares translations"),
    ],
)
def test_what_cannot_be_compared(files, capsys, flags, expected):
    status, stdout, stderr = evaluate(files, capsys, *(flag.format(**files) for flag in flags))
    assert (status, stdout) == (2, "")
    assert expected in stderr


def test_ter_of_a_text_without_spaces_counts_characters():
    scores = bleu.ter_scores(["我喜欢狗"], ["我喜欢猫"], "zh")
    assert scores["ter"] == 25.0
    assert bleu.ter_scores(["a b c d"], ["a b c x"], "de")["ter"] == 25.0
