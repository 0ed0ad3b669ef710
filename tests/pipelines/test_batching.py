"""An epoch's batches: each pair once, in a random order that a resumed run reproduces."""

import dataclasses
import hashlib
import subprocess
import sys
from itertools import chain, islice

import numpy as np
import pytest
from paths import ROOT

from pipelines.batching import Batching, small_batches
from pipelines.shards import EncodedSplit

BUDGET = 300


def split_of(pairs):
    """Return pairs of lists of ids as a split with one shard."""
    ids = np.array([i for pair in pairs for side in pair for i in side], np.uint16)
    lengths = np.array([[len(side) for side in pair] for pair in pairs], np.int32)
    start = np.cumsum(lengths.sum(1)) - lengths.sum(1)
    return EncodedSplit([ids], np.zeros(len(pairs), np.int32), start, lengths, manifest={})


@pytest.fixture(scope="module")
def split():
    """Return 200 pairs; every id of pair i is i + 2 in the source, i + 300 in the target."""
    rng = np.random.default_rng(0)
    source = np.clip(rng.gamma(4.0, 3.5, 200).astype(int), 2, 40)
    target = np.clip(np.rint(source * rng.normal(1.1, 0.15, 200)).astype(int), 2, 40)
    return split_of(
        [([i + 2] * s, [i + 300] * t) for i, (s, t) in enumerate(zip(source, target, strict=True))]
    )


def batching(split, budget=BUDGET, shapes=512, seed=1):
    return Batching(
        split, tokens_per_batch=budget, max_shapes=shapes, count_padding=True, seed=seed
    )


def pairs_of(plan):
    return [batch.pairs[batch.pairs >= 0].tolist() for batch in plan]


def digests(batches):
    return [hashlib.sha256(s.numpy().tobytes() + t.numpy().tobytes()).digest() for s, t in batches]


# The plan


@pytest.mark.parametrize("shapes", [1, 5, 512])
@pytest.mark.parametrize("budget", [1, 50, 300, 10**6])
def test_every_pair_once(split, budget, shapes):
    for epoch in range(2):
        plan = batching(split, budget, shapes).plan(epoch)
        assert sorted(chain.from_iterable(pairs_of(plan))) == list(range(200))


@pytest.mark.parametrize("shapes", [1, 5, 512])
def test_batches_have_no_more_shapes_than_allowed_in_any_epoch(split, shapes):
    own = batching(split, shapes=shapes)
    found = {
        (len(batch.pairs), batch.source_length, batch.target_length)
        for epoch in range(3)
        for batch in own.plan(epoch)
    }
    assert len(found) <= shapes


@pytest.mark.parametrize("replicas", range(1, 9))
@pytest.mark.parametrize("budget", [1, 50, 300, 10**6])
def test_every_replica_has_a_sentence_of_every_batch(split, budget, replicas):
    """Replica r takes rows r, r + n, ... (see `Trainer`); together they see each pair once."""
    seen = []
    for batch in batching(split, budget).plan(epoch=0):
        for replica in range(replicas):
            mine = batch.pairs[replica::replicas]
            assert (mine >= 0).any()
            seen += mine[mine >= 0].tolist()
    assert sorted(seen) == list(range(200))


def test_at_most_the_last_row_of_a_batch_is_empty(split):
    for budget in (50, 300, 1000):
        for batch in batching(split, budget).plan(0):
            assert (batch.pairs[:-1] >= 0).all()


