"""Attention figures: data of the page, colours of the PNG, the command, TensorBoard's images.

test_visualize_page.py opens the page in a browser.
"""

import io
import json
import re
import sys
from html.parser import HTMLParser
from itertools import islice

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.colors import to_rgb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipelines.encode import encode_in_memory
from pipelines.errors import BadInput
from pipelines.toy import toy_ende
from pipelines.vocabulary import Vocabulary
from t2t_repro import cli, experiment, visualize
from t2t_repro.paper import attention_figure as figures
from t2t_repro.paper.attention_figure import COLOURS, AttentionFigure, Kind, Piece, attention_figure
from t2t_repro.paper.attention_picture import picture
from t2t_repro.training.dev_scores import DevScores
from t2t_repro.training.trainer import Trainer
from t2t_repro.workdir import Workdir

HOSTILE = 'The </script> costs $5, not $6 <!-- & "old"'


@pytest.fixture(scope="module")
def vocabulary():
    pairs = islice(toy_ende.examples("dev"), 300)
    return Vocabulary.learn((text for pair in pairs for text in pair.values()), 400)


@pytest.fixture(scope="module")
def model(build, vocabulary):
    return build(embedding_rows=vocabulary.size)


@pytest.fixture(scope="module")
def pair(vocabulary):
    return vocabulary.encode([HOSTILE, "Das Haus ist alt."])


@pytest.fixture(scope="module")
def figure(model, vocabulary, pair):
    return attention_figure(model, vocabulary, *pair)


class Scripts(HTMLParser):
    """A parser that collects the script elements of a page: (attributes, content)."""

    def __init__(self, page):
        super().__init__()
        self.found, self.tags = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.found.append((dict(attributes), ""))

    def handle_data(self, data):
        if self.found and not self.found[-1][1]:
            self.found[-1] = (self.found[-1][0], data)


def read(page):
    (_, data), _ = Scripts(page).found
    return json.loads(data)


def texts(pieces):
    return [piece[0] for piece in pieces]


# The data


def test_pieces_spell_the_sentence(figure):
    """A space comes before each word; a character without a piece is spelt in bytes."""
    spelt = {
        name: "".join(" " * piece.begins_word + piece.text for piece in kind.queries)
        for name, kind in figure.kinds.items()
    }
    for name in ("cross", "decoder"):  # the mark of a word's start can be a piece of its own
        spelt[name] = spelt[name].replace("\u2581", "")
    assert spelt["cross"] == " Das Haus ist alt. <EOS>"
    assert spelt["decoder"] == " <start> Das Haus ist alt."
    byte = re.compile("<0x(..)>")
    plain = byte.sub(lambda found: chr(int(found[1], 16)), spelt["encoder"])
    assert plain.replace("\u2581", "") == f" {HOSTILE} <EOS>"


def test_each_kind_has_its_own_queries_and_keys(figure, model, pair):
    source, target = (len(ids) for ids in pair)
    shapes = {name: kind.weights.shape for name, kind in figure.kinds.items()}
    assert shapes == {
        "encoder": (2, 3, source, source),
        "decoder": (2, 3, target, target),
        "cross": (2, 3, target, source),
    }
    for kind in figure.kinds.values():
        assert kind.weights.shape[2:] == (len(kind.queries), len(kind.keys))
    cross, decoder = figure.kinds["cross"], figure.kinds["decoder"]
    assert texts(cross.queries)[-1] == "<EOS>"
    assert texts(decoder.queries) == ["<start>", *texts(cross.queries)[:-1]]
    assert cross.keys == figure.kinds["encoder"].keys


def test_the_page_holds_the_weights_to_three_digits(figure, model, pair):
    data = read(figure.html(figure.view(), "a model"))
    maps = model.attention(*(np.array([ids]) for ids in pair))
    for name, expected in maps._asdict().items():
        weights = np.array(data["kinds"][name]["weights"])
        assert weights.dtype == int
        np.testing.assert_allclose(weights / 1000, np.array(expected)[:, 0], atol=0.00051)


def test_no_sentence_ends_the_script(figure):
    page = figure.html(figure.view(), "a model")
    assert [attributes for attributes, _ in Scripts(page).found] == [
        {"type": "application/json", "id": "figure"},
        {},
    ]
    assert read(page)["sentence"] == HOSTILE
    assert read(page)["translation"] == "Das Haus ist alt."


def test_the_page_asks_for_nothing_from_outside(figure):
    page = figure.html(figure.view(), "a model")
    for tag, attributes in Scripts(page).tags:
        assert not attributes.keys() & {"src", "href", "srcset", "data"}, tag
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


# What is shown first


def blank_figure(layers, heads=8):
    pieces = [Piece("un", True), Piece("do", False), Piece("do", True), Piece("<EOS>", True)]
    kind = Kind("Encoder self-attention", pieces, pieces, np.zeros((layers, heads, 4, 4)))
    return AttentionFigure("undo do", "", {"encoder": kind})


