"""Every command as its user starts it, on one tiny run of toy_ende."""

import json
import os
import shutil
import subprocess
import sys
from itertools import islice

import pytest
import yaml
from paths import ROOT

from pipelines.toy import toy_ende
from pipelines.vocabulary import EOS, Vocabulary
from t2t_repro.scoring import bleu

ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
ENVIRONMENT["PYTHONPATH"] = str(ROOT)

# Enough steps that translations differ from line to line; three checkpoints.
SIZE = [
    *("--num_layers=1", "--d_model=32", "--d_ff=64", "--num_heads=2", "--d_k=16", "--d_v=16"),
    *("--vocabulary_size=500", "--tokens_per_batch=1024", "--warmup_steps=60"),
    *("--train_steps=360", "--checkpoint_steps=120", "--log_steps=50", "--eval_sentences=20"),
    *("--max_extra_length=20", "--learning_rate_scale=0.5", "--dropout=0"),
]

LINES = [
    b"The boy did not follow the woman.",
    b"",
    b"   \t ",
    b"She asks whether the eleven old dogs are here.",
    b"long " * 1200,
    "next\u0085line and\u2028separator".encode(),
    b"The end of this line is a return too.\r",
    b"Not UTF-8: caf\xe9.",
    b"A clever girl tried on a dress.",
]
LONG, BROKEN = 5, 8  # numbers of lines that are commented on, from 1


def python(*arguments, stdin=b"", cwd=ROOT.anchor, **environment):
    """Output and messages of a child process that must end well."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=ENVIRONMENT | environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout, done.stderr.decode()


def command(name, *flags, stdin=b"", **environment):
    """The same of a command, which must keep TensorFlow's own messages to itself."""
    stdout, stderr = python("-m", f"t2t_repro.{name}", *flags, stdin=stdin, **environment)
    noise = ["oneDNN", "cuda", "E0000", "WARNING", "Warning", "Traceback"]
    assert not [word for word in noise if word in stderr], stderr
    return stdout, stderr


