"""Shares that change: announced ahead, within bounds, exact, and written down for other runs to begin with."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import ConfigError
from flodl_pipe.sampling.share_plan import AutoShares, SharePlan, fit, most_rows, rows_of, text_of


def test_what_is_announced_holds_from_its_tick_on():
    plan = SharePlan((4, 4), lead_steps=3, most=(7, 7))
    plan.announce(3, (6, 2))
    assert [plan.at(tick) for tick in range(3)] == [(4, 4)] * 3
    for tick in range(1, 4):
        assert plan.advance() == plan.tick == tick
    assert (plan.at(2), plan.at(3), plan.now, plan.announced) == ((4, 4), (6, 2), (6, 2), (6, 2))


def test_no_tick_is_told_that_an_announcement_may_still_change():
    plan = SharePlan((4, 4), lead_steps=3, most=(7, 7))
    assert (plan.at(2), plan.horizon) == ((4, 4), 3)
    with pytest.raises(ValueError, match="shares of tick 3 are not settled at tick 0"):
        plan.at(3)
    plan.advance()
    assert plan.at(3) == (4, 4)


@pytest.mark.parametrize(
    ("tick", "rows", "says"),
    [
        (4, (5, 3), "come too late at tick 2: readers are up to 3 steps ahead"),
        (5, (5, 4), "sum to 8"),
        (5, (5, 2, 1), "one for each of 2 ranks"),
        (5, (8, 0), "lie between 1 and"),
        (5, (1, 7), r"lie between 1 and \(7, 6\)"),
    ],
)
def test_an_announcement_that_comes_late_or_does_not_fit_is_refused(tick, rows, says):
    plan = SharePlan((4, 4), lead_steps=3, most=(7, 6))
    plan.advance()
    plan.advance()
    with pytest.raises(ValueError, match=says):
        plan.announce(tick, rows)


def test_the_listener_hears_of_every_step_and_is_not_kept():
    class Listener:
        ticks = ()

        def hear(self, tick):
            self.ticks += (tick,)

    import weakref

    listener, plan = Listener(), SharePlan((1, 1), lead_steps=2, most=(1, 1))
    plan.on_advance(weakref.WeakMethod(listener.hear))
    plan.advance()
    plan.advance()
    assert listener.ticks == (1, 2)
    del listener
    plan.advance()
    assert plan.tick == 3


def test_a_plan_begins_anew_in_the_proportions_of_another():
    plan = SharePlan((8, 8, 8), lead_steps=2, most=(12, 12, 12))
    plan.advance()
    plan.restart(plan.like((1, 1, 100)))
    assert (plan.tick, plan.now) == (0, (6, 6, 12))


def test_bounds_of_a_rank():
    assert most_rows((10, 10, 10)) == (28, 28, 28)  # three times would leave nothing for the others
    assert most_rows((4, 4, 40)) == (12, 12, 46)
    assert most_rows((10, 10), unit=2) == (18, 18)
    assert most_rows((10, 10), max_rows=14) == (14, 14)
    with pytest.raises(ConfigError, match="9 rows are fewer than the first share of rank 1, 12 of 18"):
        most_rows((6, 12), max_rows=9)
    with pytest.raises(ValueError, match="at least 2"):
        AutoShares(1)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), ranks=st.integers(1, 9), unit=st.integers(1, 3))
def test_rows_are_split_within_bounds_and_by_weight(data, ranks, unit):
    least = [unit * data.draw(st.integers(1, 4)) for _ in range(ranks)]
    most = [low + data.draw(st.integers(0, 30)) for low in least]
    rest = data.draw(st.integers(0, unit - 1))
    low = sum(least) // unit
    high = sum(value // unit for value in [*most[:-1], most[-1] - rest])
    if high < low or (most[-1] - rest) // unit < -(-(least[-1] - rest) // unit):
        return  # nothing fits
    num_rows = data.draw(st.integers(low, high)) * unit + rest
    weights = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=ranks, max_size=ranks))
    rows = fit(weights, num_rows, least=least, most=most, unit=unit)
    assert sum(rows) == num_rows
    assert all(a <= share <= b for a, share, b in zip(least, rows, most, strict=True))
    assert all(share % unit == 0 for share in rows[:-1])
    for one in range(ranks):  # who weighs more has no less, unless it is at its bound
        for other in range(ranks):
            if weights[one] > weights[other] and rows[one] + 2 * unit <= rows[other]:
                assert rows[one] + unit > most[one] or rows[other] - unit < least[other] or ranks - 1 in (one, other)


def test_bounds_without_room_are_refused():
    with pytest.raises(ValueError, match="9 rows do not fit"):
        fit((1, 1), 9, least=(1, 1), most=(4, 4))


def test_shares_are_written_by_name_and_read_in_any_order():
    text = text_of((25, 25, 46), ("a/0", "a/1", "b/0"))
    assert text == "a/0=25 a/1=25 b/0=46" == text_of((46, 25, 25), ("b/0", "a/1", "a/0"))
    assert rows_of(text, ("b/0", "a/0", "a/1")) == (46, 25, 25)
    assert rows_of("a=b/0=7 x/1=1", ("a=b/0", "x/1")) == (7, 1)


@pytest.mark.parametrize(
    "text", ["", "a/0=1", "a/0=1 a/1=2 b/0=3", "a/0=1 b/1=x", "a/0=0 b/1=2", "nonsense", "=", "a/0="]
)
def test_shares_of_other_ranks_or_damaged_ones_are_none(text):
    assert rows_of(text, ("a/0", "b/1")) is None