@pytest.mark.parametrize(("layers", "shown"), [(6, 5), (8, 5), (5, 5), (2, 2), (1, 1)])
def test_layer_5_of_6_as_in_the_paper_or_the_last(layers, shown):
    assert blank_figure(layers).view() == ("encoder", shown - 1, list(range(8)), None)


def test_a_word_is_found_that_is_spelt_in_bytes():
    texts = ["\u2581the", "\u2581", *(f"<0x{byte:02X}>" for byte in "日本".encode()), "</s>"]
    pieces = list(map(figures._piece, texts))
    assert [figures._find_query(word, pieces) for word in ("日本", "<EOS>")] == [1, 8]


@pytest.mark.parametrize(("word", "index"), [("un", 0), ("undo", 0), ("do", 1), ("<EOS>", 3)])
def test_a_word_is_found_by_its_pieces(word, index):
    assert blank_figure(1).view(layer=1, heads=[8, 2, 2], word=word) == (
        *("encoder", 0, [1, 7]),
        index,
    )


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layer": 3}, "--layer=3: wanted 1 to 2 for this model"),
        ({"layer": 0}, "--layer=0: "),
        ({"heads": [1, 9]}, "--heads=9: wanted 1 to 8 for this model"),
        ({"word": "dodo"}, "--word=dodo: .* of: un do do <EOS>"),
    ],
)
def test_absent_layer_head_or_word_is_refused(choice, message):
    with pytest.raises(BadInput, match=message):
        blank_figure(2).view(**choice)


# The picture


def amounts(content, heads):
    """Return how many pixels of a PNG have the full colour of each head."""
    pixels = matplotlib.image.imread(io.BytesIO(content), format="png")[:, :, :3]
    return [int((np.abs(pixels - to_rgb(COLOURS[head])) < 0.02).all(-1).sum()) for head in heads]


def one_look_each():
    """Return a figure: head 0 attends to the same piece, head 1 to the last, head 2 to none."""
    figure = blank_figure(1, heads=3)
    kind = figure.kinds["encoder"]
    kind.weights[0, 0] = np.eye(4)
    kind.weights[0, 1, :, 3] = 1
    kind.weights[0, 2] = 0.001
    return figure


def test_lines_are_drawn_for_weights_and_chosen_heads():
    figure = one_look_each()
    legend_only = amounts(picture(figure, figure.view(heads=[3])), [0, 1, 2])
    assert legend_only[:2] == [0, 0]
    both = amounts(picture(figure, figure.view(heads=[1, 2])), [0, 1, 2])
    assert both[2] == 0
    assert min(both[:2]) > 2 * legend_only[2] > 0
    first = amounts(picture(figure, figure.view(heads=[1])), [0, 1])
    assert first[0] > legend_only[2]
    assert first[1] == 0


def marks(content, head, share):
    """Return the widths of a head's marks in one pixel line, at a share of the picture's height."""
    pixels = matplotlib.image.imread(io.BytesIO(content), format="png")[:, :, :3]
    line = pixels[int(share * len(pixels))]
    seen = (np.abs(line - to_rgb(COLOURS[head])) < 0.02).all(-1)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], seen, [0]])))
    return (edges[1::2] - edges[::2]).tolist()


def test_a_word_alone_has_its_own_line_and_cells_above_the_keys():
    figure = one_look_each()
    every = picture(figure, figure.view(heads=[1]))
    assert [len(marks(every, 0, share)) for share in (0.3, 0.5, 0.7)] == [4, 4, 4]
    one = picture(figure, figure.view(heads=[1], word="un"))
    assert [len(marks(one, 0, share)) for share in (0.3, 0.5, 0.7)] == [1, 1, 1]
    (line,), (cell,) = marks(one, 0, 0.5), marks(one, 0, 0.73)
    assert cell > 5 * line


def test_a_picture_of_any_text_is_a_png(figure):
    """ "$" does not start a formula; each kind has its own queries and keys."""
    assert sum("$" in text or "<0x24>" in text for text, _ in figure.kinds["cross"].keys) == 2
    for kind in figure.kinds:
        assert picture(figure, figure.view(kind)).startswith(b"\x89PNG")


def test_a_character_without_a_glyph_does_no_harm():
    pieces = [Piece("我", True), Piece("😀", False)]
    figure = AttentionFigure(
        "我😀", "", {"encoder": Kind("k", pieces, pieces, np.ones((1, 1, 2, 2)))}
    )
    assert picture(figure, figure.view()).startswith(b"\x89PNG")


# The command


@pytest.fixture
def call(monkeypatch, capfd, tiny_run):
    """Return a function that runs the command on the tiny run: (exit status, stdout, stderr)."""

    def call(*flags):
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # leaves this process's stderr where it is
        monkeypatch.setattr(sys, "argv", ["visualize", f"--workdir={tiny_run}", *map(str, flags)])
        with pytest.raises(SystemExit) as end:
            cli.run(visualize.main)
        return end.value.code, *capfd.readouterr()

    return call


SENTENCE = next(toy_ende.examples("dev"))["source"]


