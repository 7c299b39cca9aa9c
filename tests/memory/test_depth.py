"""Depth: enough steps to overlap, not everything there is, and the user's number if it fits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.depth import depth_and_reason, depth_for

MIB = 1 << 20


def depth(budget_mib, *, at_build=False, forced=None, num_steps=10_000, **others):
    return depth_for(budget_mib * MIB, MIB, at_build=at_build, forced=forced, num_steps=num_steps, **others)


def test_at_build_it_is_4_or_what_fits():
    assert [depth(budget, at_build=True) for budget in (1000, 4, 3, 2, 1, 0)] == [4, 4, 3, 2, 1, 1]


def test_later_it_fills_a_quarter_of_the_budget_up_to_64():
    assert [depth(budget) for budget in (10_000, 256, 100, 12, 8, 4, 2, 1, 0)] == [64, 64, 25, 3, 2, 2, 2, 1, 1]


def test_an_epoch_is_never_longer_than_it_is():
    assert depth(1000, num_steps=3) == 3
    assert depth(1000, num_steps=3, at_build=True) == 3
    assert depth(1000, num_steps=3, forced=500) == 3


def test_a_forced_depth_wins():
    assert depth(100, forced=100) == 100
    assert depth(100, forced=1, at_build=True) == 1
    assert depth(0, forced=1) == 1


def test_a_forced_depth_that_does_not_fit_is_refused():
    with pytest.raises(
        StagingError,
        match=r"prefetch depth 101: 101 steps in flight of 1\.00 MiB take 101 MiB, and the device budget is 100 MiB, "
        r"enough for 100; lower loader\.prefetch",
    ):
        depth(100, forced=101)


def test_a_forced_depth_is_held_against_the_budget_without_a_discount():
    assert depth(33, forced=90, forced_budget_bytes=100 * MIB) == 90


@pytest.mark.parametrize(
    ("budget", "knobs", "words"),
    [
        (1000, {}, "64 steps, more would hide nothing"),
        (40, {}, "10 steps, a quarter of the budget"),
        (1, {}, "1 step, for not even 2 fit: 1.00 MiB each, of a device budget of 1.00 MiB"),
        (1000, {"at_build": True}, "4 steps until training starts"),
        (1000, {"num_steps": 5}, "5 steps, a whole epoch"),
        (1000, {"forced": 7}, "7 steps, as asked for"),
    ],
)
def test_it_says_why(budget, knobs, words):
    knobs = {"at_build": False, "forced": None, "num_steps": 1000, **knobs}
    assert words in depth_and_reason(budget * MIB, MIB, **knobs)[1]


@settings(deadline=None)
@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30), st.booleans(), st.integers(0, 1 << 20))
def test_more_than_one_step_always_fits(budget_bytes, step_bytes, at_build, num_steps):
    found = depth_for(budget_bytes, step_bytes, at_build=at_build, forced=None, num_steps=num_steps)
    assert 1 <= found <= max(64, 1)
    assert found == 1 or found * step_bytes <= budget_bytes
