"""Runs of several worker processes give the result of one process, also after stops and kills."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT
from ports import free_addresses
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipelines.errors import BadInput
from pipelines.toy import toy_ende
from t2t_repro import cli, experiment, launch, train
from t2t_repro import config as configs
from t2t_repro.distributed.cluster import Agreement, Cluster, WorkerGone
from t2t_repro.distributed.strategy import _workers_from_slurm, default_strategy
from t2t_repro.training import dev_scores, loop
from t2t_repro.training.checkpoint_files import CheckpointFiles
from t2t_repro.workdir import Workdir

HIDDEN = ("TF_CPP_MIN_LOG_LEVEL", "TF_CONFIG", "SLURM_STEP_NUM_TASKS")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in HIDDEN}
STOPPED = "stopped; the state is saved, the same command resumes from it"
SIZE = [
    *("--num_layers=1", "--d_model=8", "--d_ff=16", "--num_heads=2", "--d_k=4", "--d_v=4"),
    *("--vocabulary_size=400", "--embedding_rows=none", "--held_out_share=0.1", "--beam_size=1"),
    *("--tokens_per_batch=512", "--max_extra_length=2", "--eval_sentences=4", "--log_steps=1"),
    # A large epsilon: with the paper's, Adam's first update depends on the gradient's sign only, so
    # a gradient that is only rounding error moves its weight as far as any other.
    *("--dropout=0", "--warmup_steps=4", "--epsilon=0.01"),
]


@pytest.fixture(scope="module")
def tsv(tmp_path_factory):
    """Write 300 pairs to a file."""
    file = tmp_path_factory.mktemp("text") / "pairs.tsv"
    pairs = islice(toy_ende.examples("train"), 300)
    lines = (f"{pair['source']}\t{pair['target']}\n" for pair in pairs)
    file.write_text("".join(lines), encoding="utf-8")
    return file


def cluster_of(count):
    """Return TF_CONFIG's jobs, with addresses at free ports of this machine."""
    return {"worker": free_addresses(count)}


class Job:
    """Running workers, the chief first; a single one has no TF_CONFIG. Output goes to files."""

    def __init__(self, logs, cluster, *arguments):
        tasks = [(job, index) for job in sorted(cluster) for index in range(len(cluster[job]))]
        logs.mkdir(exist_ok=True)
        self.logs = [logs / f"{number}" for number in range(len(tasks) or 1)]
        self.processes = []
        for log, (job, index) in zip(self.logs, tasks or [("", 0)], strict=True):
            setting = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
            environment = ENVIRONMENT | ({"TF_CONFIG": setting} if tasks else {})
            with log.open("w") as file:
                process = subprocess.Popen(
                    [sys.executable, *map(str, arguments)],
                    stdout=file,
                    stderr=file,
                    cwd=ROOT,
                    env=environment,
                )
            self.processes.append(process)

    def said(self, number=0):
        """Return the lines that a worker printed."""
        return self.logs[number].read_text(encoding="utf-8").splitlines()

    def wait_until(self, condition):
        deadline = time.monotonic() + 400
        while not condition():
            if time.monotonic() > deadline or any(p.poll() is not None for p in self.processes):
                self.end(within=0)
                pytest.fail(self.everything)
            time.sleep(0.02)

    @property
    def everything(self):
        return "\n".join(f"{log.name}: {log.read_text(encoding='utf-8')}" for log in self.logs)

    def end(self, within=400):
        """Wait for all workers and return their exit statuses."""
        deadline = time.monotonic() + within
        try:
            return [p.wait(max(0.1, deadline - time.monotonic())) for p in self.processes]
        except subprocess.TimeoutExpired:
            pytest.fail(f"still there after {within} s: {self.everything}")
        finally:
            for process in self.processes:
                process.kill()
                process.wait()


def train_job(workdir, cluster, tsv, *flags):
    command = ["-m", "t2t_repro.train", "--problem=parallel_text", f"--workdir={workdir}"]
    return Job(workdir.parent / "logs", cluster, *command, f"--tsv_files={tsv}", *SIZE, *flags)


def events(workdir, tag):
    accumulator = EventAccumulator(str(workdir))
    accumulator.Reload()
    return {e.step: float(tf.make_ndarray(e.tensor_proto)) for e in accumulator.Tensors(tag)}


def saved_steps(workdir):
    return sorted(int(path.stem[5:]) for path in workdir.glob("checkpoints/step-*.index"))


