"""Augmentation: an epoch holds each sample k times, at places of their own."""

import numpy as np
import pytest

from flodl_pipe.sampling.orders import SequentialOrder, UniformOrder, samples_of


def epoch_of(order, epoch=0):
    positions = np.arange(order.num_picks)
    return samples_of(order, positions, order.epoch(epoch).at(0, order.num_picks))


@pytest.mark.parametrize(("n", "k"), [(1, 5), (7, 3), (2000, 4), (30_000, 3)])
def test_each_sample_comes_exactly_k_times_with_repeats_counted_from_0(n, k):
    for order in (UniformOrder(n * k, 42, num_repeats=k), SequentialOrder(n * k, num_repeats=k)):
        samples, repeats = epoch_of(order)
        assert np.array_equal(np.bincount(samples, minlength=n), np.full(n, k))
        assert np.array_equal(np.bincount(repeats, minlength=k), np.full(k, n))
        assert len(np.unique(samples * k + repeats)) == n * k


@pytest.mark.parametrize(("n", "k"), [(2000, 4), (30_000, 3)])  # an exact shuffle, and one beyond 65,536 picks
def test_the_picks_of_a_sample_are_spread_over_the_epoch_like_independent_places(n, k):
    order = UniformOrder(n * k, 42, num_repeats=k)
    places = np.sort(order.epoch(0).where(np.arange(n * k)).reshape(n, k), axis=1) / (n * k)
    for rank in range(k):
        # The place of the rank-th of k independent uniform places: Beta(rank + 1, k - rank).
        a, b = rank + 1, k - rank
        deviation = np.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
        assert abs(places[:, rank].mean() - a / (a + b)) < 5 * deviation / np.sqrt(n)
        assert abs(places[:, rank].std() / deviation - 1) < 0.1


def test_the_repeats_of_a_sample_rarely_share_a_batch():
    n, k, batch = 20_000, 4, 50
    samples, _ = epoch_of(UniformOrder(n * k, 1, num_repeats=k))
    doubled = sum(batch - len(np.unique(rows)) for rows in samples.reshape(-1, batch))
    expected = n * k * (batch - 1) * (k - 1) / (n * k - 1) / 2
    assert abs(doubled - expected) < 5 * np.sqrt(expected)


def test_repeat_and_place_have_nothing_to_do_with_each_other():
    samples, repeats = epoch_of(UniformOrder(60_000, 8, num_repeats=3))
    positions = np.arange(60_000)
    for values in (samples, positions):
        assert abs(np.corrcoef(repeats, values)[0, 1]) < 5 / np.sqrt(60_000)


def test_in_storage_order_the_repeats_of_a_sample_follow_each_other():
    samples, repeats = epoch_of(SequentialOrder(6, num_repeats=2))
    assert samples.tolist() == [0, 0, 1, 1, 2, 2]
    assert repeats.tolist() == [0, 1] * 3


def test_the_tag_names_the_repeats_and_one_repeat_is_the_plain_order():
    assert UniformOrder(12, 42, num_repeats=3).tag == "uniform f6v1 picks=12 augment=3 seed=42"
    assert SequentialOrder(12, num_repeats=3).tag == "sequential picks=12 augment=3"
    assert UniformOrder(12, 42, num_repeats=1).tag == UniformOrder(12, 42).tag
    assert SequentialOrder(12, num_repeats=1).tag == SequentialOrder(12).tag


@pytest.mark.parametrize("k", [0, -1, 5])
def test_repeats_that_do_not_divide_the_picks_are_refused(k):
    for make in (lambda: UniformOrder(12, 42, num_repeats=k), lambda: SequentialOrder(12, num_repeats=k)):
        with pytest.raises(ValueError, match=f"divide the 12 picks, got {k}"):
            make()
