"""The translate command in this process: order, streams, columns, and a run equal to its export."""

import functools
import io
import sys
import time
import tracemalloc
from itertools import count, islice

import pytest
import tensorflow as tf

from pipelines.errors import BadInput
from pipelines.toy import toy_ende
from pipelines.vocabulary import EOS
from t2t_repro import cli, config, translate
from t2t_repro.decoding.translator import Line, beams, nbest_lines, translate_lines
from t2t_repro.serving import saved_model
from t2t_repro.workdir import Workdir

LINES = [pair["source"] for pair in islice(toy_ende.examples("dev"), 20)] + [
    "",
    "long " * 300,
    "Yes.",
]
TEXT = "".join(line + "\n" for line in LINES).encode()


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    from t2t_repro import experiment

    directory = tmp_path_factory.mktemp("export") / "export"
    run = experiment.restore(Workdir(tiny_run), {"beam_size": 3, "max_source_length": 100})
    saved_model.save(run, directory / "10")
    (directory / "9").mkdir()  # an older version, which is unusable
    return directory


load = functools.cache(saved_model.load)


@pytest.fixture
def call(monkeypatch, capfd):
    """Return a function that runs the command and returns (exit status, stdout, stderr)."""

    def call(*flags, stdin=TEXT):
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # leaves this process's stderr where it is
        monkeypatch.setattr(saved_model, "load", load)  # takes seconds
        monkeypatch.setattr(sys, "argv", ["translate", *map(str, flags)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            cli.run(translate.main)
        return end.value.code, *capfd.readouterr()

    return call


@pytest.fixture
def output(call):
    """Return a function that runs the command, which must succeed, and returns stdout's lines."""

    def output(*flags, stdin=TEXT):
        status, stdout, stderr = call(*flags, stdin=stdin)
        assert status == 0, stderr
        assert not stdout or stdout.endswith("\n")
        return stdout.split("\n")[:-1]

    return output


# Columns


@pytest.mark.parametrize("flags", [[], ["--nbest=3", "--score"]], ids=str)
def test_a_run_and_its_export_are_equal_byte_for_byte(call, tiny_run, exported, flags):
    of_run = call(f"--workdir={tiny_run}", "--beam_size=3", "--max_source_length=100", *flags)
    of_export = call(f"--saved_model={exported}", *flags)
    assert of_run[:2] == of_export[:2]
    assert of_export[0] == 0
    assert of_export[1].count("\n") == len(LINES) * (3 if flags else 1)
    assert "line 22: too long, its end was cut off" in of_export[2]


def test_score_is_a_column_before_the_translation(output, exported):
    plain = output(f"--saved_model={exported}")
    rows = [line.split("\t") for line in output(f"--saved_model={exported}", "--score")]
    assert [row[1] for row in rows] == plain
    scores = {line: float(row[0]) for line, row in zip(LINES, rows, strict=True)}
    assert scores.pop("") == 0
    assert max(scores.values()) < 0
    assert all(row[0] == f"{float(row[0]):.4f}" for row in rows)


def test_nbest_is_n_lines_for_every_line(output, exported):
    plain = output(f"--saved_model={exported}")
    rows = [
        line.split("\t") for line in output(f"--saved_model={exported}", "--nbest=2", "--score")
    ]
    assert len(rows) == 2 * len(LINES)
    assert [row[1] for row in rows[::2]] == plain
    assert all(float(a[0]) >= float(b[0]) for a, b in zip(rows[::2], rows[1::2], strict=True))
    blank = 2 * LINES.index("")
    assert [row[1] for row in rows[blank : blank + 2]] == ["", ""]
    assert output(f"--saved_model={exported}", "--nbest=2", stdin=b"") == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--nbest=0", "--nbest: wanted a whole number from 1 to 1,000, got '0'"),
        ("--nbest=two", "--nbest: wanted a whole number from 1 to 1,000, got 'two'"),
        ("--nbest=4", "--nbest=4: the search keeps 3 hypotheses; export with a greater --beam"),
    ],
)
def test_nbest_that_cannot_be(call, exported, flags, expected):
    status, stdout, stderr = call(f"--saved_model={exported}", flags)
    assert (status, stdout) == (2, "")
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert expected in stderr


def test_nbest_beyond_the_beam_of_a_run(call, tiny_run):
    status, _, stderr = call(f"--workdir={tiny_run}", "--nbest=5")
    assert status == 2
    assert stderr == (
        "error: --nbest=5: the search keeps 4 hypotheses; give a greater --beam_size too\n"
    )


# Streams


def echo(text):
    """Replace a model: return the text as its translation, and its length as the score."""
    lengths = tf.cast(tf.strings.length(text), tf.float32)
    return {"translation": text, "score": lengths, "cut": lengths > 1000}


