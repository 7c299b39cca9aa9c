"""The keyed bijection: exact, invertible, pinned, and as good as a shuffle where statistics can tell."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.keyed.permute import ALGORITHM, EXACT_UP_TO, MAX_ITEMS, permutation

# Pinned: a run that resumes after an upgrade must meet the same order. If a value changes, so must ALGORITHM.
GOLDEN = {
    (6, 42, 0): [3, 0, 1, 5, 2, 4],
    (17, 42, 0): [12, 8, 0, 11, 4, 5],
    (65_536, 42, 0): [56345, 51484, 43692, 23033, 16968, 19479],
    (65_537, 42, 0): [23072, 7659, 12470, 55887, 55993, 48250],
    (10**9, 42, 0): [501733133, 533159240, 2573473, 862809158, 96507149, 819494524],
    (10**15, 42, 0): [
        237263622632084,
        781234401105625,
        248068124998214,
        893911584766654,
        757638758205362,
        606138162917999,
    ],
}


@pytest.mark.parametrize(("key", "first"), GOLDEN.items())
def test_values_are_pinned(key, first):
    assert ALGORITHM == "f6v1"
    assert permutation(*key).at(np.arange(6)).tolist() == first


@settings(max_examples=70, deadline=None)
@given(n=st.integers(1, 3000) | st.integers(EXACT_UP_TO - 2, EXACT_UP_TO + 300), seed=st.integers(0, 2**64 - 1))
def test_every_item_stands_once_and_the_inverse_finds_it(n, seed):
    shuffle = permutation(n, seed, 3)
    items = shuffle.at(np.arange(n))
    assert np.array_equal(np.sort(items), np.arange(n))
    assert np.array_equal(shuffle.inverse(items), np.arange(n))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(EXACT_UP_TO + 1, MAX_ITEMS), data=st.data())
def test_the_inverse_holds_at_any_size(n, data):
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=50)), dtype=np.int64)
    shuffle = permutation(n, 1, 2)
    items = shuffle.at(positions)
    assert ((items >= 0) & (items < n)).all()
    assert np.array_equal(shuffle.inverse(items), positions)


def test_a_position_does_not_depend_on_what_else_was_asked():
    shuffle = permutation(10**6, 5, 0)
    together = shuffle.at(np.arange(20_000))
    alone = [int(shuffle.at(np.array([place]))[0]) for place in (0, 8191, 8192, 19_999)]
    assert alone == [int(together[place]) for place in (0, 8191, 8192, 19_999)]


def test_memory_does_not_grow_with_the_number_of_items():
    tracemalloc.start()
    try:
        permutation(10**15, 7, 0).at(np.arange(100_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize("n", [0, -1, MAX_ITEMS + 1])
def test_a_size_out_of_range_is_refused(n):
    with pytest.raises(ValueError, match=rf"1 to 2\*\*62 items, got {n}"):
        permutation(n, 1)


def test_seed_and_epoch_are_not_added():
    x = np.arange(70_000)
    orders = [permutation(70_000, seed, epoch).at(x) for seed, epoch in ((1, 0), (0, 1), (2**32, 1), (1, 2**32))]
    for place, one in enumerate(orders):
        for other in orders[place + 1 :]:
            # Two independent shuffles agree in about one place (Poisson with mean 1).
            assert int((one == other).sum()) < 12


@pytest.mark.parametrize("n", [4, 5])
def test_all_orders_of_a_few_items_are_equally_likely(n):
    counts: dict[tuple[int, ...], int] = {}
    num_orders, each = math.factorial(n), 60
    for seed in range(each * num_orders):
        order = tuple(permutation(n, seed, 0).at(np.arange(n)).tolist())
        counts[order] = counts.get(order, 0) + 1
    observed = np.zeros(num_orders)
    observed[: len(counts)] = list(counts.values())
    chi_squared = ((observed - each) ** 2 / each).sum()
    # Five standard deviations above the mean of a chi-squared with num_orders - 1 degrees of freedom.
    assert chi_squared < (num_orders - 1) + 5 * (2 * (num_orders - 1)) ** 0.5


def test_pairs_of_neighbours_are_spread_evenly():
    n, cells = 400_009, 16
    items = permutation(n, 11, 0).at(np.arange(n)) * cells // n
    pairs = np.bincount(items[:-1] * cells + items[1:], minlength=cells * cells)
    expected = (n - 1) / cells**2
    chi_squared = ((pairs - expected) ** 2 / expected).sum()
    degrees = cells**2 - 1
    assert abs(chi_squared - degrees) < 5 * (2 * degrees) ** 0.5
