"""A model that trains in seconds, its generated text, and the commands that the attacks start."""

import contextlib
import os
import random
import subprocess
import sys
from itertools import islice

from paths import ROOT
from torture.report import wanted

from pipelines.toy import toy_ende

SIZE = (
    *("--problem=parallel_text", "--num_layers=1", "--d_model=16", "--d_ff=32", "--num_heads=2"),
    *("--d_k=8", "--d_v=8", "--embedding_rows=none", "--vocabulary_size=400"),
    *("--tokens_per_batch=512", "--held_out_share=0.05", "--warmup_steps=20"),
    *("--beam_size=2", "--max_extra_length=5", "--average_last=3"),
)
# The longest that a command may take, in seconds; it takes 5 to 20 alone on a core.
PATIENCE = 240.0

# One thread for each command: sums are rounded in one order, so that two runs are equal bit by bit.
_THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
_HIDDEN = ("TF_CPP_MIN_LOG_LEVEL", "TF_CONFIG", "SLURM_STEP_NUM_TASKS")


# A short training that saves often.
STEPS = (
    *("--train_steps=12", "--checkpoint_steps=2", "--keep_checkpoints=3", "--log_steps=1"),
    *("--eval_sentences=2", "--eval_share=1e-9"),
)


def workdir(folder):
    """Return the flag for the run in a folder."""
    return f"--workdir={folder / 'run'}"


def write_pairs(file, count):
    """Write `count` generated pairs to a TSV file, the first 2,000 of them again and again."""
    pairs = [f"{english}\t{german}\n" for english, german in islice(_pairs(), min(count, 2000))]
    file.write_text("".join(pairs[number % len(pairs)] for number in range(count)), "utf-8")
    return file


def sentences(count):
    """Return `count` distinct English sentences of 3 to 60 words."""
    rng, pairs, found = random.Random(1), _pairs(), {}
    while len(found) < count:
        parts = [english for english, _ in islice(pairs, rng.choice((1, 1, 1, 2, 3)))]
        found[" ".join(parts)] = None
    return list(found)


def _pairs():
    rng = random.Random(toy_ende.SEED)
    while True:
        pair = toy_ende.sentence(rng)
        yield pair.english, pair.german


def python(*arguments, before=(), stdin=subprocess.DEVNULL, **streams):
    """Start Python in a session of its own, on one thread, with a command such as `nice` before."""
    kept = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    return subprocess.Popen(
        [*before, sys.executable, *map(str, arguments)],
        stdin=stdin,
        cwd=ROOT,
        env=kept | _THREADS,
        start_new_session=True,
        **streams,
    )


def command(name, *flags, **streams):
    """Start `python -m t2t_repro.NAME`; `streams` are those of `python`."""
    return python("-m", f"t2t_repro.{name}", *flags, **streams)


@contextlib.contextmanager
def ended(process):
    """Yield a process that is killed at the end if it still runs."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def call(name, *flags, content=b"", stdout=subprocess.PIPE, before=()):
    """Run a command with `content` as its input; return (exit status, stdout, stderr)."""
    streams = {"stdin": subprocess.PIPE, "stdout": stdout, "stderr": subprocess.PIPE}
    with ended(command(name, *flags, before=before, **streams)) as process:
        output, errors = process.communicate(content, PATIENCE)
    return process.returncode, (output or b"").decode(), errors.decode()


def succeed(name, *flags, **streams):
    """Run a command that has to end with status 0, and return its stderr."""
    status, _, errors = call(name, *flags, **streams)
    wanted(status == 0, f"{name}: status {status}: {errors[-300:]}")
    return errors


def check_refusal(errors, *named):
    """Raise Broken unless the last line of stderr is the error, is short, and has the names."""
    line = errors.rstrip("\n").splitlines()[-1:]
    said = line[0] if line else "nothing"
    wanted("Traceback" not in errors, f"a traceback: {said}")
    wanted(said.startswith("error: "), f"its last line is no error: {said[:300]}")
    wanted(len(said) <= 500, f"an error of {len(said)} characters: {said[:100]}")
    missing = [str(name) for name in named if str(name) not in said]
    wanted(not missing, f"the error does not name {missing}: {said}")


def finished_run(folder):
    """Make a finished run and its text, "pairs.tsv", in a new folder; return the folder."""
    folder.mkdir(parents=True)
    text = write_pairs(folder / "pairs.tsv", 400)
    succeed("train", *SIZE, *STEPS, f"--tsv_files={text}", workdir(folder))
    return folder


# A translation for each line of stdin, one request after the other, as a program of one's own would
# ask for them.
TRANSLATE = """
import sys, t2t_repro
model = t2t_repro.load(sys.argv[1])
for line in sys.stdin:
    print(*model.translate([line.rstrip("\\n")]), flush=True)
"""


def translations(export):
    """Return an export's translations of a few sentences."""
    lines = "".join(f"{sentence}\n" for sentence in sentences(5)).encode()
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with ended(python("-c", TRANSLATE, export, **streams)) as process:
        output, _ = process.communicate(lines, PATIENCE)
    wanted(process.returncode == 0, f"{export}: cannot be loaded")
    return {"translations": output}


def state(run):
    """Return {name: bytes} of the newest checkpoint, without its number and the time it took."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(run / "checkpoints"))
    names = [name for name in reader.get_variable_to_shape_map() if ".ATTRIBUTES/V" in name]
    kept = [name for name in names if not name.startswith(("save_counter", "seconds"))]
    return {name: reader.get_tensor(name).tobytes() for name in kept}


def last_step(run):
    """Return the step of the newest checkpoint by the names of the files."""
    return max(int(path.stem[5:]) for path in run.glob("checkpoints/step-*.index"))


def contents(directory):
    """Return {name: bytes} of all files below a directory, but for locks, which name a process."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def check_same(found, expected):
    """Raise Broken unless two dictionaries of bytes are equal."""
    wanted(found.keys() == expected.keys(), f"not in both: {sorted(found.keys() ^ expected)[:3]}")
    other = [name for name in expected if found[name] != expected[name]]
    wanted(not other, f"{len(other)} of {len(expected)} differ: {other[:3]}")