def test_order_is_kept_and_lengths_are_sorted_within_a_window():
    batches = []

    def watch(text):
        batches.append([len(line) for line in text.numpy()])
        return echo(text)

    lines = ["x" * (index * 37 % 101) for index in range(1000)]
    assert [line.translation for line in translate_lines(watch, lines, window=300)] == lines
    assert sum(map(len, batches)) == 1000
    full = [max(lengths) - min(lengths) for lengths in batches if len(lengths) == 64]
    assert len(full) == 3 * 4 + 1
    assert max(full[:12]) < 25  # lengths go to 100; a batch has 64 of 300 lines


@pytest.mark.parametrize("has_prefixes", [False, True])
def test_batches_are_bounded_in_lines_and_in_bytes_or_pieces_of_prefixes(has_prefixes):
    lines = ["é" * 50] * 1000 + ["x" * 10_000] * 3 + ["x" * 99_999]
    rows = [("é", [5] * len(line), "more") for line in lines] if has_prefixes else zip(lines)
    sizes = []

    def watch(texts, *others):
        sizes.append(len(texts))
        beam = tf.constant([["a", "b"]] * len(texts))
        return {"translations": beam, "scores": tf.zeros(beam.shape), "cut": beam[:, 0] == "b"}

    assert len(list(beams(watch, rows, window=2000))) == 1004
    assert sizes[:4] == [1, 1, 1, 1]
    assert set(sizes[4:-1]) == {64}
    assert sum(sizes) == 1004


@pytest.mark.parametrize("lines_of", [translate_lines, nbest_lines])
def test_an_endless_stream(lines_of):
    """Results come as soon as one window is read, before any line beyond it is read."""
    read = []

    def endless():
        for number in count():
            read.append(number)
            yield f"line {number}"

    def beam(text):
        outputs = echo(text)
        return outputs | {
            "translations": tf.stack([text, text], axis=1),
            "scores": tf.stack([outputs["score"]] * 2, axis=1),
        }

    results = list(islice(lines_of(beam, endless(), window=50), 70))
    assert len(read) == 100
    expected = Line("line 69", 7.0, False)
    assert results[69] == (expected if lines_of is translate_lines else [expected] * 2)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_lines():
    """A million lines would be 9 MB as bytes alone, and 60 MB as Python's strings."""

    def peak(number):
        tracemalloc.start()
        total = sum(1 for _ in translate_lines(echo, (f"line {i}" for i in range(number))))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert total == number
        return peak

    assert peak(60_000) < 1.6 * peak(10_000)


# Progress


class Terminal(io.StringIO):
    """A stream that reports whether it is a terminal."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.mark.parametrize(
    ("terminals", "seconds", "seen"),
    [
        ({"stderr"}, 2.2, True),
        ({"stderr"}, 0.5, False),  # a short text
        pytest.param(
            set(), 2.2, False, marks=pytest.mark.slow
        ),  # a log file, redrawn every half minute
        # The translations appear on the terminal.
        pytest.param({"stderr", "stdout"}, 2.2, False, marks=pytest.mark.slow),
    ],
)
def test_progress(monkeypatch, terminals, seconds, seen):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal(name in terminals))

    def rows():
        for _ in range(3):
            time.sleep(seconds / 3)
            yield [Line("", 0.0, False)]

    number = len(list(translate._with_progress(rows(), at_once=False)))
    shown = sys.stderr.getvalue()
    monkeypatch.undo()
    assert number == 3
    assert ("3line" in shown) == seen
    assert seen or shown == ""


def test_a_source_that_is_too_long_is_cut_and_ends_with_eos(tiny_run):
    from t2t_repro import experiment

    run = experiment.restore(Workdir(tiny_run), {"max_source_length": 6})
    text = "The old house is not small, and the men play."
    (ids,) = run.vocabulary.encode([text])
    assert len(ids) > 6
    translator = run.translator()
    outputs = translator.translate(tf.constant([text, "Yes."]))
    assert outputs["cut"].numpy().tolist() == [True, False]
    expected = translator.translate_ids([[*ids[:5], EOS]])
    assert outputs["score"][0].numpy() == pytest.approx(expected["score"][0].numpy(), abs=1e-5)
    assert (
        outputs["translation"][0].numpy().decode()
        == run.vocabulary.decode(expected["ids"].numpy().tolist())[0]
    )


def test_the_beam_of_several_runs_is_that_of_the_first(tmp_path):
    for name, beam_size in (("a", 4), ("b", 1)):
        (tmp_path / name).mkdir()
        saved = config.resolve("toy_ende", overrides={"beam_size": beam_size})
        config.save(saved, tmp_path / name / "config.yaml")

    def check(*names):
        runs = [str(tmp_path / name) for name in names]
        translate._check_runs(translate.parser().parse_args(["--nbest=3", "--workdir", *runs]), {})

    check("a", "b")
    with pytest.raises(BadInput, match="--nbest=3: the search keeps 1 hypotheses"):
        check("b", "a")
