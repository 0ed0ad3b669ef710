"""A parsing run from text to trees: `translate`, its export, its figures."""

import functools
import io
import sys

import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations
from served import server

from pipelines.errors import BadInput
from pipelines.parsing import trees
from pipelines.parsing.linear_trees import restored
from pipelines.toy import toy_parsing
from t2t_repro import cli, config, translate, visualize
from t2t_repro.serving import litert, saved_model
from t2t_repro.workdir import Workdir

pytestmark = pytest.mark.slow
SIZE = {"num_layers": 1, "d_model": 24, "d_ff": 32, "num_heads": 2, "d_k": 12, "d_v": 12}
SHORT = {"train_steps": 3, "warmup_steps": 2, "eval_sentences": 0, "max_shapes": 1}
MORE = {"beam_size": 3, "max_extra_length": 20, "vocabulary_size": 400, "dropout": 0.0}
# {sentence: its words}
SENTENCES = {
    "The cat sleeps .": ["The", "cat", "sleeps", "."],
    "": [],
    "\t": [],
    "She gave (him) a  book , --": ["She", "gave", "-LRB-him-RRB-", "a", "book", ",", "--"],
    "Is it\u00a0ours ?": ["Is", "it\u00a0ours", "?"],
    "one": ["one"],
}


def tree_of(words, target):
    """Return the bracketed tree of a target, computed in Python."""
    return trees.bracketed(restored(target, words))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run that is hardly trained, so that its outputs need repair."""
    from t2t_repro import experiment

    data = tmp_path_factory.mktemp("treebank")
    pairs = list(toy_parsing.examples("dev"))
    for split, part in {"train": pairs[:60], "dev": pairs[60:70], "test": pairs[70:80]}.items():
        lines = [tree_of(pair["source"].split(), pair["target"]) for pair in part]
        (data / f"{split}.ptb").write_text("\n".join(lines))
    settings = SIZE | SHORT | MORE | {"data_dir": str(data), "attention_dropout": 0.0}
    workdir = tmp_path_factory.mktemp("parsing") / "run"
    resolved = config.resolve("wsj_parsing", overrides=settings)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    experiment.make_loop(experiment.build(resolved, Workdir(workdir), strategy)).run()
    return experiment.restore(Workdir(workdir), {})


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    directory = tmp_path_factory.mktemp("export")
    saved_model.save(run, directory / "1")
    return directory


@pytest.fixture(scope="module")
def expected(run):
    """Return the trees of each sentence's beam, computed in Python from the targets."""
    outputs = run.translator().nbest(tf.constant(list(SENTENCES)))
    found = (outputs["scores"] > -1e9).numpy()
    targets = outputs["translations"].numpy()
    return [
        [tree_of(words, target.decode()) for target in row[is_one]] + [""] * sum(~is_one)
        for words, row, is_one in zip(SENTENCES.values(), targets, found, strict=True)
    ]


def test_an_export_returns_trees(exported, expected):
    """test_end_to_end.py shows that an export needs none of this code."""
    signatures = tf.saved_model.load(str(exported / "1")).signatures
    text = tf.constant(list(SENTENCES))
    best = signatures["serving_default"](text=text)["translation"].numpy().tolist()
    beam = signatures["nbest"](text=text)["translations"].numpy().tolist()
    assert [tree.decode() for tree in best] == [row[0] for row in expected]
    assert [[tree.decode() for tree in row] for row in beam] == expected
    assert expected[1] == expected[2] == ["", "", ""]
    assert any(len(set(row)) == 3 for row in expected)


load = functools.cache(saved_model.load)


@pytest.fixture
def lines(monkeypatch, capfd):
    """Return a function that runs `translate` on the sentences and returns the lines of stdout."""

    def lines(*flags):
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # leaves this process's stderr where it is
        monkeypatch.setattr(saved_model, "load", load)  # takes seconds
        monkeypatch.setattr(sys, "argv", ["translate", *map(str, flags)])
        stdin = io.BytesIO("".join(f"{sentence}\n" for sentence in SENTENCES).encode())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        with pytest.raises(SystemExit) as end:
            cli.run(translate.main)
        stdout, stderr = capfd.readouterr()
        assert end.value.code == 0, stderr
        return stdout.split("\n")[:-1]

    return lines


def test_translate_prints_trees_of_a_run_and_of_its_export(lines, run, exported, expected):
    indented = [trees.indented(trees.parse(row[0])) for row in expected]
    for source in (f"--workdir={run.workdir.path}", f"--saved_model={exported}"):
        assert lines(source, "--nbest=3") == [tree for row in expected for tree in row]
        assert lines(source, "--pretty") == "\n".join(indented).split("\n")
    assert lines(f"--saved_model={exported}") == [row[0] for row in expected]


def test_only_trees_are_indented():
    with pytest.raises(BadInput, match="--pretty: toy_ende does not parse"):
        translate._check_pretty(True, "toy_ende")
    translate._check_pretty(True, "toy_parsing")
    with pytest.raises(BadInput, match="--pretty: wanted the export of a run that parses; not a"):
        translate._indented("Ein Hund.")


def test_figures_are_of_what_the_model_writes(run, tmp_path, monkeypatch, capsys):
    """The figures show pieces of brackets and tags, which are the decoder's queries."""
    given = [
        f"--workdir={run.workdir.path}",
        "--sentence=The cat sleeps .",
        "--target=openNP DT NN",
    ]
    for output in ("page.html", "cross.png"):
        flags = [*given, f"--output={tmp_path / output}", "--kind=cross", "--word=DT"]
        monkeypatch.setattr(sys, "argv", ["visualize", *flags])
        visualize.main()
        assert capsys.readouterr().out == "openNP DT NN\n"
    assert "wsj_parsing, base" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (tmp_path / "cross.png").read_bytes().startswith(b"\x89PNG")


def test_a_server_returns_trees(run, expected, tmp_path):
    pytest.importorskip("ai_edge_litert")
    litert.save(run, tmp_path / "1")
    with server(tmp_path) as running:
        body = {"signature_name": "nbest", "inputs": {"text": list(SENTENCES)}}
        reply = running.post("/v1/models/default:predict", json=body)
        assert reply.json()["outputs"]["translations"] == expected
        assert '"output": "trees"' in running.get("/").text
