"""Numbers as text."""

import doctest

import pytest

from flodl_pipe.reports import figures


def test_the_examples_hold():
    assert doctest.testmod(figures).failed == 0


@pytest.mark.parametrize(
    ("per_s", "text"),
    [
        (0, "0"),
        (0.0421, "0.042"),
        (9.994, "9.99"),
        (99.94, "99.9"),
        (99999.4, "99,999"),
        (100_000, "100 k"),
        (999_499, "999 k"),
        (1e6, "1.00 M"),
        (57_338_484, "57.3 M"),
        (574e6, "574 M"),
        (2.5e9, "2.50 G"),
    ],
)
def test_a_short_rate_has_at_most_seven_characters(per_s, text):
    assert figures.short_rate(per_s) == text
    assert len(text) <= 7


def test_a_clock_rolls_over():
    assert [figures.clock(seconds) for seconds in (0, 59.4, 59.6, 3599.6, 86400)] == [
        *("0:00", "0:59", "1:00", "1:00:00", "24:00:00")
    ]
