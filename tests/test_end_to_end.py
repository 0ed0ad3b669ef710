"""Every command as its user starts it, on one tiny run of toy_ende (`tiny_run`)."""

import json
import os
import shutil
from itertools import islice

import clean_process
import commands
import numpy as np
import pytest
import yaml
from paths import ROOT

from pipelines.toy import toy_ende
from pipelines.vocabulary import EOS, Vocabulary
from t2t_repro.scoring import bleu

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
LONG, BROKEN = 5, 8  # numbers, from 1, of the lines that cause a note on stderr


def command(name, *flags, stdin=b"", **variables):
    """Run a command and return (stdout, stderr), which must be free of TensorFlow's messages."""
    done = commands.python("-m", f"t2t_repro.{name}", *flags, stdin=stdin, **variables)
    return done.stdout, without_noise(done.stderr.decode())


def without_noise(stderr):
    noise = ["oneDNN", "cuda", "E0000", "WARNING", "Warning", "Traceback"]
    assert not [word for word in noise if word in stderr], stderr
    return stderr


def files(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def translated(tiny_run):
    """Return (stdout, stderr) of `translate --workdir` on LINES, without a final line feed."""
    return command("translate", f"--workdir={tiny_run}", stdin=b"\n".join(LINES))


@pytest.fixture(scope="module")
def moved_export(tiny_run, tmp_path_factory):
    """Return an export that was moved after its run was deleted."""
    directory = tmp_path_factory.mktemp("export")
    run, export, moved = (directory / name for name in ("run", "made/here", "moved"))
    shutil.copytree(tiny_run, run)
    stdout, _ = command("export", f"--workdir={run}", f"--export_dir={export}")
    assert stdout.decode() == f"{export / '1'}\n"
    shutil.rmtree(run)
    export.rename(moved)
    return moved


# Train


def test_train_says_what_it_does(tiny_run):
    stderr = without_noise((tiny_run.parent / "stderr").read_text(encoding="utf-8"))
    assert "step 500: dev/perplexity" in stderr
    assert "FLOPs by count" in stderr
    assert f"python -m t2t_repro.evaluate --workdir={tiny_run}" in stderr


def test_work_directory(tiny_run):
    names = files(tiny_run)
    events = [name for name in names if name.startswith("events.out.tfevents.")]
    assert len(events) == 1
    steps = [f"step-{step}" for step in (490, 500)]
    parts = [part for step in steps for part in (f"{step}.index", f"{step}.data-00000-of-00001")]
    shard = [f"shard-00000.{part}" for part in ("ids.npy", "lengths.npy", "json")]
    (train,) = (path.name for path in tiny_run.glob("prepared/train-*"))
    assert set(names) - set(events) == {
        ".lock",
        "config.yaml",
        "vocabulary.model",
        "vocabulary.vocab",
        *(f"checkpoints/{name}" for name in ["checkpoint", "dev_scores.json", *parts]),
        "corpus.json",
        "results.json",
        *(f"prepared/{split}/{name}" for split in (train, "dev") for name in shard),
        *(f"prepared/{split}/manifest.json" for split in (train, "dev")),
    }
    config = yaml.safe_load((tiny_run / "config.yaml").read_text())
    given = {"problem": "toy_ende", "d_model": 48, "vocabulary_size": 500, "eval_sentences": 0}
    assert given.items() <= config.items()
    assert config["beta_2"] == 0.98  # settings that were not given are saved too
    manifest = json.loads((tiny_run / f"prepared/{train}/manifest.json").read_text())
    expected = manifest["target_tokens"] / manifest["source_tokens"]
    assert config["length_ratio"] == pytest.approx(expected, abs=5e-4)


def test_cost_of_training_is_kept(tiny_run):
    (name, cost), *others = json.loads((tiny_run / "results.json").read_text()).items()
    assert (name, others) == ("cost", [])
    assert cost["device"] == "CPU"
    assert cost["target_positions"] > 500 * 9
    assert cost["flops"] > 6 * 500 * 48 * cost["target_positions"]  # the output matrix alone
    assert cost["formula_flops"] is None
    assert 0.1 < cost["seconds"] < 600


@pytest.mark.slow
def test_a_complete_run_stays_as_it_is_and_goes_on_when_asked(tiny_run, tmp_path, capfd):
    """Both calls run in this process; test_loop.py resumes a killed run in child processes."""
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    before = files(run)
    del before[".lock"]  # names the last process that trained here
    assert commands.call("train", f"--workdir={run}", "--d_model=48", "--train_steps=500") == 0
    assert "step 500 is done already" in capfd.readouterr().err
    assert before.items() <= files(run).items()
    assert files(run).keys() - before.keys() == {".lock"}

    assert commands.call("train", f"--workdir={run}", "--train_steps=510") == 0
    assert "resuming from step 500 of 510" in capfd.readouterr().err
    after = files(run)
    assert "checkpoints/step-510.index" in after
    changed = {"checkpoint", "dev_scores.json"}
    kept = set(before) - {f"checkpoints/{name}" for name in changed}
    kept -= {"config.yaml", "results.json"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


# Evaluate


def test_evaluate(tiny_run, tmp_path, capfd):
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    flags = (f"--workdir={run}", "--json", "--beam_size=1")  # greedy saves time
    assert commands.call("evaluate", *flags) == 0
    test, stderr = capfd.readouterr()
    assert "mean of the last 2 checkpoints" in stderr
    assert commands.call("evaluate", *flags, "--split=dev", "--average_last=1") == 0
    dev, stderr = capfd.readouterr()
    assert "mean of the last 1 checkpoints" in stderr

    scores = {"test": json.loads(test), "dev": json.loads(dev)}
    keys = {"sacrebleu", "sacrebleu_signature", "paper_bleu", "chrf", "perplexity", "lines"}
    assert all(keys <= set(of_split) for of_split in scores.values())
    assert scores["test"]["lines"] == scores["dev"]["lines"] == 500
    assert scores["test"]["checkpoints"].split()[1:] == [scores["dev"]["checkpoints"]]
    assert "--beam_size=1 --alpha=0.6" in scores["test"]["search"]
    assert 1 < scores["test"]["perplexity"] < 500  # 500, the vocabulary's size, is chance
    assert scores["test"]["perplexity"] != scores["dev"]["perplexity"]
    cost = json.loads((tiny_run / "results.json").read_text())
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
    given = (f"--{name}={tmp_path / name}" for name in ("hypotheses", "references"))
    done = commands.python("-c", start, "--problem=toy_ende", *given, "--json")
    scores = json.loads(done.stdout)
    assert scores == bleu.translation_scores(hypotheses, references, language="de")
    assert 0 < scores["sacrebleu"] < 100


# Translate


@pytest.mark.slow
def test_one_output_line_for_every_input_line(translated):
    stdout, stderr = translated
    translations = stdout.decode().split("\n")
    assert translations.pop() == ""
    assert len(translations) == len(LINES)
    assert [not line for line in translations] == [not line.strip() for line in LINES]
    assert len(set(translations)) > 4  # enough to reveal the order
    notes = [line for line in stderr.splitlines() if line.startswith("line ")]
    assert sorted(note.split(":")[0] for note in notes) == [f"line {LONG}", f"line {BROKEN}"]
    assert "not UTF-8" in stderr


def test_empty_stdin_gives_empty_stdout(tiny_run, capfd):
    assert commands.call("translate", f"--workdir={tiny_run}") == 0
    assert capfd.readouterr().out == ""


@pytest.mark.slow
def test_an_export_translates_like_its_run(moved_export, translated):
    stdout, stderr = command(
        "translate",
        f"--saved_model={moved_export}",
        stdin=b"\n".join(LINES) + b"\n",
        PYTHONIOENCODING="latin-1",  # an old locale's encoding; text is UTF-8 regardless
    )
    assert stdout == translated[0]
    assert f"line {BROKEN}: not UTF-8" in stderr
    assert f"line {LONG}: too long" in stderr


# Export

LOAD = """
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


@pytest.mark.slow
def test_layout_for_tensorflow_serving(moved_export):
    assert {"saved_model.pb", "variables", "assets"} <= set(os.listdir(moved_export / "1"))
    variables = ["variables.data-00000-of-00001", "variables.index"]
    assert sorted(os.listdir(moved_export / "1" / "variables")) == variables
    assert os.listdir(moved_export) == ["1"]


@pytest.mark.slow
def test_an_export_needs_neither_its_run_nor_this_code(moved_export, translated, tiny_run):
    """The translation of a line does not depend on its neighbours either."""
    expected = translated[0].decode().split("\n")[:-1]
    lines = [line.decode(errors="replace") for line in LINES]
    vocabulary = Vocabulary.load(tiny_run)
    (ids,) = vocabulary.encode(lines[:1])
    stdin = json.dumps([lines, [ids, [EOS] + [0] * (len(ids) - 1)]])
    program = clean_process.ALONE + LOAD
    outputs = json.loads(clean_process.output_of("-c", program, moved_export / "1", stdin=stdin))
    assert outputs["alone"] == expected
    assert outputs["by three"] == expected
    assert vocabulary.decode(outputs["ids"])[0] == expected[0]


@pytest.mark.slow
def test_the_program_that_replays_a_skipped_step(tiny_run, tmp_path):
    """docs/commands.md, "Replaying a skipped step", on a batch as training keeps it."""
    run = shutil.copytree(tiny_run, tmp_path / "run")
    before = files(run)
    sentences = ["The boy did not follow the woman.", "The house is old."]
    rows = Vocabulary.load(run).encode(sentences)
    ids = np.zeros((2, max(map(len, rows))), np.int32)
    for row, found in zip(ids, rows, strict=True):
        row[: len(found)] = found
    (run / "nonfinite").mkdir()
    np.savez(run / "nonfinite/step-2.npz", source=ids, target=ids)
    _, _, after = (ROOT / "docs/commands.md").read_text().partition("### Replaying a skipped step")
    program = after.partition("```python\n")[2].partition("```")[0]
    program = program.replace("runs/toy_ende", str(run))
    *shown, last = commands.python("-c", program).stdout.decode().splitlines()
    assert shown == sentences
    assert 0 < float(last.removeprefix("gradient norm ")) < 1000
    assert before.items() <= files(run).items()
