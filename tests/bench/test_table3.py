"""The Table 3 benchmark: settings of a row, rank correlation, and two rows trained for real."""

import dataclasses
import json
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
from paths import ROOT

from pipelines.errors import BadInput
from pipelines.toy import toy_ende
from t2t_repro import config
from t2t_repro.bench import table3 as bench_table3
from t2t_repro.bench.table3 import Plan, load_or_make_plan, spearman
from t2t_repro.paper import table3


def plan(divisor=4, updates=1000, **settings):
    return Plan("toy_ende", divisor, updates, settings)


# The settings of a row


@pytest.mark.parametrize("divisor", bench_table3.DIVISORS)
@pytest.mark.parametrize("row", config.variants())
def test_rows_differ_from_base_as_in_the_paper(row, divisor):
    paper, ours = config.resolve("wmt14_ende", row), plan(divisor).config(row)
    paper_base, our_base = config.resolve("wmt14_ende"), plan(divisor).config("base")
    for field in dataclasses.fields(config.Model):
        if field.name != "embedding_rows":
            theirs = getattr(paper.model, field.name), getattr(paper_base.model, field.name)
            mine = getattr(ours.model, field.name), getattr(our_base.model, field.name)
            assert theirs[0] * mine[1] == theirs[1] * mine[0], field.name  # the same ratio
    assert ours.train.label_smoothing == paper.train.label_smoothing
    assert ours.train.train_steps == (3000 if row == "big" else 1000)
    assert ours.decode.average_last == 1
    assert ours.decode.beam_size == 4


def test_the_paper_is_divided_by_the_divisor_and_the_rest_is_the_problems():
    model = plan(4).config("C4").model
    assert (model.d_model, model.d_ff, model.d_k, model.d_v) == (64, 512, 8, 8)
    assert (model.num_layers, model.num_heads) == (6, 8)
    assert plan(16).config("A4").model.d_k == 1
    train, toy = plan().config("base").train, config.resolve("toy_ende").train
    assert (train.warmup_steps, train.seed) == (toy.warmup_steps, toy.seed)
    assert plan(vocabulary_size=300).config("base").data.vocabulary_size == 300


def test_what_the_paper_does_not_have_is_off_on_any_problem():
    train = Plan("multi30k_ende", 4, 1000, {}).config("base").train
    assert (train.weight_decay, train.cooldown_share, train.bpe_dropout) == (0, 0, 0)
    assert not train.auxiliary_tasks


# The plan of a work directory


@pytest.fixture
def trial(monkeypatch):
    """Replace training by a trial of base that takes 40 seconds; return the list of trials."""
    trials = []

    def train(plan, name, workdir):
        trials.append((name, plan.updates))
        workdir.mkdir(parents=True)
        (workdir / "results.json").write_text(json.dumps({"cost": {"seconds": 40.0}}))

    monkeypatch.setattr(bench_table3, "_train", train)
    return trials


def test_updates_are_those_that_base_makes_in_the_time(tmp_path, trial):
    wanted = plan(updates=0)
    assert load_or_make_plan(tmp_path, wanted, minutes=5).updates == 300 / 40 * 200
    assert trial == [("base", 200)]
    assert (
        load_or_make_plan(tmp_path, wanted, minutes=5).updates == 1500
    )  # kept, not measured again
    assert len(trial) == 1


def test_another_plan_is_refused(tmp_path, trial):
    load_or_make_plan(tmp_path, plan(updates=0), minutes=5)
    for other, minutes in (
        (plan(updates=0), 6),
        (plan(updates=7), 5),
        (plan(8, updates=0), 5),
        (plan(updates=0)._replace(problem="multi30k_ende"), 5),
    ):
        with pytest.raises(
            BadInput, match=r"holds rows with problem toy_ende, divisor 4, minutes 5"
        ):
            load_or_make_plan(tmp_path, other, minutes)


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"asked": {}, "updates": "many"}'])
def test_a_damaged_plan_is_refused(tmp_path, content):
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(BadInput, match=r"plan\.json: damaged"):
        load_or_make_plan(tmp_path, plan(updates=7), minutes=5)


