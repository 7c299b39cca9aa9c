"""Shares: whole numbers, by largest remainder."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.sampling.shares import cut


@settings(deadline=None)
@given(rows=st.integers(0, 10_000), ratios=st.lists(st.integers(1, 1000), min_size=1, max_size=40))
def test_shares_add_up_and_are_within_one_row_of_the_ratio(rows, ratios):
    shares = cut(rows, ratios)
    assert sum(shares) == rows
    for share, ratio in zip(shares, ratios, strict=True):
        assert abs(share - Fraction(rows * ratio, sum(ratios))) < 1


def test_left_over_rows_go_to_lower_ranks_first():
    assert cut(10, (1, 1, 1, 1)) == (3, 3, 2, 2)


@pytest.mark.parametrize("ratios", [(), (1, 0), (1, -2)])
def test_ratios_that_are_not_positive_are_refused(ratios):
    with pytest.raises(ValueError, match="positive"):
        cut(4, ratios)


@settings(deadline=None)
@given(
    num_rows=st.integers(0, 500),
    ratios=st.lists(st.integers(1, 1000), min_size=1, max_size=9),
    minimum=st.integers(0, 3),
    unit=st.sampled_from([1, 2]),
)
def test_minimum_and_unit_are_kept_and_nothing_is_lost(num_rows, ratios, minimum, unit):
    shares = cut(num_rows, ratios, minimum=minimum, unit=unit)
    assert sum(shares) == num_rows
    assert all(share % unit == 0 for share in shares[:-1])
    enough = num_rows // unit >= len(ratios) * -(-minimum // unit)
    if enough:
        assert min(shares) >= minimum
    order = sorted(range(len(ratios) - 1), key=lambda rank: ratios[rank])
    # Nobody with a larger ratio has fewer rows, beside the last rank, which takes the odd row.
    assert all(shares[low] <= shares[high] + unit for low, high in pairwise(order))