@pytest.mark.slow
def test_the_model_s_own_translation_is_looked_at(call, tiny_run, tmp_path):
    status, stdout, stderr = call(f"--sentence={SENTENCE}", f"--output={tmp_path / 'f.html'}")
    assert status == 0, stderr
    data = read((tmp_path / "f.html").read_text(encoding="utf-8"))
    translator = experiment.restore(Workdir(tiny_run), {}).translator()
    translation = translator(tf.constant([SENTENCE]))["translation"].numpy()[0].decode()
    assert stdout == translation + "\n"
    assert data["translation"] == translation
    assert data["sentence"] == SENTENCE
    assert data["model"] == "toy_ende, base: 1 layers of 3 heads"
    assert data["view"] == {"kind": "encoder", "layer": 0, "heads": [0, 1, 2], "word": None}


def test_flags_choose_what_is_shown(call, tmp_path):
    flags = ["--kind=cross", "--layer=1", "--heads", "3", "1", "--word=<EOS>", "--target=Ja nein."]
    status, stdout, stderr = call(
        f"--sentence={SENTENCE}", f"--output={tmp_path / 'f.html'}", *flags
    )
    assert (status, stdout) == (0, "Ja nein.\n"), stderr
    data = read((tmp_path / "f.html").read_text(encoding="utf-8"))
    last = len(data["kinds"]["cross"]["queries"]) - 1
    assert data["view"] == {"kind": "cross", "layer": 0, "heads": [0, 2], "word": last}


def test_the_same_as_a_picture(call, tmp_path):
    status, _, stderr = call(f"--sentence={SENTENCE}", f"--output={tmp_path / 'f.png'}")
    assert status == 0, stderr
    assert min(amounts((tmp_path / "f.png").read_bytes(), [0, 1, 2])) > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sentence= ", "--output=f.png"], "--sentence: 0 pieces; wanted"),
        (["--sentence=a", "--target=" + "b " * 300, "--output=f.png"], "--target: .*wanted"),
        (["--sentence=a a a a", "--max_source_length=3", "--output=f.png"], "wanted .* 1 to 2"),
        (["--sentence=a", "--output=f.pdf"], r"--output=f.pdf: wanted .*\.html or \.png"),
        (["--sentence=a", "--output=no/f.png"], "--output=no/f.png: no is no directory"),
        (["--sentence=a", "--target=b", "--output=f.png", "--layer=2"], "--layer=2: .* 1 to 1"),
        (["--sentence=a", "--output=f.png", "--workdir=none"], "none"),
    ],
    ids=str,
)
def test_mistakes_are_told_in_one_line(call, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    status, stdout, stderr = call(*flags)
    assert (status, stdout) == (2, "")
    (error,) = [line for line in stderr.splitlines() if not line.startswith("weights: ")]
    assert re.search(message, error), error
    assert list(tmp_path.iterdir()) == []


# TensorBoard


@pytest.mark.slow
def test_tensorboard_has_a_picture_of_one_dev_pair(tiny_run, tmp_path):
    run = experiment.restore(Workdir(tiny_run), {"eval_sentences": 3})
    before = [variable.numpy() for variable in run.model.variables]
    pairs = list(islice(run.problem.examples("dev", run.config), 100))
    dev = encode_in_memory(pairs, run.vocabulary, 100)
    workdir = Workdir(tmp_path)
    workdir.save_config(run.config)
    trainer = Trainer(run.model, run.config.train, run.strategy)
    validation = DevScores(run.config, run.problem, trainer, run.translator, dev, workdir)
    short = {"source": "The house is old.", "target": "Das Haus ist alt."}
    validation.pairs = [{"source": "long " * 50, "target": "lang"}, short, *validation.pairs]
    validation.validate(7)
    validation.validate(8)
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    events = accumulator.Tensors("dev/attention")
    assert [event.step for event in events] == [7, 8]
    # The picture shows the cross-attention of the first pair that is short enough.
    pair = run.vocabulary.encode(list(short.values()))
    figure = attention_figure(run.model, run.vocabulary, *pair)
    expected = tf.io.decode_png(picture(figure, figure.view("cross"), dpi=90))
    for event in events:
        width, height, image = tf.make_ndarray(event.tensor_proto)
        assert (int(height), int(width)) == expected.shape[:2]
        np.testing.assert_array_equal(tf.io.decode_png(image), expected)
    for old, new in zip(before, run.model.variables, strict=True):  # no dropout was drawn either
        np.testing.assert_array_equal(old, new.numpy())


def test_no_picture_where_all_pairs_are_long(tiny_run, tmp_path):
    run = experiment.restore(Workdir(tiny_run), {})
    trainer = Trainer(run.model, run.config.train, run.strategy)
    validation = DevScores(
        run.config, run.problem, trainer, run.translator, None, Workdir(tmp_path)
    )
    assert validation.drawn is None
    validation.pairs = [{"source": "Ja.", "target": "long " * 50}]
    del validation.drawn
    assert validation.drawn is None