def test_updates_that_are_given_need_no_trial(tmp_path, trial):
    assert load_or_make_plan(tmp_path, plan(updates=7), minutes=5).updates == 7
    assert not trial


# Rank correlation


def test_spearman_by_hand():
    assert spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Without ties 1 - 6 sum of d^2 / (n (n^2 - 1)): ranks 1 2 3 4 beside 2 1 4 3.
    assert spearman([1, 2, 3, 4], [20, 10, 40, 30]) == pytest.approx(1 - 6 * 4 / 60)
    # Ranks 1.5 1.5 3 beside 1 2 3.
    assert spearman([5, 5, 9], [1, 2, 3]) == pytest.approx(0.5 * 3**0.5)
    assert spearman([5, 5], [1, 2]) is None


def test_spearman_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    ours = np.random.default_rng(0).integers(0, 9, (2, 20))
    assert spearman(*ours.tolist()) == pytest.approx(stats.spearmanr(*ours).statistic)


# Real training


def bench(text, workdir, *flags):
    command = [sys.executable, "-m", "t2t_repro.bench", "table3", "--problem=parallel_text"]
    command += [
        f"--tsv_files={text}",
        f"--workdir={workdir}",
        "--divisor=16",
        "--updates=3",
        "--json",
    ]
    command += ["--held_out_share=0.1", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def check(row, workdir):
    results = json.loads((workdir / row["row"] / "results.json").read_text())
    scores = results["dev"]
    assert 1 < scores["perplexity"] == row["perplexity"]
    assert (scores["sacrebleu"], scores["paper_bleu"]) == (row["sacrebleu"], row["paper_bleu"])
    printed = table3.printed()[row["row"]]
    assert (row["printed_perplexity"], row["printed_bleu"]) == printed[:2]
    assert (row["updates"], row["minutes"]) == (3, results["cost"]["seconds"] / 60)


@pytest.mark.slow
def test_two_rows_are_trained_scored_and_not_trained_again(tmp_path):
    text, workdir = tmp_path / "pairs.tsv", tmp_path / "rows"
    pairs = islice(toy_ende.examples("dev"), 300)
    text.write_text("".join(f"{pair['source']}\t{pair['target']}\n" for pair in pairs))
    flags = ("--rows=C1,C2", "--vocabulary_size=400")
    ended = bench(text, workdir, *flags)
    assert ended.returncode == 0, ended.stderr
    c1, c2, ranks = json.loads(ended.stdout)["rows"]
    assert [row["row"] for row in (c1, c2)] == ["C1", "C2"]
    check(c1, workdir)
    check(c2, workdir)
    matrix = 400 * 32
    assert c2["parameters"] - matrix == 2 * (c1["parameters"] - matrix)  # four layers against two
    assert ranks["rows"] == 2

    again = bench(text, workdir, *flags)
    assert again.stderr == ""  # nothing was trained
    assert json.loads(again.stdout)["rows"] == [c1, c2, ranks]
    other = bench(text, workdir, flags[0], "--vocabulary_size=500")
    assert other.returncode == 2
    assert "C1 holds another run: vocabulary_size: 500 (the run has 400)" in other.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["table3", "--rows=base,C9"], "unknown variant 'C9'"),
        (["table3", "--divisor=3"], "--divisor: wanted one of (1, 2, 4, 8, 16), got 3"),
        (["table3", "--problem=toy_parsing"], "toy_parsing: wanted a problem that is scored by B"),
        (["table3", "--minutes=0"], "--minutes: wanted a number from 0.001 to"),
        (["input", "--updates=3"], "--updates: only for table3"),
    ],
)
def test_flags_that_cannot_be(flags, message, tmp_path):
    command = [sys.executable, "-m", "t2t_repro.bench", *flags]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
