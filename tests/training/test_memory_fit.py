"""The number of micro-batches that fit is found by trial, in processes that run out of memory."""

import resource
import subprocess
import sys

import commands
import numpy as np
import pytest

from pipelines.buckets import choose_buckets
from pipelines.errors import BadInput
from pipelines.vocabulary import Vocabulary
from t2t_repro import config, launch
from t2t_repro.config import Model, Train
from t2t_repro.training import memory_fit
from t2t_repro.workdir import Workdir

MIB = 1 << 20
# Nearly all weights are the vocabulary's: 37,000 x 16.
WIDE = Model(num_layers=1, d_model=16, d_ff=16, num_heads=1, d_k=16, d_v=16)
ROWS = 37_000


def tokens_per_batch(count, **changes):
    return config.resolve("wmt14_ende", overrides={"tokens_per_batch": count} | changes)


def test_a_limit_gives_the_least_parts_that_keep_to_it():
    assert (
        memory_fit.count_micro_batches(tokens_per_batch(25_000), replicas=1, vocabulary_size=0) == 1
    )
    for limit, replicas, parts in [(25_000, 1, 1), (24_999, 1, 2), (5_000, 1, 6), (5_000, 2, 3)]:
        limited = tokens_per_batch(25_000, max_tokens_per_replica=limit)
        assert memory_fit.count_micro_batches(limited, replicas, 0) == parts
    for limit in (256, 270, 300, 800, 1_000, 7_000):
        limited = tokens_per_batch(25_000, max_tokens_per_replica=limit)
        parts = memory_fit.count_micro_batches(limited, 1, 0)
        rows = {length: max(9, 25_000 // length) for length in range(1, 257)}
        assert all(-(-most // parts) * length <= limit for length, most in rows.items())
    both = tokens_per_batch(25_000, max_tokens_per_replica=12_500, accumulate=4)
    assert memory_fit.count_micro_batches(both, 1, 0) == 4


def trials(monkeypatch, fits):
    """Return the list of shapes tried; those with at most `fits` tokens per side fit."""
    tried = []

    def try_step(model, rows, train, *shapes):
        tried.append((rows, *shapes))
        return 1 if shapes[0][0] * shapes[0][1] <= fits * train.accumulate else None

    monkeypatch.setattr(memory_fit, "try_step", try_step)
    return tried


def test_auto_divides_until_the_worst_batch_fits(monkeypatch):
    tried = trials(monkeypatch, fits=8_000)
    auto = tokens_per_batch(25_000, max_tokens_per_replica="auto")
    assert memory_fit.count_micro_batches(auto, 1, 0) == 4
    # 1.2 times 25,000, then twice 12,500 and 6,250 tokens in sentences of 256, then of 128 pieces.
    shapes = [((pairs, 256, 256), (2 * pairs, 128, 128)) for pairs in (118, 2 * 59, 2 * 30)]
    assert tried == [(40_960, *each) for each in shapes]
    assert memory_fit.count_micro_batches(auto, 4, 0) == 1


def test_auto_says_what_to_do_where_not_one_sentence_fits(monkeypatch):
    trials(monkeypatch, fits=255)
    auto = tokens_per_batch(25_000, max_tokens_per_replica="auto")
    with pytest.raises(BadInput, match=r"not even one pair of 256 .* --max_length"):
        memory_fit.count_micro_batches(auto, 1, 0)


def test_the_worst_batch_has_13_of_the_longest_sentences_whatever_the_budget(monkeypatch):
    short, long = np.full(5_000, 8), np.full(26, 512)
    lengths = np.concatenate([short, long])
    buckets = choose_buckets(lengths, lengths, tokens_per_batch=2_048, max_shapes=512)
    rows = buckets.rows[buckets.source_length == 512].max()
    assert rows == 13
    tried = trials(monkeypatch, fits=10**6)
    small = {"tokens_per_batch": 2_048, "max_length": 512, "embedding_rows": None}
    auto = config.resolve("wmt14_ende", overrides=small | {"max_tokens_per_replica": "auto"})
    assert memory_fit.count_micro_batches(auto, 1, vocabulary_size=777) == 1
    ((pieces, (pairs, *_), _),) = tried
    assert pieces == 777
    assert pairs >= rows
    for limit in (512, 1_000, 2_048, 3_000):
        limited = config.resolve("wmt14_ende", overrides=small | {"max_tokens_per_replica": limit})
        parts = memory_fit.count_micro_batches(limited, 1, 0)
        assert -(-rows // parts) * 512 <= limit


def test_each_worker_of_a_stream_may_have_as_many(monkeypatch):
    tried = trials(monkeypatch, fits=10**6)
    for stream, pairs in ((False, 4), (True, 13)):
        auto = tokens_per_batch(25_000, max_tokens_per_replica="auto", stream=stream)
        memory_fit.count_micro_batches(auto, 32, 0)
        assert tried.pop()[1][0] == pairs


def test_auto_tries_the_vocabulary_that_the_run_will_have(tmp_path, monkeypatch):
    tried = trials(monkeypatch, fits=10**6)
    learnt = Vocabulary.learn(["a word"] * 50, 270)
    learnt.save(tmp_path)
    files = {f"{side}_files": [str(tmp_path / side)] for side in ("source", "target")}
    flags = files | {"vocabulary": str(tmp_path), "max_tokens_per_replica": "auto"}
    launch._prepare_devices("parallel_text", None, Workdir(tmp_path / "run"), flags)
    assert tried[0][0] == 270


def test_files_that_were_read_do_not_fill_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_fit, "_GROUP", tmp_path)
    written = {
        "max": f"{3 * MIB}",
        "current": f"{2 * MIB}",
        "stat": f"anon 7\ninactive_file {MIB}\n",
    }
    for name, text in written.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory_fit._available() == 2 * MIB
    (tmp_path / "memory.stat").write_text("anon 7\n")
    assert memory_fit._available() == MIB
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_fit._available() > 100 * MIB


@pytest.fixture(scope="module")
def peak():
    """Return the bytes that 63 x 16 more tokens need; their logits alone are 142 MiB."""
    least, most = (memory_fit.try_step(WIDE, ROWS, Train(), (n, 16, 16)) for n in (1, 64))
    return most - least


@pytest.mark.slow
def test_the_loss_holds_one_array_over_the_vocabulary_beside_the_logits(peak):
    logits = 63 * 16 * ROWS * 4
    assert 1.7 * logits < peak < 2.5 * logits


@pytest.mark.slow
def test_prediction_finds_that_too(peak):
    less, more = (memory_fit.predicted(WIDE, ROWS, "float32", (n, 16, 16)) for n in (1, 64))
    assert more - less == pytest.approx(peak, rel=0.25)


def test_prediction_counts_what_base_keeps():
    base = [
        memory_fit.predicted(Model(), 0, "float32", (1, s, t)) for s, t in ((0, 0), (1, 0), (2, 0))
    ]
    weights, one, two = base
    assert weights == 3 * 4 * 44_040_192  # Table 3's base without embeddings, norms and biases
    # q, k, v, heads, k and v of cross-attention, the hidden layer; two add and norms
    kept = 6 * (4 * (6 * 512 + 2048) + 2 * 512 * (1 + 4 + 4 + 4))
    assert one - weights == kept + 6 * 8 * 4
    assert two - weights == 2 * kept + 4 * 6 * 8 * 4


PARTS = """
import re
import numpy as np
import tensorflow as tf
from t2t_repro.config import Model, Train
from t2t_repro.model.transformer import Transformer
from t2t_repro.training.trainer import Trainer

tf.config.threading.set_inter_op_parallelism_threads(2)

def bytes_of(kind):
    return 1024 * int(re.search(rf"{kind}:\\s+(\\d+)", open("/proc/self/status").read())[1])

model = Transformer(Model(2, 128, 512, 4, 32, 32, 0.1), rows=4000)
trainer = Trainer(model, Train(accumulate=8), tf.distribute.get_strategy())
batch = np.full((128, 50), 7, np.int32)
trainer.step(batch[:16, :5], batch[:16, :5]).numpy()
before = bytes_of("VmRSS")
for _ in range(2):
    trainer.step(batch, batch).numpy()
print(bytes_of("VmHWM") - before)
"""


@pytest.mark.slow
def test_micro_batches_are_not_in_memory_at_the_same_time():
    """Eight of them take 163 MiB; 350 to 530 where the next ones begin while one is computed."""
    model = Model(2, 128, 512, 4, 32, 32)
    most, weights = (
        memory_fit.predicted(model, 4000, "float32", (pairs, 50, 50)) for pairs in (128, 0)
    )
    assert int(commands.python("-c", PARTS).stdout) < 0.5 * (most - weights)  # of 451 MiB


LIMITED = """
from t2t_repro.training import memory_fit
from t2t_repro.config import Model, Train
if __name__ == "__main__":
    model = Model(num_layers=1, d_model=16, d_ff=16, num_heads=1, d_k=16, d_v=16)
    print([memory_fit.try_step(model, 37_000, Train(), (n, 16, 16)) is None for n in (512, 8)])
"""


@pytest.mark.slow
def test_a_step_that_does_not_fit_ends_its_own_process_only(tmp_path):
    script = tmp_path / "limited.py"
    script.write_text(LIMITED, encoding="utf-8")

    def limit():  # the logits of 512 sentences alone need 1,156 MiB
        resource.setrlimit(resource.RLIMIT_DATA, (1400 * MIB, 1400 * MIB))

    ran = subprocess.run(
        [sys.executable, script], preexec_fn=limit, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[True, False]\n"