def state(workdir):
    """Return all values of the newest checkpoint except its number and times."""
    reader = tf.train.load_checkpoint(str(workdir / "checkpoints"))
    names = [name for name in reader.get_variable_to_shape_map() if ".ATTRIBUTES/V" in name]
    return {
        name: reader.get_tensor(name)
        for name in names
        if not name.startswith(("save_counter", "seconds"))
    }


# The same run with 1, 2 and 3 workers


@pytest.fixture(scope="module")
def runs(tsv, tmp_path_factory):
    """Return (work directory, job) of the same 8 steps with 1, 2 and 3 workers."""
    done = {}
    for count in (1, 2, 3):
        workdir = tmp_path_factory.mktemp(f"by{count}") / "run"
        cluster = cluster_of(count) if count > 1 else {}
        job = train_job(workdir, cluster, tsv, "--train_steps=8", "--checkpoint_steps=4")
        assert job.end() == [0] * count, job.everything
        done[count] = workdir, job
    return done


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.slow
def test_losses_are_those_of_one_process(runs, count):
    (one, _), (several, _) = runs[1], runs[count]
    losses = events(one, "train/loss")
    assert list(losses) == list(range(1, 9))
    assert losses[8] < losses[1] - 0.1  # the loss falls, so the comparison means something
    assert events(several, "train/loss") == pytest.approx(losses, rel=1e-4)
    perplexities = events(one, "dev/perplexity")
    assert list(perplexities) == [4, 8]
    assert events(several, "dev/perplexity") == pytest.approx(perplexities, rel=1e-4)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.slow
def test_state_is_that_of_one_process(runs, count):
    (one, _), (several, _) = runs[1], runs[count]
    expected, got = state(one), state(several)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.slow
def test_every_file_is_written_once(runs, count):
    """The files are those of a single process: one events file, one set of checkpoints."""

    def names(workdir):
        paths = [path.relative_to(workdir) for path in workdir.rglob("*")]
        return sorted(re.sub(r"events\.out\..*", "events", str(path)) for path in paths)

    (one, _), (several, _) = runs[1], runs[count]
    assert names(several) == names(one)
    assert saved_steps(several) == [4, 8]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.slow
def test_only_the_chief_speaks(runs, count):
    _, job = runs[count]
    assert job.said()[-1].startswith("trained; now: ")
    assert sum("dev/perplexity" in line or "dev perplexity" in line for line in job.said()) <= 2
    for number in range(1, count):
        (line,) = job.said(number)
        assert re.fullmatch(rf"worker {number} at \S+ waits for all {count} workers", line)


@pytest.mark.slow
def test_one_process_takes_the_run_over(runs, tmp_path):
    workdir, _ = runs[2]
    restored = experiment.restore(Workdir(workdir), {"average_last": 1})
    weights = state(workdir)
    for variable in restored.model.trainable_variables:
        escaped = variable.path.replace("/", ".S")
        saved = weights[f"weights/{escaped}/.ATTRIBUTES/VARIABLE_VALUE"]
        np.testing.assert_array_equal(variable.numpy(), saved)


class Listener:
    """A fake Cluster: this is worker 1 of 2, and the chief always shares the same numbers."""

    size, index, is_chief, names = 2, 1, False, ("worker 0 (a:1)", "worker 1 (b:1)")

    def __init__(self, strategy):
        pass

    def share(self, *mine):
        return tf.constant([[int(number) for number in mine]] * 2, tf.int64)

    def by_chief(self, action):
        return None

    def wait(self):
        pass


@pytest.mark.slow
def test_who_is_not_the_chief_writes_nothing(runs, tmp_path, monkeypatch, capfd):
    """It also leaves the chief's files unchanged, which a list of file names would not show."""
    workdir = Path(shutil.copytree(runs[1][0], tmp_path / "run"))
    before = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()}
    for module in (experiment, loop, dev_scores):
        monkeypatch.setattr(module, "Cluster", Listener)
    changes = {"train_steps": 12, "checkpoint_steps": 2}
    config = configs.override(Workdir(workdir).config(), changes)
    experiment.make_loop(experiment.build(config, Workdir(workdir), default_strategy())).run()
    assert {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file()} == before
    assert capfd.readouterr().err == ""


# Which data each replica gets, and what the workers share

