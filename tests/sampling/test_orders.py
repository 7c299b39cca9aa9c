"""Epoch orders: pure, seekable, invertible."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.sampling.orders import SequentialOrder, UniformOrder


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 5000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**64 - 1), data=st.data())
def test_any_range_of_an_epoch_is_part_of_the_whole(n, seed, epoch, data):
    order = UniformOrder(n, seed).epoch(epoch)
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    whole = order.at(0, n)
    assert np.array_equal(np.sort(whole), np.arange(n))
    assert np.array_equal(order.at(start, stop), whole[start:stop])
    assert np.array_equal(order.where(whole), np.arange(n))
    assert np.array_equal(order.pick(np.arange(n)), whole)


def test_epochs_differ_and_an_epoch_comes_again_the_same():
    order = UniformOrder(1000, 42)
    first, second, again = (order.epoch(epoch).at(0, 1000).tolist() for epoch in (0, 1, 0))
    assert first == again != second
    assert first != list(range(1000))


def test_epochs_are_not_correlated():
    order = UniformOrder(20_000, 3)
    epochs = [order.epoch(epoch).at(0, 20_000) for epoch in range(6)]
    for place, one in enumerate(epochs):
        for other in epochs[place + 1 :]:
            # The correlation of two independent shuffles has standard deviation 1 / sqrt(n).
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(20_000)


def test_the_tag_names_algorithm_and_constants():
    assert UniformOrder(10, 42).tag == "uniform f6v1 picks=10 seed=42"
    assert SequentialOrder(10).tag == "sequential picks=10"


def test_sequential_is_storage_order_in_every_epoch():
    order = SequentialOrder(9)
    assert order.epoch(0).at(2, 6).tolist() == order.epoch(7).at(2, 6).tolist() == [2, 3, 4, 5]
    assert order.epoch(0).where(np.array([8, 0])).tolist() == [8, 0]


@pytest.mark.parametrize("make", [lambda: UniformOrder(0, 1), lambda: SequentialOrder(2**62 + 1)])
def test_a_number_of_picks_out_of_range_is_refused(make):
    with pytest.raises(ValueError, match=r"1 to 2\*\*62 picks"):
        make()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_does_not_fit_is_refused(seed):
    with pytest.raises(ValueError, match=f"got {seed}"):
        UniformOrder(10, seed)


@pytest.mark.parametrize("order", [UniformOrder(10, 1), SequentialOrder(10)])
def test_a_negative_epoch_is_refused(order):
    with pytest.raises(ValueError, match="-1"):
        order.epoch(-1)


@pytest.mark.parametrize("order", [UniformOrder(10, 1), SequentialOrder(10)])
@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, 11)])
def test_a_range_outside_the_epoch_is_refused(order, start, stop):
    with pytest.raises(ValueError, match="10 picks"):
        order.epoch(0).at(start, stop)