def test_seed_and_epoch_give_the_plan(split):
    first, second = (pairs_of(batching(split, seed=3).plan(5)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("seed", "epoch"), [(1, 1), (2, 0)])
def test_another_seed_or_epoch_mixes_other_batches_in_another_order(split, seed, epoch):
    first, other = (
        pairs_of(batching(split).plan(0)),
        pairs_of(batching(split, seed=seed).plan(epoch)),
    )
    shared = set(map(frozenset, first)) & set(map(frozenset, other))
    assert len(shared) < len(first) / 3
    lengths = [[max(split.lengths[batch, 0]) for batch in plan] for plan in (first, other)]
    assert lengths[0] != lengths[1]


def test_order_is_random_by_length_and_by_place_in_the_file():
    rng = np.random.default_rng(0)
    split = split_of([([2] * n, [2] * n) for n in np.sort(rng.integers(2, 40, 5000))])
    plan = pairs_of(batching(split).plan(0))
    means = [split.lengths[batch, 0].mean() for batch in plan]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.2
    place = np.empty(5000)
    for number, batch in enumerate(plan):
        place[batch] = number / len(plan)
    # Random order would give 1/3; in this sorted file a tenth of the neighbours share a batch.
    assert 0.27 < np.abs(np.diff(place)).mean() < 0.36


def test_seed_and_epoch_are_not_added(split):
    assert pairs_of(batching(split, seed=1).plan(1)) != pairs_of(batching(split, seed=2).plan(0))


def test_pairs_are_shuffled_by_the_generator_alone(split):
    """An unstable sort may give another order with another NumPy or processor."""
    own = batching(split, shapes=1)
    order = np.random.default_rng([1, 0]).permutation(200).tolist()
    place = {index: number for number, index in enumerate(order)}
    for pairs in pairs_of(own.plan(0)):
        assert np.all(np.diff([place[index] for index in pairs]) == 1)


# The tensors


def test_tensors_hold_the_ids_of_their_pairs_then_padding(split):
    own = batching(split)
    for batch, (source, target) in zip(own.plan(4), own.batches(4), strict=True):
        sides = (source, 0, 2, batch.source_length), (target, 1, 300, batch.target_length)
        for padded, side, first, longest in sides:
            expected = [
                [index + first] * length + [0] * (longest - length) if index >= 0 else [0] * longest
                for index, length in zip(batch.pairs, split.lengths[batch.pairs, side], strict=True)
            ]
            assert padded.dtype == "int32"
            np.testing.assert_array_equal(padded, expected)


def test_order_of_ids_within_a_sentence():
    ((source, target),) = batching(split_of([([7, 8, 9, 1], [65535, 1])])).batches(0)
    assert source.numpy().tolist() == [[7, 8, 9, 1]]
    assert target.numpy().tolist() == [[65535, 1]]


# Resuming


@pytest.mark.parametrize("first", [1, 7, -1])
def test_first_resumes_an_epoch(split, first):
    own = batching(split)
    whole = digests(own.batches(2))
    assert len(set(whole)) == len(own.plan(2))
    assert digests(batching(split).batches(2, first % len(whole))) == whole[first:]


def test_a_finished_epoch_has_no_batch_left(split):
    own = batching(split)
    assert list(own.batches(0, len(own.plan(0)))) == []


def test_no_thread_tunes_a_dataset(split):
    """It would sleep when the iterator is freed: 16 seconds at the end of an epoch of 25."""
    assert not batching(split).batches(0).options().autotune.enabled


# Prints the digest of each batch of three epochs, from a position on; kills itself after `count`.
READER = """
import hashlib, os, signal, sys
import numpy as np
from pipelines.batching import Batching, small_batches
from pipelines.shards import EncodedSplit
directory, epoch, first, count = sys.argv[1], *map(int, sys.argv[2:])
batching = Batching(
    EncodedSplit.load(directory), tokens_per_batch=2000, max_shapes=512, count_padding=True, seed=1
)
while epoch < 3:
    for source, target in batching.batches(epoch, first):
        digest = hashlib.sha256(source.numpy().tobytes() + target.numpy().tobytes()).hexdigest()
        print(epoch, first, digest, flush=True)
        first, count = first + 1, count - 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    epoch, first = epoch + 1, 0
"""


@pytest.mark.slow
def test_killed_readers_see_together_what_one_reader_sees(tmp_path):
    """Readers of 2,000 pairs are killed inside an epoch, at its end and right after its end."""
    from pipelines.encode import encode_split
    from pipelines.toy import toy_ende
    from pipelines.vocabulary import Vocabulary

    pairs = list(islice(toy_ende.examples("train"), 2000))
    vocabulary = Vocabulary.learn((text for pair in pairs for text in pair.values()), 600)
    encode_split(lambda: pairs, vocabulary, 256, tmp_path)

    def read(epoch, first, count):
        command = [sys.executable, "-c", READER, *map(str, (tmp_path, epoch, first, count))]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert ended.returncode == (0 if count == 0 else -9), ended.stderr
        return ended.stdout.splitlines()

    whole = read(0, 0, 0)
    size = len(batching(EncodedSplit.load(tmp_path), 2000).plan(0))
    assert len(whole) == 3 * size == len(set(whole))
    parts = read(0, 0, 5) + read(0, 5, size - 5) + read(0, size, size + 1) + read(2, 1, 0)
    assert parts == whole


@pytest.mark.parametrize("budget", [1, 20, 300])
def test_small_batches_hold_every_pair_once_within_the_budget(split, budget):
    found = []
    for source, target in small_batches(split, budget):
        assert max(source.size, target.size) <= budget or len(source) == 1
        pairs = source[:, 0] - 2
        wanted = split.padded(pairs, source.shape[1], target.shape[1])
        np.testing.assert_array_equal(source, wanted[0])
        np.testing.assert_array_equal(target, wanted[1])
        found += pairs.tolist()
    assert sorted(found) == list(range(len(split)))


def test_alterations_follow_one_another_with_the_number_of_the_epoch(split):
    seen = []

    def shorter(given, epoch):
        seen.append((len(given), epoch))
        return split_of([([2], [3])] * (len(given) - 10))

    altered = dataclasses.replace(
        batching(split), alterations=(shorter, shorter), altered_updates=9
    ).for_epoch(3, updates_before=8)
    assert seen == [(200, 3), (190, 3)]
    assert altered.pairs == 180