PROBE = """
import json, sys
import numpy as np
from pipelines.errors import BadInput
from t2t_repro.distributed.cluster import Cluster
from t2t_repro.distributed.strategy import default_strategy

strategy = default_strategy()
import tensorflow as tf
from t2t_repro.training.rows import own_rows

cluster = Cluster(strategy)
batches = [np.arange(rows * 2).reshape(rows, 2) + 100 * rows for rows in (1, 2, 7)]
rows = tf.function(lambda batch: strategy.run(own_rows, [batch, strategy.num_replicas_in_sync]))
seen = [row for batch in batches for row in rows(tf.constant(batch)).numpy().tolist()]
found = {"index": cluster.index, "names": cluster.names, "rows": seen}
found["shared"] = cluster.share(cluster.index, 2**40 + cluster.index).numpy().tolist()
found["by chief"] = cluster.by_chief(lambda: f"of {cluster.index}")

def fail():
    raise BadInput("the chief's own")

try:
    cluster.by_chief(fail)
except BadInput as error:
    found["failure"] = str(error)
cluster.wait()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return what a chief and two workers found, by index; TF_CONFIG is as Kubernetes writes it."""
    first, *others = cluster_of(3)["worker"]
    cluster = {"worker": others, "chief": [first]}
    job = Job(tmp_path_factory.mktemp("probe"), cluster, "-c", PROBE)
    assert job.end() == [0] * 3, job.everything
    results = [json.loads(job.said(number)[-1]) for number in range(3)]
    assert [result["index"] for result in results] == [0, 1, 2]
    names = [f"chief 0 ({first})", *(f"worker {n} ({other})" for n, other in enumerate(others))]
    assert [result["names"] for result in results] == [names] * 3
    return results


@pytest.mark.slow
def test_every_row_is_given_to_one_replica(found):
    rows = sorted(row for result in found for row in result["rows"])
    batches = [np.arange(count * 2).reshape(count, 2) + 100 * count for count in (1, 2, 7)]
    assert rows == sorted(row for batch in batches for row in batch.tolist())
    assert [len(result["rows"]) for result in found] == [5, 3, 2]


@pytest.mark.slow
def test_workers_tell_each_other_numbers(found):
    everybody = [[index, 2**40 + index] for index in range(3)]
    assert [result["shared"] for result in found] == [everybody] * 3


@pytest.mark.slow
def test_chief_acts_and_the_others_learn_that_it_failed(found):
    assert [result["by chief"] for result in found] == ["of 0", None, None]
    chief, *others = [result["failure"] for result in found]
    assert chief == "the chief's own"
    assert all(re.match(r"chief 0 \(.*\) failed; its messages", each) for each in others)


# Stopped and killed


@pytest.fixture(scope="module")
def story(tsv, tmp_path_factory):
    """Return the story of a run of two workers: {event: (statuses, lines of each worker)}.

    In the first start worker 1 is killed, in the second the chief. In the third worker 1 alone gets
    the signal to stop. Before the fourth, which is stopped too, the newest checkpoint is cut short.
    `steps` are the newest checkpoints after each start, beginning with 0.
    """
    workdir, cluster = tmp_path_factory.mktemp("story") / "run", cluster_of(2)
    story = {"steps": [0], "workdir": workdir}
    endless = "--train_steps=1000000", "--checkpoint_steps=2", "--keep_checkpoints=3"

    def begun():
        before = story["steps"][-1]
        return any(step >= before + 4 for step in saved_steps(workdir))

    for what, number, sign in (
        ("worker killed", 1, signal.SIGKILL),
        ("chief killed", 0, signal.SIGKILL),
        ("stopped", 1, signal.SIGTERM),
        ("damaged", 1, signal.SIGTERM),
    ):
        if what == "damaged":
            path = workdir / "checkpoints" / f"step-{story['steps'][-1]}.data-00000-of-00001"
            os.truncate(path, path.stat().st_size // 2)
        job = train_job(workdir, cluster, tsv, *endless)
        job.wait_until(begun)
        job.processes[number].send_signal(sign)
        story[what] = job.end(within=240), [job.said(0), job.said(1)]
        story["steps"].append(CheckpointFiles(workdir / "checkpoints").last_step)
    return story


@pytest.mark.parametrize(
    ("what", "survivor", "gone"),
    [("worker killed", 0, "worker 1"), ("chief killed", 1, "worker 0")],
)
@pytest.mark.slow
def test_the_others_end_when_one_is_killed(story, what, survivor, gone):
    statuses, said = story[what]
    assert statuses[survivor] == 1
    assert statuses[1 - survivor] == -signal.SIGKILL
    lines = said[survivor]
    step = story["steps"][1 if what == "worker killed" else 2]
    assert re.fullmatch(
        rf"{gone} \(127.0.0.1:\d+\) is gone or cannot be reached; the messages of the other "
        rf"workers may say why. Start all workers again with the same command, to resume from step "
        rf"{step:,}",
        lines[-1],
    )
    assert not any("Traceback" in line or "rror" in line for line in lines)
    if survivor == 1:
        assert len(lines) == 2  # the line about waiting, and this one


@pytest.mark.slow
def test_no_checkpoint_is_torn(story):
    """Each start resumed from the newest checkpoint of the start before."""
    for what, step in zip(["chief killed", "stopped"], story["steps"][1:], strict=False):
        _, (chief, _) = story[what]
        assert any(f"resuming from step {step} of" in line for line in chief), chief


@pytest.mark.slow
def test_asking_one_worker_to_stop_stops_all_with_a_checkpoint(story):
    statuses, said = story["stopped"]
    assert statuses == [1, 1], said
    assert [lines[-1] for lines in said] == [STOPPED] * 2
    assert not any("Traceback" in line for lines in said for line in lines)


@pytest.mark.slow
def test_all_fall_back_to_the_same_checkpoint_and_the_chief_says_so(story):
    statuses, (chief, other) = story["damaged"]
    assert statuses == [1, 1], chief + other
    (warning,) = [line for line in chief if line.startswith("warning: ")]
    assert f"step-{story['steps'][3]}: damaged (" in warning
    good = re.search(r"used instead: step-(\d+)$", warning)
    assert any(f"resuming from step {good[1]} of" in line for line in chief)
    assert not any("damaged" in line for line in other)


@pytest.mark.slow
def test_after_all_that_the_state_is_that_of_an_uninterrupted_run(story, tsv, tmp_path):
    steps = f"--train_steps={story['steps'][-1]}"
    job = train_job(tmp_path / "run", {}, tsv, steps, "--checkpoint_steps=1000000")
    assert job.end() == [0], job.everything
    expected, got = state(tmp_path / "run"), state(story["workdir"])
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-2, atol=1e-3, err_msg=name)


