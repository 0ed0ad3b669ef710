"""The score command, against teacher forcing of each pair alone and against translate."""

import io
import json
import socket
import sys
from itertools import islice

import commands
import numpy as np
import pytest

from pipelines.errors import BadInput
from pipelines.toy import toy_ende
from t2t_repro.score import _pairs

PAIRS = [(p["source"], p["target"]) for p in islice(toy_ende.examples("dev"), 70)]  # two batches
PAIRS += [("", "Ja."), ("Yes.", ""), ("The cat 🙂", "Die Katze 🙂 \t".strip())]


@pytest.fixture
def scored(tiny_run, capfd, tmp_path):
    """Return a function that scores pairs from two files, and returns (stdout's lines, stderr)."""

    def scored(pairs, *flags):
        paths = [tmp_path / "sources", tmp_path / "targets"]
        for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
            path.write_text("".join(f"{line}\n" for line in side))
        given = f"--workdir={tiny_run}", f"--sources={paths[0]}", f"--targets={paths[1]}"
        assert commands.call("score", *given, *flags) == 0
        out, err = capfd.readouterr()
        return out.splitlines(), err

    return scored


def teacher_forced(run, source, target):
    """Return the log-probabilities of a target's ids, computed from the logits by NumPy alone."""
    ids = run.vocabulary.encode([source, target])
    logits = run.model(*(np.array([row], np.int32) for row in ids)).numpy()[
        0, :, : run.vocabulary.size
    ]
    logits = logits.astype(np.float64)[:, run.vocabulary.producible]
    place = np.cumsum(run.vocabulary.producible) - 1
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return log_probs[np.arange(len(ids[1])), place[ids[1]]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Keras's, about a mask of a source of one piece
def test_every_pair_is_scored_as_alone_and_in_order(scored, tiny_run):
    from t2t_repro import experiment
    from t2t_repro.workdir import Workdir

    lines, _ = scored(PAIRS, "--per_token")
    run = experiment.restore(Workdir(tiny_run), {})
    for line, (source, target) in zip(lines, PAIRS, strict=True):
        total, pieces, log_probs = line.split("\t")
        expected = teacher_forced(run, source, target)
        np.testing.assert_allclose(np.array(log_probs.split(" "), float), expected, atol=2e-4)
        assert float(total) == pytest.approx(expected.sum(), abs=2e-3)
        assert pieces.split(" ")[-1] == "</s>"
        ids = [run.vocabulary.pieces.index(piece) for piece in pieces.split(" ")]
        assert run.vocabulary.decode([ids]) == [target]


@pytest.mark.slow
def test_the_score_of_a_translation_is_the_one_that_translate_prints(scored, tiny_run, capfd):
    sources = "".join(f"{source}\n" for source, _ in PAIRS[:20])
    assert not commands.call(
        "translate", f"--workdir={tiny_run}", "--score", stdin=sources.encode()
    )
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    pairs = [(source, row[1]) for (source, _), row in zip(PAIRS, rows, strict=False)]
    lines, _ = scored(pairs, "--json")
    for line, (score, _) in zip(lines, rows, strict=True):
        values = json.loads(line)
        assert values["score"] == pytest.approx(float(score), abs=2e-4)
        penalty = ((5 + values["length"]) / 6) ** 0.6
        assert values["log_prob"] / penalty == pytest.approx(values["score"], rel=1e-5)


@pytest.mark.slow
def test_a_target_longer_than_any_output_has_no_probability(scored):
    pairs = [("No.", "Nein."), ("Yes.", "ja " * 50), ("long " * 50, "Ja.")]
    flags = "--max_source_length=20", "--max_extra_length=20"
    lines, notes = scored(pairs, *flags)
    assert lines[1] == "-inf"
    assert "line 2: the target is longer than any output" in notes
    assert "line 3: the source is too long, its end was cut off" in notes
    assert all(float(line) > -1000 for line in (lines[0], lines[2]))
    assert json.loads(scored(pairs, *flags, "--json")[0][1])["log_prob"] is None


@pytest.mark.slow
def test_pairs_on_stdin(tiny_run, tmp_path):
    pairs = "".join(f"{source}\t{target}\n" for source, target in PAIRS[:2]).encode()
    done = commands.python("-m", "t2t_repro.score", f"--workdir={tiny_run}", stdin=pairs)
    assert len([float(line) for line in done.stdout.splitlines()]) == 2


def test_stdin_may_be_a_socket(monkeypatch):
    """Which cannot be opened as /dev/stdin; programs that start commands often give them one."""
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        ours.sendall(b"Ja.\tYes.\nno tab\n")
        ours.shutdown(socket.SHUT_WR)
        pairs = _pairs(None, None)
        assert next(pairs) == ("Ja.", "Yes.")
        with pytest.raises(BadInput, match="stdin, line 2: 0 tabs"):
            next(pairs)
