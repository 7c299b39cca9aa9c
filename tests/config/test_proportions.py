"""Exact proportions."""

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flodl_pipe.config.proportions import exact, quotas, smallest_block

WEIGHTS = st.lists(st.fractions(0, 100, max_denominator=1000), min_size=1, max_size=12).filter(any)


some = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@some
@given(total=st.integers(0, 10**6), weights=WEIGHTS)
def test_quotas_add_up_and_are_less_than_one_away(total, weights):
    found = quotas(total, weights)
    assert sum(found) == total
    for count, weight in zip(found, weights, strict=True):
        assert abs(count - total * weight / sum(weights)) < 1
        assert weight or not count


@some
@given(weights=WEIGHTS)
def test_the_smallest_block_gives_every_weight_a_place(weights):
    found = quotas(smallest_block(weights), weights)
    assert all(count > 0 for count, weight in zip(found, weights, strict=True) if weight)


@pytest.mark.parametrize(
    ("number", "fraction"),
    [(0.7, Fraction(7, 10)), (0.1, Fraction(1, 10)), (3, 3), (1e-3, Fraction(1, 1000)), (2.5e10, 25 * 10**9)],
)
def test_a_number_is_what_was_written(number, fraction):
    assert exact(number) == fraction


@pytest.mark.parametrize("weights", [[], [Fraction(0)], [Fraction(1), Fraction(-1)]])
def test_weights_that_split_nothing_are_refused(weights):
    with pytest.raises(ValueError, match="at least 0 and not all 0"):
        quotas(10, weights)


def test_what_is_left_over_goes_to_the_largest_remainders_first():
    assert quotas(10, [Fraction(1, 3)] * 3) == (4, 3, 3)
    assert quotas(10, [exact(0.24), exact(0.25), exact(0.51)]) == (2, 3, 5)