@pytest.mark.slow
def test_a_chief_that_cannot_begin_ends_all(tmp_path):
    job = train_job(tmp_path / "run", cluster_of(2), tmp_path / "absent")
    assert job.end(within=240) == [2, 2], job.everything
    (_, chief), (_, other) = job.said(0), job.said(1)
    assert re.match(r"error: .*absent: no such file", chief)
    assert re.fullmatch(r"error: worker 0 \(\S+\) failed; its messages say why", other)


# Streams, of which each worker reads a part


@pytest.fixture(scope="module")
def stream_flags(tsv):
    dev = [
        f"--{split}_{side}_files={tsv}"
        for split in ("dev", "test")
        for side in ("source", "target")
    ]
    return ["--stream", "--held_out_share=0", "--checkpoint_steps=5", *dev]


@pytest.fixture(scope="module")
def streamed(tsv, stream_flags, tmp_path_factory):
    """Return the work directory of a run of 15 updates of two workers on a stream."""
    workdir = tmp_path_factory.mktemp("streamed") / "run"
    job = train_job(workdir, cluster_of(2), tsv, *stream_flags, "--train_steps=15")
    assert job.end() == [0, 0], job.everything
    return workdir


@pytest.mark.slow
def test_a_resumed_stream_of_two_workers_ends_like_an_uninterrupted_one(
    streamed, tsv, stream_flags, tmp_path
):
    """Its newest checkpoint lacks half of worker 1's place, so both fall back to the one before."""
    workdir = Path(shutil.copytree(streamed, tmp_path / "run"))
    files = CheckpointFiles(workdir / "checkpoints")
    files.record([5, 10])
    files.remove(15)
    path = workdir / "checkpoints/step-10.worker-1.data-00000-of-00001"
    os.truncate(path, path.stat().st_size // 2)
    job = train_job(workdir, cluster_of(2), tsv, *stream_flags, "--train_steps=15")
    assert job.end() == [0, 0], job.everything
    assert any(re.search(r"step-10: damaged \(.*used instead: step-5$", s) for s in job.said())
    expected, got = state(streamed), state(workdir)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.slow
def test_the_workers_of_a_stream_read_different_parts(streamed):
    """Each sees about half of the tokens, and the loss falls."""
    chief = tf.train.load_checkpoint(str(streamed / "checkpoints/step-15"))
    other = tf.train.load_checkpoint(str(streamed / "checkpoints/step-15.worker-1"))
    name = "stream/positions/.ATTRIBUTES/VARIABLE_VALUE"
    mine, others = chief.get_tensor(name), other.get_tensor(name)
    assert (mine != others).any()
    assert mine[1] == pytest.approx(others[1], rel=0.4)
    first, *_, last = events(streamed, "train/loss").values()
    assert last < first - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_a_stream_is_not_resumed_by_another_number_of_workers(
    streamed, tsv, stream_flags, tmp_path, count
):
    workdir = Path(shutil.copytree(streamed, tmp_path / "run"))
    cluster = cluster_of(count) if count > 1 else {}
    job = train_job(workdir, cluster, tsv, *stream_flags, "--train_steps=20")
    assert set(job.end()) == {2}, job.everything
    expected = (
        f"was read by 2 processes, each at a place of its own, and there are {count}; start 2"
    )
    assert expected in job.said()[-1]


# What can be tested in one process


class Others(Listener):
    """A Listener whose chief shares the given numbers."""

    def __init__(self, *chief):
        self.chief = list(chief)

    def share(self, *mine):
        return tf.constant([self.chief.pop(0), [int(number) for number in mine]], tf.int64)


def test_requests_hold_for_all_one_call_later():
    agreed = Agreement(Others([0, 0], [1, 0], [0, 0], [0, 1], [0, 0]))
    assert list(agreed(False, False)) == [False, False]
    assert list(agreed(False, True)) == [False, False]
    assert list(agreed(False, False)) == [True, True]
    assert list(agreed(False, False)) == [False, False]
    agreed.forget()
    assert list(agreed(False, False)) == [False, False]


def test_a_process_alone_decides_at_once():
    cluster = Cluster(tf.distribute.OneDeviceStrategy("/cpu:0"))
    assert (cluster.size, cluster.index, cluster.is_chief) == (1, 0, True)
    assert Agreement(cluster)(True, False) == (True, False)
    assert cluster.by_chief(lambda: 3) == 3
    assert cluster.share(4, 5).numpy().tolist() == [[4, 5]]
    with pytest.raises(tf.errors.UnavailableError), cluster.watched():
        raise tf.errors.UnavailableError(None, None, "collective")


def test_what_other_workers_did_not_cause_stays_an_error():
    cluster = Cluster(tf.distribute.OneDeviceStrategy("/cpu:0"))
    cluster.names = ["worker 0 (a:1)", "worker 1 (b:1)"]
    with pytest.raises(tf.errors.InternalError), cluster.watched():
        raise tf.errors.InternalError(None, None, "cuBLAS failed")
    with pytest.raises(WorkerGone, match=r"^worker 1 \(b:1\) is gone"), cluster.watched():
        raise tf.errors.InternalError(None, None, "/job:worker/task:0: lost /job:worker/task:1")
    with pytest.raises(WorkerGone, match="another worker is gone"), cluster.watched():
        raise tf.errors.AbortedError(None, None, "Collective ops is aborted")


@pytest.fixture
def settled(tmp_path):
    """Return a work directory with the configuration that a chief has written."""
    config = configs.resolve("toy_ende", overrides={"train_steps": 7})
    configs.save(config, tmp_path / "config.yaml")
    return tmp_path


def test_a_work_directory_of_ones_own_is_found_out(settled, monkeypatch):
    monkeypatch.setattr(launch, "_VISIBLE_AFTER", 0.0)
    with pytest.raises(BadInput, match="must be one directory that all hosts share"):
        launch.agree_on_config(None, None, Workdir(settled), {}, Others([1]))


def test_workers_with_different_flags_are_found_out(settled):
    chief = [launch._checksum(settled / "config.yaml")]
    given = {"train_steps": 7}
    config = launch.agree_on_config(None, None, Workdir(settled), given, Others(chief))
    assert config.train.train_steps == 7
    with pytest.raises(BadInput, match=r"^train_steps: another value than worker 0 \(a:1\)"):
        launch.agree_on_config(None, None, Workdir(settled), {"train_steps": 8}, Others(chief))


TWO = {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{", r"TF_CONFIG: not JSON \(.*\); wanted"),
        ("[1]", "TF_CONFIG: not a JSON object; wanted"),
        ({"cluster": TWO}, "its task needs a type and an index"),
        ({"cluster": TWO, "task": {"type": ["worker"], "index": 0}}, "needs a type and an index"),
        ({"cluster": TWO, "task": {"type": "worker"}}, "its task needs a type and an index"),
        ({"cluster": TWO, "task": {"type": "worker", "index": -1}}, "needs a type and an index"),
        ({"cluster": TWO, "task": {"type": "worker", "index": "x"}}, "needs a type and an index"),
        (
            {"cluster": TWO, "task": {"type": "worker", "index": 2}},
            "its task is worker 2, but its cluster only has worker 0 to 1",
        ),
        ({"cluster": TWO, "task": {"type": "chief", "index": 0}}, "cluster has no such job"),
        (
            {"cluster": {"worker": []}, "task": {}},
            "its cluster does not map jobs to lists of host:port",
        ),
        (
            {"cluster": {"worker": ["a", "b:1"]}, "task": {}},
            "does not map jobs to lists of host:port",
        ),
        ({"cluster": ["a:1"], "task": {}}, "its cluster does not map jobs to lists of host:port"),
        (
            {"cluster": TWO, "task": {"type": "evaluator", "index": 0}},
            "a job 'evaluator' is not supported; start a chief and workers only",
        ),
        (
            {"cluster": TWO | {"ps": ["c:1"]}, "task": {"type": "worker", "index": 0}},
            "a job 'ps' is not supported",
        ),
        (
            {"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}},
            "its cluster has two chiefs",
        ),
        (
            {"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}},
            "its cluster has a:1 twice",
        ),
    ],
)
def test_damaged_tf_config(monkeypatch, value, expected):
    text = value if isinstance(value, str) else json.dumps(value)
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(BadInput, match=expected) as error:
        default_strategy()
    assert "\n" not in str(error.value)


def test_damaged_tf_config_ends_the_command_with_status_2(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("TF_CONFIG", "{")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setattr(sys, "argv", ["train", f"--workdir={tmp_path / 'run'}"])
    with pytest.raises(SystemExit) as end:
        cli.run(train.main)
    assert end.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: TF_CONFIG: not JSON")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{}",
        '{"environment": "cloud"}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": "0"}}',
    ],
)
def test_tf_config_of_one_process(monkeypatch, value):
    monkeypatch.setenv("TF_CONFIG", value)
    assert not isinstance(default_strategy(), tf.distribute.MultiWorkerMirroredStrategy)


def slurm(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


def test_slurm_names_the_workers(monkeypatch):
    """4 hosts with one task each; node10 comes after node9, as in the order of ranks."""
    nodes = {"STEP_NODELIST": "node[8-11]", "STEP_TASKS_PER_NODE": "1(x4)", "JOB_ID": "1234567"}
    slurm(monkeypatch, STEP_NUM_TASKS="4", PROCID="2", **nodes)
    monkeypatch.setenv("SLURMD_NODENAME", "node10")
    hosts = [f"node{number}:24567" for number in (8, 9, 10, 11)]
    assert _workers_from_slurm() == ({"worker": hosts}, "worker", 2)


def test_slurm_tasks_of_one_host_have_ports_of_their_own(monkeypatch):
    nodes = {"STEP_NODELIST": "a,b", "STEP_TASKS_PER_NODE": "2,1", "JOB_ID": "7"}
    slurm(monkeypatch, STEP_NUM_TASKS="3", PROCID="1", **nodes)
    assert _workers_from_slurm() == ({"worker": ["a:20007", "a:20008", "b:20007"]}, "worker", 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "SLURM_PROCID not found"),
        ({"PROCID": "0"}, "start them with srun, or set TF_CONFIG"),
        (
            {"PROCID": "0", "STEP_NODELIST": "a[1-2]", "STEP_TASKS_PER_NODE": "1"},
            "start them with srun, or set TF_CONFIG",
        ),
    ],
)
def test_incomplete_slurm_variables(monkeypatch, values, expected):
    slurm(monkeypatch, STEP_NUM_TASKS="2", **values)
    with pytest.raises(BadInput, match=expected):
        default_strategy()


def test_slurm_hosts_in_another_order_are_found_out(monkeypatch):
    nodes = {"STEP_NODELIST": "a,b", "STEP_TASKS_PER_NODE": "1(x2)", "JOB_ID": "7"}
    slurm(monkeypatch, STEP_NUM_TASKS="2", PROCID="0", **nodes)
    monkeypatch.setenv("SLURMD_NODENAME", "b")
    with pytest.raises(BadInput, match="task 0 runs on b, not on a; set TF_CONFIG"):
        _workers_from_slurm()


def test_a_batch_script_itself_is_one_process(monkeypatch):
    slurm(monkeypatch, JOB_ID="7", NTASKS="4", PROCID="0")
    assert not isinstance(default_strategy(), tf.distribute.MultiWorkerMirroredStrategy)
