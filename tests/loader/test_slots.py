"""Slots: side by side, reused when their lease ends, unmapped when they were one slab too many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.loader.slots import SlotLayout, SlotPool

SPEC = SampleSpec.of(flag=("uint8", ()), grid=("float64", (3, 2)))


@pytest.fixture
def layout():
    return SlotLayout(SPEC, 5)


def test_fields_are_aligned_and_slots_start_on_pages(layout):
    assert layout.offsets == [0, 64]
    assert layout.slot_bytes == 4096


def test_group_views_and_lease_views_are_the_same_memory(layout):
    pool = SlotPool(layout, 4)
    (run,) = pool.take(3)
    views = layout.group_views(run, 5)
    assert views["grid"].shape == (3, 5, 3, 2)
    for name, view in views.items():
        view[...] = np.arange(view.size).reshape(view.shape) % 200
        assert name in SPEC.names
    flags, grids = pool.lease([run], 3, 5)
    assert [len(flags), len(grids)] == [3, 3]
    for slot, (flag, grid) in enumerate(zip(flags, grids, strict=True)):
        assert np.array_equal(flag, views["flag"][slot])
        assert np.array_equal(grid, views["grid"][slot])
        assert grid.flags.c_contiguous


def test_full_steps_of_a_run_follow_each_other_without_a_gap():
    layout = SlotLayout(SampleSpec.of(image=("uint8", (16, 16)), label=("int64", ())), 8)
    pool = SlotPool(layout, 6)
    pool.take(1)
    (run,) = pool.take(4)
    views = layout.group_views(run, 8)
    assert all(view.flags.c_contiguous for view in views.values())
    assert not np.shares_memory(*views.values())
    assert not layout.group_views(run, 7)["image"].flags.c_contiguous


def test_slots_of_several_runs_are_leased_in_order(layout):
    pool = SlotPool(layout, 2)
    runs = pool.take(5)
    for number, view in enumerate(layout.group_views(run, 5)["flag"] for run in runs):
        view[...] = number
    flags, _ = pool.lease(runs, 3, 5)
    assert [int(flag[0]) for flag in flags] == [0, 0, 1]


def test_a_slot_is_taken_again_only_when_its_lease_has_ended(layout):
    pool = SlotPool(layout, 2)
    (run,) = pool.take(2)
    flags, grids = pool.lease([run], 2, 5)
    (other,) = pool.take(1)
    assert pool.num_mapped == 4
    assert other.memory is not run.memory
    view = grids[0]
    del flags, grids
    (again,) = pool.take(1)
    assert again.first == run.first + 1  # the first one is still seen through `view`
    assert view.shape == (5, 3, 2)


def test_a_slot_that_was_never_leased_can_be_put_back(layout):
    pool = SlotPool(layout, 2)
    (run,) = pool.take(2)
    for slot in (run.first, run.first + 1):
        pool.put_back(slot)
    assert pool.take(2) == [run]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_slot_is_ever_held_twice(data):
    layout = SlotLayout(SPEC, 1)
    pool = SlotPool(layout, 6)
    held: dict[int, object] = {}
    for _ in range(40):
        if held and data.draw(st.booleans()):
            del held[data.draw(st.sampled_from(sorted(held)))]
        else:
            for run in pool.take(data.draw(st.integers(1, 9))):
                fields = pool.lease([run], run.num_slots, 1)
                for slot, views in enumerate(zip(*fields, strict=True), run.first):
                    assert slot not in held
                    held[slot] = views[slot % 2]  # either of them keeps the slot
                del fields, views
    most = pool.num_mapped
    held.clear()
    pool.take(1)
    assert pool.num_mapped <= 6 < most or most == 6


@pytest.mark.parametrize("opaque", [(True, True), (False, True), (False, False)])
def test_step_views_are_the_group_views_or_their_rows_as_opaque_items(layout, opaque):
    (run,) = SlotPool(layout, 4).take(3)
    views = layout.group_views(run, 4)
    for view in views.values():
        view[...] = np.arange(view.size).reshape(view.shape)
    for is_opaque, found, view in zip(opaque, layout.step_views(run, 4, opaque), views.values(), strict=True):
        if is_opaque:
            assert found.shape == (3, 4)
            assert found.tobytes() == view.tobytes()
            assert found[1].flags.c_contiguous
        else:
            np.testing.assert_array_equal(found, view)