def files(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("end_to_end") / "runs" / "tiny"
    stdout, stderr = command("train", f"--workdir={workdir}", *SIZE)
    assert stdout == b""
    assert "step 360: dev/perplexity" in stderr
    assert "FLOPs by count" in stderr
    assert f"python -m t2t_repro.evaluate --workdir={workdir}" in stderr
    return workdir


@pytest.fixture(scope="module")
def translated(workdir):
    """What `translate --workdir` makes of LINES, the last of which has no line feed."""
    return command("translate", f"--workdir={workdir}", stdin=b"\n".join(LINES))


@pytest.fixture(scope="module")
def moved_export(workdir, tmp_path_factory):
    """An export that was moved after its run was deleted."""
    directory = tmp_path_factory.mktemp("export")
    run, export, moved = (directory / name for name in ("run", "made/here", "moved"))
    shutil.copytree(workdir, run)
    stdout, _ = command("export", f"--workdir={run}", f"--export_dir={export}")
    assert stdout.decode() == f"{export / '1'}\n"
    shutil.rmtree(run)
    export.rename(moved)
    return moved


# Train


def test_work_directory(workdir):
    names = files(workdir)
    events = [name for name in names if name.startswith("events.out.tfevents.")]
    assert len(events) == 1
    steps = [f"step-{step}" for step in (120, 240, 360)]
    parts = [part for step in steps for part in (f"{step}.index", f"{step}.data-00000-of-00001")]
    shard = [f"shard-00000.{part}" for part in ("ids.npy", "lengths.npy", "json")]
    (train,) = (path.name for path in workdir.glob("prepared/train-*"))
    assert set(names) - set(events) == {
        "config.yaml",
        "vocabulary.model",
        "vocabulary.vocab",
        *(f"checkpoints/{name}" for name in ["checkpoint", *parts]),
        "corpus.json",
        "results.json",
        *(f"prepared/{split}/{name}" for split in (train, "dev") for name in shard),
        *(f"prepared/{split}/manifest.json" for split in (train, "dev")),
    }
    config = yaml.safe_load((workdir / "config.yaml").read_text())
    given = {"problem": "toy_ende", "d_model": 32, "vocabulary_size": 500, "eval_sentences": 20}
    assert given.items() <= config.items()
    assert config["beta_2"] == 0.98  # what was not given is written down too


def test_cost_of_training_is_kept(workdir):
    (name, cost), *others = json.loads((workdir / "results.json").read_text()).items()
    assert (name, others) == ("cost", [])
    assert cost["device"] == "CPU"
    assert cost["target_positions"] > 360 * 9
    assert cost["flops"] > 6 * 500 * 32 * cost["target_positions"]  # the output matrix alone
    assert cost["formula_flops"] is None
    assert 0.1 < cost["seconds"] < 120


def test_a_complete_run_stays_as_it_is_and_goes_on_when_asked(workdir, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(workdir, run)
    before = files(run)
    _, stderr = command("train", f"--workdir={run}", *SIZE)
    assert "step 360 is done already" in stderr
    assert files(run) == before

    _, stderr = command("train", f"--workdir={run}", "--train_steps=370")
    assert "resuming from step 360 of 370" in stderr
    after = files(run)
    assert "checkpoints/step-370.index" in after
    kept = set(before) - {"config.yaml", "checkpoints/checkpoint", "results.json"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


# Evaluate


def test_evaluate(workdir, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(workdir, run)
    test, stderr = command("evaluate", f"--workdir={run}", "--json")
    assert "mean of the last 3 checkpoints" in stderr
    dev, stderr = command(
        "evaluate", f"--workdir={run}", "--json", "--split=dev", "--average_last=1"
    )
    assert "mean of the last 1 checkpoints" in stderr

    scores = {"test": json.loads(test), "dev": json.loads(dev)}
    keys = {"sacrebleu", "sacrebleu_signature", "paper_bleu", "chrf", "perplexity", "lines"}
    assert all(keys <= set(of_split) for of_split in scores.values())
    assert scores["test"]["lines"] == scores["dev"]["lines"] == 500
    assert 1 < scores["test"]["perplexity"] < 500  # the vocabulary's size: knows nothing
    assert scores["test"]["perplexity"] != scores["dev"]["perplexity"]
    cost = json.loads((workdir / "results.json").read_text())
    assert json.loads((run / "results.json").read_text()) == cost | scores


def test_evaluate_files_without_tensorflow(tmp_path):
    references = [pair["target"] for pair in islice(toy_ende.examples("test"), 50)]
    hypotheses = [line.replace("der", "die") for line in references]
    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    start = (
        "import runpy, sys; sys.modules['tensorflow'] = None; "
        "runpy.run_module('t2t_repro.evaluate', run_name='__main__')"
    )
    stdout, _ = python(
        "-c",
        start,
        "--problem=toy_ende",
        f"--hypotheses={tmp_path / 'hypotheses'}",
        f"--references={tmp_path / 'references'}",
        "--json",
    )
    scores = json.loads(stdout)
    assert scores == bleu.translation_scores(hypotheses, references, language="de")
    assert 0 < scores["sacrebleu"] < 100


# Translate


def test_one_output_line_for_every_input_line(translated):
    stdout, stderr = translated
    translations = stdout.decode().split("\n")
    assert translations.pop() == ""
    assert len(translations) == len(LINES)
    assert [not line for line in translations] == [not line.strip() for line in LINES]
    assert len(set(translations)) > 4  # the order can be told
    notes = [line for line in stderr.splitlines() if line.startswith("line ")]
    assert sorted(note.split(":")[0] for note in notes) == [f"line {LONG}", f"line {BROKEN}"]
    assert "not UTF-8" in stderr


def test_empty_stdin_gives_empty_stdout(workdir):
    stdout, _ = command("translate", f"--workdir={workdir}", stdin=b"")
    assert stdout == b""


def test_an_export_translates_like_its_run(moved_export, translated):
    stdout, stderr = command(
        "translate",
        f"--saved_model={moved_export}",
        stdin=b"\n".join(LINES) + b"\n",
        PYTHONIOENCODING="latin-1",  # as in an old locale: text is UTF-8 all the same
    )
    assert stdout == translated[0]
    assert f"line {BROKEN}: not UTF-8" in stderr
    assert f"line {LONG}: too long" in stderr


# Export

LOAD = """
import json, sys
sys.modules.update(t2t_repro=None, pipelines=None)  # from here on, importing them fails
import tensorflow as tf
import tensorflow_text

lines, ids = json.load(sys.stdin)
signatures = tf.saved_model.load(sys.argv[1]).signatures

def translate(*lines):
    outputs = signatures["serving_default"](text=tf.constant(lines))
    assert outputs["score"].dtype == tf.float32
    assert outputs["score"].shape == outputs["translation"].shape == [len(lines)]
    return [line.decode() for line in outputs["translation"].numpy()]

json.dump({
    "alone": [translate(line)[0] for line in lines],
    "by three": [line for i in range(0, len(lines), 3) for line in translate(*lines[i:i + 3])],
    "ids": signatures["translate_ids"](ids=tf.constant(ids))["ids"].numpy().tolist(),
}, sys.stdout)
"""


def test_layout_for_tensorflow_serving(moved_export):
    assert {"saved_model.pb", "variables", "assets"} <= set(os.listdir(moved_export / "1"))
    variables = ["variables.data-00000-of-00001", "variables.index"]
    assert sorted(os.listdir(moved_export / "1" / "variables")) == variables
    assert os.listdir(moved_export) == ["1"]


def test_an_export_needs_neither_its_run_nor_this_code(moved_export, translated, workdir, tmp_path):
    """And the translation of a line does not depend on its neighbours."""
    expected = translated[0].decode().split("\n")[:-1]
    lines = [line.decode(errors="replace") for line in LINES]
    vocabulary = Vocabulary.load(workdir)
    (ids,) = vocabulary.encode(lines[:1])
    stdin = json.dumps([lines, [ids, [EOS] + [0] * (len(ids) - 1)]]).encode()
    stdout, _ = python("-I", "-c", LOAD, moved_export / "1", stdin=stdin, cwd=tmp_path)
    outputs = json.loads(stdout)
    assert outputs["alone"] == expected
    assert outputs["by three"] == expected
    assert vocabulary.decode(outputs["ids"])[0] == expected[0]
