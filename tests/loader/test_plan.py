"""The plan: pure arithmetic from sizes, knobs and shares, a reason with every choice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.errors import StagingError
from flodl_pipe.loader.plan import Knobs, Sizes, plan_engine
from flodl_pipe.memory.budget import Grant

MIB, GIB = 1 << 20, 1 << 30
AUTO = Knobs("auto", "auto", "auto")


def sizes(**changes):
    tokens = {
        "step_rows": 32,
        "num_steps": 6103,
        "stored_row_bytes": 2050,
        "slot_bytes": 512 << 10,
        "resident_bytes": 400 * 10**6,
        "thread_safe": True,
    }
    return Sizes(**{**tokens, **changes})


def plan(knobs=AUTO, share=8 * GIB, held=0, cpus=2, available=1 << 60, **changes):
    return plan_engine(
        knobs,
        sizes(**changes),
        share=Grant(share, "a test"),
        held_bytes=held,
        available_bytes=available,
        num_cpus=cpus,
    )


def test_tokens_that_fit_are_resident_beside_a_ring():
    found = plan()
    assert (found.mode, found.resident_bytes) == ("resident", 400 * 10**6)
    assert (found.num_readers, found.group_steps, found.handover_group_steps, found.depth) == (1, 20, 15, 80)
    assert found.ring_bytes < 55 * MIB


def test_what_does_not_fit_is_streamed_and_both_numbers_are_said():
    found = plan(resident_bytes=9 * GIB)
    assert found.mode == "streaming"
    assert found.why.startswith("the whole set takes 9.00 GiB, and only 7.9")


def test_what_others_hold_counts():
    assert plan(resident_bytes=5 * GIB).mode == "resident"
    assert plan(resident_bytes=5 * GIB, held=4 * GIB).mode == "streaming"


def test_forcing_what_cannot_fit_is_refused():
    with pytest.raises(StagingError, match=r"the whole set takes 9\.00 GiB, and 7\.9\d GiB.*\(a test\).*ram_max_usage"):
        plan(Knobs("resident", "auto", "auto"), resident_bytes=9 * GIB)


def test_readers_follow_the_processors_and_the_source():
    assert [plan(cpus=cpus).num_readers for cpus in (1, 2, 3, 64)] == [1, 1, 2, 4]
    assert plan(cpus=64, thread_safe=False).num_readers == 1
    assert plan(Knobs("auto", "auto", 9), cpus=1).num_readers == 9


def test_a_given_depth_is_kept():
    found = plan(Knobs("auto", 5, "auto"))
    assert found.depth == 5
    assert found.group_steps == 2


def test_inline_reads_one_step_at_a_time():
    found = plan(Knobs("auto", "auto", 0))
    assert (found.depth, found.group_steps, found.step_parts) == (1, 1, 1)


def test_large_steps_are_split_among_readers():
    image_batch = {"step_rows": 512, "stored_row_bytes": 150_528, "slot_bytes": 512 * 150_528}
    found = plan(cpus=8, **image_batch)
    assert (found.group_steps, found.step_parts, found.depth) == (1, 4, 4)


def test_nothing_is_read_ahead_beyond_an_epoch():
    found = plan(Knobs("auto", 100_000, "auto"), num_steps=20)
    assert (found.depth, found.num_slots) == (20, 32)


def test_a_depth_beyond_the_share_is_refused_with_both_numbers():
    with pytest.raises(
        StagingError, match=r"loader.prefetch=4000: 4000 steps .* take 1\.9\d GiB, and 1\.00 GiB may be held"
    ):
        plan(Knobs("auto", 4000, "auto"), share=GIB)


def test_a_share_below_the_smallest_ring_means_the_smallest_ring():
    found = plan(share=0)
    assert (found.mode, found.depth, found.group_steps, found.num_slots) == ("streaming", 2, 1, 4)
    assert "the smallest ring, 2 steps ahead; a test is less" in found.share.reason


def test_a_step_beyond_the_machine_is_refused():
    with pytest.raises(StagingError, match=r"a step of 32 rows takes 512 KiB, .* but 1\.00 MiB of memory is available"):
        plan(share=0, available=MIB)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.integers(1, 10_000),
    row=st.integers(1, 1 << 20),
    widen=st.integers(1, 8),
    share=st.integers(0, 64 * GIB),
    cpus=st.integers(1, 64),
    prefetch=st.sampled_from(["auto", 1, 2]),
    readers=st.sampled_from(["auto", 0, 1, 7]),
)
def test_whatever_the_sizes_grants_are_consistent(rows, row, widen, share, cpus, prefetch, readers):
    slot = -(-rows * row * widen // 4096) * 4096
    found = plan(
        Knobs("auto", prefetch, readers), share, cpus=cpus, step_rows=rows, stored_row_bytes=row, slot_bytes=slot
    )
    assert 1 <= found.handover_group_steps <= found.group_steps <= found.depth
    assert found.num_slots * slot <= found.ring_bytes
    assert found.ring_bytes + found.resident_bytes <= found.share.num_bytes
    assert found.step_parts == 1 or found.group_steps == 1
