"""Length buckets: rectangles that fit the corpus, full batches, few shapes."""

import numpy as np
import pytest

from pipelines.buckets import LEAST_ROWS, choose_buckets


def realistic(pairs, seed=0):
    """Draw lengths of both sides: about 14 pieces, a long tail, the target a tenth longer."""
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(4.0, 3.5, pairs).astype(int), 2, 100)
    target = np.clip(np.rint(source * rng.normal(1.1, 0.15, pairs)).astype(int), 2, 100)
    return source, target


def empty_share(lengths, buckets):
    """Return the share of empty cells in an epoch's batches, from the definition, by bucket."""
    cells = 0
    for number, rows in enumerate(buckets.rows):
        batches = int(np.ceil((buckets.bucket == number).sum() / rows))
        cells += batches * rows * (buckets.source_length[number] + buckets.target_length[number])
    return 1 - sum(side.sum() for side in lengths) / cells


@pytest.mark.parametrize("max_shapes", [1, 7, 64])
@pytest.mark.parametrize("budget", [50, 1000, 10**7])
def test_each_pair_fits_its_bucket_tightly(max_shapes, budget):
    lengths = realistic(3000)
    buckets = choose_buckets(*lengths, budget, max_shapes)
    assert 1 <= len(buckets.rows) <= max_shapes
    assert set(buckets.bucket) == set(range(len(buckets.rows)))
    for number in range(len(buckets.rows)):
        members = buckets.bucket == number
        assert lengths[0][members].max() == buckets.source_length[number]
        assert lengths[1][members].max() == buckets.target_length[number]


@pytest.mark.parametrize("budget", [500, 4096])
def test_batches_stay_within_the_budget_on_both_sides(budget):
    buckets = choose_buckets(*realistic(3000), budget, 64)
    longest = np.maximum(buckets.source_length, buckets.target_length)
    within = buckets.rows * longest <= budget
    assert np.all(within | (buckets.rows < 2 * LEAST_ROWS))  # long and rare
    assert within.mean() > 0.5


def test_no_batch_has_fewer_rows_than_eight_replicas_need():
    """This holds even if a single row fills the budget."""
    buckets = choose_buckets(*realistic(3000), 60, 64)
    assert buckets.rows.min() >= LEAST_ROWS


def test_few_pairs_are_one_batch():
    buckets = choose_buckets(np.array([3, 9, 5]), np.array([2, 4, 60]), 4096, 64)
    assert buckets.rows.tolist() == [3]
    assert (buckets.source_length.tolist(), buckets.target_length.tolist()) == ([9], [60])


def test_rows_are_spread_evenly():
    """1,000 pairs, at most 300 per batch, fill four batches of 250, not three of 300 and a rest."""
    ten = np.full(1000, 10)
    assert choose_buckets(ten, ten, 3000, 64).rows.tolist() == [250]


def test_splits_where_it_saves_most():
    """The lengths form two clusters, which are separate on the target side only."""
    source = np.full(2000, 20)
    target = np.repeat([10, 50], 1000)
    buckets = choose_buckets(source, target, 500, 2)
    assert buckets.target_length.tolist() == [10, 50]
    assert buckets.rows.tolist() == [25, 10]
    assert empty_share((source, target), buckets) == 0


@pytest.mark.parametrize(("max_shapes", "most"), [(512, 0.02), (64, 0.07), (32, 0.1)])
def test_little_padding_with_few_shapes(max_shapes, most):
    """A grid of equally many shapes leaves about 17 % of the cells empty, random batches 60 %."""
    lengths = realistic(3_000_000)
    assert empty_share(lengths, choose_buckets(*lengths, 25_000, max_shapes)) < most


def test_more_shapes_never_pad_more():
    lengths = realistic(100_000)
    shares = [empty_share(lengths, choose_buckets(*lengths, 8192, k)) for k in (4, 16, 64, 256)]
    assert shares == sorted(shares, reverse=True)


def test_a_bucket_has_two_full_batches_or_more():
    buckets = choose_buckets(*realistic(3000), 1000, 512)
    batches = np.ceil(np.bincount(buckets.bucket) / buckets.rows)
    assert len(batches) > 5
    assert batches.min() >= 2


def test_without_padding_a_batch_has_its_tokens():
    """With four shapes padding is large, so the effect shows: half of 25,000 cells are tokens."""
    lengths = realistic(1_000_000)

    def tokens(count_padding):
        buckets = choose_buckets(*lengths, 25_000, 4, count_padding)
        batches = np.ceil(np.bincount(buckets.bucket) / buckets.rows).sum()
        return max(side.sum() for side in lengths) / batches

    assert 24_000 < tokens(count_padding=False) <= 25_000
    assert tokens(count_padding=True) < 18_000


def test_order_of_the_pairs_does_not_matter():
    source, target = realistic(3000)
    order = np.random.default_rng(1).permutation(3000)
    first = choose_buckets(source, target, 1000, 32)
    second = choose_buckets(source[order], target[order], 1000, 32)
    np.testing.assert_array_equal(second.bucket, first.bucket[order])
    np.testing.assert_array_equal(second.rows, first.rows)


def cells(source, target, budget):
    """Return a bucket's cells, from the definition, and whether it has two full batches."""
    longest, pairs = max(source.max(), target.max()), len(source)
    most = max(9, budget // longest)
    rows = -(-pairs // max(1, min(-(-pairs // most), pairs // 9)))
    return int(-(-pairs // rows) * rows * (source.max() + target.max())), pairs >= 2 * most


@pytest.mark.parametrize("seed", range(30))
def test_first_split_is_the_best_of_all(seed):
    """The split is compared with every way to divide the pairs in two."""
    rng = np.random.default_rng(seed)
    some = rng.choice(np.arange(2, 60), 8, replace=False)  # with gaps
    source, other = rng.choice(some, 400), rng.choice(some, 400)
    # Long sources have long targets, or short ones.
    alike = source if seed % 2 else some.max() + some.min() - source
    target = np.where(rng.random(400) < 0.9, alike, np.minimum(alike, other))
    if seed % 3 == 0:  # the target is the longer side
        target = 2 * target
    candidates = [cells(source, target, 900)[0]]
    for side in (source, target):
        for at in np.unique(side)[:-1]:
            parts = [cells(source[half], target[half], 900) for half in (side <= at, side > at)]
            if all(is_full for _, is_full in parts):
                candidates.append(sum(count for count, _ in parts))
    buckets = choose_buckets(source, target, 900, 2)
    batches = -(-np.bincount(buckets.bucket) // buckets.rows)
    found = batches * buckets.rows * (buckets.source_length + buckets.target_length)
    assert found.sum() == min(candidates)


def test_eighteen_pairs_are_two_batches_of_nine_and_nineteen_too():
    for pairs, rows in ((8, 8), (9, 9), (17, 17), (18, 9), (19, 10)):
        five = np.full(pairs, 5)
        assert choose_buckets(five, five, 1, 1).rows.tolist() == [rows]
