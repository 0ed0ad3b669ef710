"""Batches of like lengths: each pair once, within the budget, the same again after a restart."""

import hashlib

import numpy as np
import pytest

from pipelines.batching import padded_batches, plan_epoch
from pipelines.prepare import Prepared, Side

BUDGET = 300


def realistic(pairs):
    """Lengths of both sides: about 14 pieces, a long tail, the target a tenth longer."""
    rng = np.random.default_rng(0)
    source = np.clip(rng.gamma(4.0, 3.5, pairs).astype(int), 2, 100)
    target = np.clip(np.rint(source * rng.normal(1.1, 0.15, pairs)).astype(int), 2, 100)
    return source, target


@pytest.fixture(scope="module")
def lengths():
    return realistic(pairs=2000)


def prepared(pairs):
    """Pairs of lists of ids as `prepare` stores them."""

    def side(rows):
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return Side(np.concatenate(rows).astype(np.uint16), offsets)

    return Prepared(*(side(rows) for rows in zip(*pairs, strict=True)), manifest={})


@pytest.fixture(scope="module")
def split(lengths):
    """The first 200 of these pairs; every id of pair i is i + 2 in the source, i + 300 beside."""
    pairs = list(zip(*lengths, strict=True))[:200]
    return prepared([([i + 2] * s, [i + 300] * t) for i, (s, t) in enumerate(pairs)])


def plan_of(split, budget=BUDGET, seed=1, epoch=0):
    return plan_epoch(split.source.lengths, split.target.lengths, budget, seed, epoch)


def cells(batch, lengths):
    return len(batch) * max(side[batch].max() for side in lengths)


def as_lists(plan):
    return [batch.tolist() for batch in plan]


# The plan


@pytest.mark.parametrize("budget", [1, 50, 300, 10**6])
def test_every_pair_once(lengths, budget):
    plan = plan_epoch(*lengths, budget, seed=1, epoch=0)
    assert sorted(np.concatenate(plan)) == list(range(2000))


@pytest.mark.parametrize("budget", [50, 300, 4096])
def test_padded_cells_stay_within_the_budget_on_both_sides(lengths, budget):
    for batch in plan_epoch(*lengths, budget, seed=1, epoch=0):
        assert len(batch) == 1 or cells(batch, lengths) <= budget


def test_pair_longer_than_the_budget_is_alone():
    source, target = np.array([3, 40, 3, 2]), np.array([3, 2, 3, 40])
    plan = plan_epoch(source, target, 30, seed=1, epoch=0)
    assert sorted(sorted(batch) for batch in as_lists(plan)) == [[0, 2], [1], [3]]


def test_little_padding():
    """5 % of the cells; batches of as many pairs drawn at random would hold 68 %."""
    lengths = realistic(pairs=30_000)
    plan = plan_epoch(*lengths, 4096, seed=1, epoch=0)
    filled = sum(side.sum() for side in lengths)
    shape = sum(len(batch) * side[batch].max() for batch in plan for side in lengths)
    assert 1 - filled / shape < 0.06


def test_few_batches(lengths):
    """As full as the longest sentences allow, so that a step has its 25,000 tokens."""
    plan = plan_epoch(*lengths, 4096, seed=1, epoch=0)
    assert np.median([cells(batch, lengths) for batch in plan]) > 0.9 * 4096


def test_seed_and_epoch_give_the_plan(lengths):
    first, second = (as_lists(plan_epoch(*lengths, BUDGET, seed=3, epoch=5)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("seed", "epoch"), [(1, 1), (2, 0)])
def test_another_seed_or_epoch_mixes_other_batches_in_another_order(lengths, seed, epoch):
    first = plan_epoch(*lengths, BUDGET, seed=1, epoch=0)
    other = plan_epoch(*lengths, BUDGET, seed=seed, epoch=epoch)
    shared = {frozenset(batch) for batch in as_lists(first)} & {
        frozenset(batch) for batch in as_lists(other)
    }
    assert len(shared) < len(first) / 3
    longest = [[lengths[0][batch].max() for batch in plan] for plan in (first, other)]
    assert longest[0] != longest[1]


def test_order_is_random_not_by_length(lengths):
    plan = plan_epoch(*lengths, BUDGET, seed=1, epoch=0)
    means = [lengths[0][batch].mean() for batch in plan]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.2


# The tensors


def test_tensors_hold_the_ids_of_their_pairs_then_padding(split):
    plan = plan_of(split)
    for batch, (source, target) in zip(plan, padded_batches(split, plan), strict=True):
        for padded, side, first in ((source, split.source, 2), (target, split.target, 300)):
            longest = side.lengths[batch].max()
            expected = [
                [index + first] * length + [0] * (longest - length)
                for index, length in zip(batch, side.lengths[batch], strict=True)
            ]
            assert padded.dtype == "int32"
            np.testing.assert_array_equal(padded, expected)


def test_order_of_ids_within_a_sentence():
    split = prepared([([7, 8, 9, 1], [65535, 1])])
    ((source, target),) = padded_batches(split, [np.array([0])])
    assert source.numpy().tolist() == [[7, 8, 9, 1]]
    assert target.numpy().tolist() == [[65535, 1]]


def digests(batches):
    return [hashlib.sha256(s.numpy().tobytes() + t.numpy().tobytes()).digest() for s, t in batches]


@pytest.mark.parametrize("first", [1, 7, -1])
def test_first_goes_on_where_the_plan_was_left(split, first):
    plan = plan_of(split)
    whole = digests(padded_batches(split, plan))
    assert len(set(whole)) == len(plan)
    assert digests(padded_batches(split, plan, first % len(plan))) == whole[first:]


def test_nothing_is_left_of_a_finished_epoch(split):
    plan = plan_of(split)
    assert list(padded_batches(split, plan, len(plan))) == []
