"""The device budget: what is left below the line, discounted by how little is known, and split in whole slabs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.budget import Grant
from flodl_pipe.memory.device_budget import (
    DeviceFigures,
    derived_reserve_bytes,
    device_budget,
    pool_grant,
    resident_decision,
    slab_rows,
)

MIB, GIB = 1 << 20, 1 << 30
EMPTY = DeviceFigures(16 * GIB, 16 * GIB)


def budget(figures, knowledge="honest", reserve=0, usage=0.75):
    return device_budget(figures, vram_max_usage=usage, knowledge=knowledge, activation_reserve_bytes=reserve)


@pytest.mark.parametrize(
    ("knowledge", "expected"), [("unknown", 3 * GIB), ("derived", 4 * GIB), ("stated", 8 * GIB), ("honest", 8 * GIB)]
)
def test_the_less_is_known_of_a_step_the_less_is_taken(knowledge, expected):
    reserve = 0 if knowledge == "unknown" else GIB
    assert budget(DeviceFigures(16 * GIB, 13 * GIB), knowledge, reserve).num_bytes == expected


def test_the_reason_has_every_number():
    grant = budget(DeviceFigures(16 * GIB, 13 * GIB, held_bytes=GIB), "derived", GIB)
    assert str(grant) == (
        "4.50 GiB: vram_max_usage 0.75 of 16.0 GiB - 2.00 GiB in use by others - 1.00 GiB reserved for activations; "
        "1/2 of that before the first step, with a derived reserve"
    )


def test_what_we_hold_ourselves_is_not_held_against_us():
    before = budget(DeviceFigures(16 * GIB, 14 * GIB))
    after = budget(DeviceFigures(16 * GIB, 9 * GIB, held_bytes=5 * GIB))
    assert before.num_bytes == after.num_bytes == 10 * GIB


def test_a_reserve_is_of_no_account_while_nothing_is_known():
    assert budget(EMPTY, "unknown", GIB).num_bytes == budget(EMPTY, "unknown").num_bytes


def test_the_peak_of_a_step_counts_after_its_activations_are_gone():
    figures = DeviceFigures(16 * GIB, 12 * GIB, held_bytes=2 * GIB, peak_others_bytes=5 * GIB)
    grant = budget(figures)
    assert grant.num_bytes == 7 * GIB
    assert "5.00 GiB in use by others at their peak" in grant.reason
    assert budget(figures, reserve=4 * GIB).num_bytes == 6 * GIB


@settings(deadline=None)
@given(
    total=st.integers(1, 1 << 40),
    free=st.floats(0, 1),
    held=st.floats(0, 1),
    peak=st.integers(0, 1 << 40),
    reserve=st.integers(0, 1 << 40),
    usage=st.floats(0.5, 0.99),
    knowledge=st.sampled_from(["unknown", "derived", "stated", "honest"]),
)
def test_it_is_never_negative_and_never_more_than_free_and_held(total, free, held, peak, reserve, usage, knowledge):
    free_bytes = int(free * total)
    held_bytes = int(held * (total - free_bytes))
    figures = DeviceFigures(total, free_bytes, held_bytes, peak)
    grant = device_budget(figures, vram_max_usage=usage, knowledge=knowledge, activation_reserve_bytes=reserve)
    assert 0 <= grant.num_bytes <= free_bytes + held_bytes


def test_a_derived_reserve_is_gradients_and_two_moments():
    assert derived_reserve_bytes(GIB) == 3 * GIB


def test_slabs_are_a_64th_of_the_set_within_bounds():
    assert slab_rows(1024, 10) == 10
    assert slab_rows(1024, 1_000_000) * 1024 == 1_000_000 * 1024 // 64
    assert slab_rows(1024, 100_000) * 1024 == 100_000 * 1024 // 64 // 1024 * 1024
    assert slab_rows(1024, 20_000) == 1024
    assert slab_rows(1 << 20, 1_000_000) == 64
    assert slab_rows(200 * MIB, 1_000_000) == 1


def test_the_pool_gets_whole_slabs_of_what_the_steps_leave():
    grant = pool_grant(100 * MIB, 10 * MIB, 1024, 640 * 1024)
    assert grant.num_bytes == 90 * MIB
    assert "92,160 of 655,360 rows in 9 slabs of 10.0 MiB" in grant.reason
    assert "90.0 MiB of the device budget of 100 MiB is left beside 10.0 MiB for steps in flight" in grant.reason


def test_the_pool_is_never_more_than_the_set():
    grant = pool_grant(GIB, 0, 1000, 12_345)
    assert grant.num_bytes == 12_345_000
    assert "the whole set of 12,345 rows" in grant.reason


def test_the_pool_is_nothing_where_not_one_slab_fits():
    assert pool_grant(GIB, GIB - MIB + 1, 1024, 1 << 20).num_bytes == 0
    assert pool_grant(10, 20, 1024, 1 << 20).num_bytes == 0


@settings(deadline=None)
@given(st.integers(0, 1 << 34), st.integers(0, 1 << 34), st.integers(0, 1 << 22), st.integers(0, 1 << 22))
def test_the_pool_stays_in_its_budget(budget_bytes, depth_bytes, row_bytes, num_rows):
    grant = pool_grant(budget_bytes, depth_bytes, row_bytes, num_rows)
    assert 0 <= grant.num_bytes <= min(max(0, budget_bytes - depth_bytes), row_bytes * num_rows)
    assert row_bytes == 0 or grant.num_bytes % row_bytes == 0


def decide(set_bytes, figures=EMPTY, *, usage=0.9, **knobs):
    return resident_decision(set_bytes, figures, budget=budget(figures, usage=usage), **knobs)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"forced": True}, "loader.mode=resident"),
        ({"activation_reserve_bytes": 0}, "loader.activation_reserve states 0 B"),
        ({"model_bytes_on_device": GIB}, "the model is on the device already (1.00 GiB)"),
        ({"is_honest": True}, "a whole training step was seen"),
    ],
)
def test_a_set_that_fits_is_resident_once_that_is_safe_to_know(knobs, words):
    verdict, why = decide(8 * GIB, **knobs)
    assert verdict == "resident"
    assert words in why
    assert "the whole set takes 8.00 GiB, and 75 % of 16.0 GiB free on the device is 12.0 GiB" in why


def test_a_set_that_fits_an_empty_device_waits_for_the_second_batch():
    verdict, why = decide(8 * GIB)
    assert verdict == "promote"
    assert "8.00 GiB" in why
    assert "12.0 GiB" in why


def test_a_small_set_does_not_wait():
    assert decide(16 * GIB // 10)[0] == "resident"
    assert decide(16 * GIB // 10 + 1)[0] == "promote"


def test_a_set_beyond_three_quarters_of_free_streams():
    assert decide(12 * GIB, is_honest=True)[0] == "resident"
    verdict, why = decide(12 * GIB + 1, is_honest=True)
    assert verdict == "stream"
    assert "but 75 % of 16.0 GiB free on the device is 12.0 GiB" in why


def test_a_set_beyond_the_budget_streams():
    verdict, why = decide(9 * GIB, usage=0.5, is_honest=True)
    assert verdict == "stream"
    assert "the device budget is 8.00 GiB (vram_max_usage 0.5 of 16.0 GiB" in why


def test_what_the_pool_holds_already_is_room_for_the_set():
    figures = DeviceFigures(16 * GIB, 4 * GIB, held_bytes=8 * GIB)
    assert decide(9 * GIB, figures, is_honest=True)[0] == "resident"


def test_a_forced_set_that_cannot_fit_is_refused_with_both_numbers():
    with pytest.raises(
        StagingError, match=r"loader\.mode=resident, but the whole set takes 13\.0 GiB, and 75 % of 16\.0 GiB free"
    ) as told:
        decide(13 * GIB, forced=True)
    assert "12.0 GiB; use loader.mode=auto or streaming" in str(told.value)


def test_the_budget_of_a_decision_is_taken_as_given():
    verdict, why = resident_decision(100, EMPTY, budget=Grant(99, "a test"), is_honest=True)
    assert (verdict, why) == ("stream", "the whole set takes 100 B, but the device budget is 99 B (a test)")
