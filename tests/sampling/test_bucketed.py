"""Bucketing by length: little padding, nothing left to the lengths but the company, and the batch size in the tag."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import ConfigError
from flodl_pipe.sampling.bucketed import BucketedOrder, rows_in
from flodl_pipe.sampling.orders import SequentialOrder, UniformOrder

LENGTHS = np.arange(1003) * 7919 % 61


@pytest.mark.parametrize(
    ("k", "tag", "first", "last"),
    [
        (
            1,
            "bucketed l1 f6v1 picks=1003 rows=8 pool=4 lengths=d8aa436467e1dcb4 seed=42",
            [697, 98, 891, 159, 170, 181, 530, 42],
            [146, 163, 77],
        ),
        (
            2,
            "bucketed l1 f6v1 picks=2006 augment=2 rows=8 pool=4 lengths=d8aa436467e1dcb4 seed=42",
            [1106, 1251, 1639, 440, 829, 550, 716, 150],
            [819, 1290, 1211],
        ),
    ],
)
def test_values_are_pinned(k, tag, first, last):
    """If they have to change, the tag must change with them."""
    order = BucketedOrder(LENGTHS, 42, rows=8, pool_batches=4, num_repeats=k)
    assert order.tag == tag
    assert order.epoch(3).at(0, 8).tolist() == first
    assert order.epoch(3).at(1003 * k - 3, 1003 * k).tolist() == last


def padded(lengths, rows=32):
    """Return which part of batches is padding, each padded to its longest row."""
    batches = [lengths[start : start + rows] for start in range(0, len(lengths), rows)]
    return 1 - lengths.sum() / sum(len(batch) * int(batch.max()) for batch in batches)


def bucket_batches(lengths, rows, pool_batches, rng):
    """Shuffle, cut into pools, sort and slice each, shuffle the batches: what people write for a DataLoader."""
    order, batches = rng.permutation(len(lengths)), []
    for start in range(0, len(order), rows * pool_batches):
        pool = order[start : start + rows * pool_batches]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[begin : begin + rows] for begin in range(0, len(pool), rows)]
    return [batches[place] for place in rng.permutation(len(batches))]


@pytest.mark.parametrize("seed", range(5))
def test_padding_falls_from_45_to_under_3_percent(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 65, 2000)
    ours = BucketedOrder(lengths, seed, rows=32).epoch(seed).at(0, 2000)
    theirs = bucket_batches(lengths, 32, 50, rng)
    their_rows = sum(len(batch) * int(lengths[batch].max()) for batch in theirs)
    assert padded(lengths[ours]) < 0.03
    assert padded(lengths[ours[:1984]]) < 0.02
    assert 0.02 < 1 - lengths.sum() / their_rows < 0.035
    for plain in (UniformOrder(2000, seed), SequentialOrder(2000)):
        assert 0.42 < padded(lengths[plain.epoch(0).at(0, 2000)]) < 0.49


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 300),
    rows=st.integers(1, 40),
    pool=st.integers(1, 9),
    k=st.integers(1, 3),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_pool_is_the_shuffles_pool_in_sorted_batches_and_the_rest_its_end(n, rows, pool, k, seed):
    lengths = np.random.default_rng(n).integers(0, 12, n)
    num_picks = n * k
    order = BucketedOrder(lengths, seed, rows=rows, pool_batches=pool, num_repeats=k).epoch(5)
    whole = order.at(0, num_picks)
    shuffle = UniformOrder(num_picks, seed, num_repeats=k).epoch(5).at(0, num_picks)
    num_batches = num_picks // rows
    num_pools = max(1, num_batches // pool)
    edges = [*(number * pool * rows for number in range(num_pools)), num_batches * rows]
    for begin, end in pairwise(edges):
        assert np.array_equal(np.sort(whole[begin:end]), np.sort(shuffle[begin:end]))
        batches = [lengths[whole[start : start + rows] // k] for start in range(begin, end, rows)]
        assert all((np.diff(batch) >= 0).all() for batch in batches)
        spans = sorted((int(batch[0]), int(batch[-1])) for batch in batches)
        assert all(last <= first for (_, last), (first, _) in pairwise(spans))
    assert np.array_equal(whole[edges[-1] :], shuffle[edges[-1] :])


def test_what_is_left_out_at_an_epochs_end_is_not_the_longest():
    n, rows, num_epochs = 100, 32, 4000  # 4 samples are left
    lengths = np.arange(n) % 50
    order = BucketedOrder(lengths, 7, rows=rows, pool_batches=3)
    left = np.concatenate([order.epoch(epoch).at(96, 100) for epoch in range(num_epochs)])
    counts = np.bincount(left, minlength=n)
    expected = num_epochs * 4 / n
    # Without replacement within an epoch: chi-squared shrinks by (n - 4) / (n - 1).
    chi_squared = ((counts - expected) ** 2 / expected).sum() * (n - 1) / (n - 4)
    assert abs(chi_squared - (n - 1)) < 5 * np.sqrt(2 * (n - 1))


def test_batches_of_a_pool_come_in_any_order_and_equal_lengths_in_any_company():
    lengths = np.repeat([1, 2, 3, 4], 8)
    order = BucketedOrder(lengths, 3, rows=4, pool_batches=8)
    epochs = np.array([order.epoch(epoch).at(0, 32) for epoch in range(3000)])
    firsts = lengths[epochs[:, ::4]]
    for place in range(8):
        counts = np.bincount(firsts[:, place], minlength=5)[1:]
        assert ((counts - 750) ** 2 / 750).sum() < 3 + 5 * np.sqrt(6)
    partners = np.zeros(8)
    for batch in epochs.reshape(-1, 4):
        if 0 in batch:
            partners[batch] += 1
    expected = 3000 * 3 / 7
    assert ((partners[1:] - expected) ** 2 / expected).sum() < 6 + 5 * np.sqrt(12)


def test_each_pool_has_its_batches_in_an_order_of_its_own():
    """Pools of batches of one row and one length: each is its part of the shuffle, moved about by its own key."""
    whole = BucketedOrder(np.zeros(6400, dtype=int), 3, rows=1, pool_batches=64).epoch(0).at(0, 6400)
    came_from = UniformOrder(6400, 3).epoch(0).where(whole).reshape(100, 64) % 64
    assert len(np.unique(came_from, axis=0)) == 100


def test_lengths_are_kept_narrow_and_later_changes_of_the_array_are_not_seen():
    for longest, itemsize in ((200, 1), (60_000, 2), (70_000, 4), (2**40, 8)):
        lengths = np.array([1, longest, 5])
        assert BucketedOrder(lengths, 1, rows=2).held_bytes == 3 * itemsize
    order = BucketedOrder(lengths := LENGTHS.copy(), 1, rows=4)
    before = order.epoch(0).at(0, 1003)
    lengths[:] = 0
    assert np.array_equal(order.epoch(0).at(0, 1003), before)


def test_the_tag_names_lengths_and_constants_and_gives_the_rows_back():
    tags = [
        BucketedOrder(LENGTHS, 42, rows=8).tag,
        BucketedOrder(LENGTHS + 1, 42, rows=8).tag,
        BucketedOrder(LENGTHS, 42, rows=16).tag,
        BucketedOrder(LENGTHS, 42, rows=8, pool_batches=49).tag,
        BucketedOrder(LENGTHS, 42, rows=8, num_repeats=2).tag,
        BucketedOrder(LENGTHS, 43, rows=8).tag,
    ]
    assert len(set(tags)) == len(tags)
    assert [rows_in(tag) for tag in tags] == [8, 8, 16, 8, 8, 8]
    assert BucketedOrder(LENGTHS.astype(">i2"), 42, rows=8).tag == tags[0]


@pytest.mark.parametrize("tag", ["", UniformOrder(10, 1).tag, "bucketed l0 picks=9 rows=8 seed=1", "bucketed l1 rows="])
def test_another_orders_tag_names_no_rows(tag):
    assert rows_in(tag) is None


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        (np.ones(5), r"integers, got float64 of shape \(5,\)"),
        (np.ones((5, 1), dtype=int), r"shape \(5, 1\)"),
        (np.ones(5, dtype=bool), "got bool"),
        (np.array([1, 2, -3, 4, 5]), "sample 2 has the length -3"),
        (np.ones(4, dtype=int), "4 lengths were given for 5 samples"),
        (np.ones(0, dtype=int), "0 lengths were given for 5 samples"),
    ],
)
def test_what_is_no_length_is_refused(lengths, says):
    with pytest.raises(ConfigError, match=says) as caught:
        BucketedOrder(lengths, 1, rows=2, num_samples=5)
    assert caught.value.problems[0].key == "sampling.lengths"


def test_an_empty_source_and_constants_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="0 lengths were given for 0 samples"):
        BucketedOrder(np.ones(0, dtype=int), 1, rows=2)
    for name in ("rows", "pool_batches", "num_repeats"):
        with pytest.raises(ValueError, match=r"at least 1 of .*, got 0"):
            BucketedOrder(LENGTHS, 1, **{"rows": 2, name: 0})
