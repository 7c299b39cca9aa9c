"""When the device is looked at again, what is taken then, and who decides."""

import pytest

from flodl_pipe.errors import LoaderError, StagingError
from flodl_pipe.memory.depth_policy import DepthPolicy, StepSizes
from flodl_pipe.memory.device_budget import DeviceFigures

MIB, GIB = 1 << 20, 1 << 30
EMPTY = DeviceFigures(4 * GIB, 4 * GIB)
LOADED = DeviceFigures(4 * GIB, 3 * GIB)
SIZES = StepSizes(step_bytes=16 * MIB, num_steps=1000, row_bytes=MIB, num_rows=1 << 20)


def policy(**knobs):
    return DepthPolicy(SIZES, vram_max_usage=0.75, **knobs)


def test_a_run_with_nothing_known_goes_from_4_to_a_third_to_all():
    depths = policy()
    built = depths.at_build(EMPTY)
    assert (built.depth, built.budget.num_bytes, depths.knowledge) == (4, GIB, "unknown")
    started = depths.at_epoch(LOADED)
    assert (started.depth, started.budget.num_bytes) == (10, 2 * GIB // 3)
    assert depths.delivered(lambda: pytest.fail("one batch tells nothing")) is None
    honest = depths.delivered(lambda: DeviceFigures(4 * GIB, 3 * GIB, peak_others_bytes=3 * GIB // 2))
    assert (honest.budget.num_bytes, honest.depth, depths.knowledge) == (3 * GIB // 2, 24, "honest")
    assert depths.delivered(lambda: pytest.fail("once is enough")) is None
    assert depths.at_epoch(DeviceFigures(4 * GIB, 2 * GIB)).depth == 16
    assert depths.depth == depths.latest.depth == 16


def test_a_model_on_the_device_is_a_derived_reserve():
    depths = policy()
    depths.at_build(EMPTY)
    started = depths.at_epoch(LOADED, model_bytes=GIB // 4)
    assert depths.knowledge == "derived"
    assert started.budget.num_bytes == (2 * GIB - 3 * GIB // 4) // 2
    depths.delivered(lambda: LOADED)
    assert depths.delivered(lambda: LOADED).budget.num_bytes == 2 * GIB


def test_a_stated_reserve_takes_all_but_that_and_stays():
    depths = policy(activation_reserve_bytes=GIB)
    assert depths.at_build(EMPTY).budget.num_bytes == 2 * GIB
    assert depths.knowledge == "stated"
    depths.delivered(lambda: LOADED)
    assert depths.delivered(lambda: LOADED).budget.num_bytes == GIB
    assert depths.set_activation_reserve(None, LOADED).budget.num_bytes == 2 * GIB
    assert depths.set_activation_reserve(GIB // 2, LOADED).budget.num_bytes == 3 * GIB // 2
    with pytest.raises(LoaderError, match=r"set_activation_reserve\(-1\): the reserve must be at least 0 bytes"):
        depths.set_activation_reserve(-1, LOADED)


def test_the_pool_gets_what_the_steps_leave():
    depths = policy()
    allowance = depths.at_build(EMPTY)
    assert allowance.pool.num_bytes == GIB - 4 * 16 * MIB
    assert depths.at_epoch(LOADED).pool.num_bytes <= 2 * GIB // 3 - 10 * 16 * MIB


def test_a_forced_depth_stays_through_every_probe():
    depths = policy(forced=7)
    assert not depths.is_automatic
    assert depths.at_build(EMPTY).depth == 7
    assert depths.at_epoch(LOADED).depth == 7
    # What was allowed once is no error in the middle of a run.
    assert depths.at_epoch(DeviceFigures(4 * GIB, 0)).depth == 7


def test_a_forced_depth_is_held_against_the_whole_budget_at_build():
    assert policy(forced=192).at_build(EMPTY).depth == 192
    with pytest.raises(StagingError, match=r"prefetch depth 193: .* the device budget is 3\.00 GiB, enough for 192"):
        policy(forced=193).at_build(EMPTY)


def test_setting_the_depth_ends_its_adaptation():
    depths = policy()
    depths.at_build(EMPTY)
    assert depths.set_prefetch_depth(9, LOADED).depth == 9
    assert not depths.is_automatic
    assert depths.at_epoch(LOADED).depth == 9
    with pytest.raises(LoaderError, match="the depth must be at least 1"):
        depths.set_prefetch_depth(0, LOADED)
    with pytest.raises(StagingError, match="prefetch depth 1000"):
        depths.set_prefetch_depth(1000, LOADED)
    assert depths.at_epoch(LOADED).depth == 9


def test_resizing_once_ends_the_adaptation_too():
    depths = policy(forced=3)
    depths.at_build(EMPTY)
    assert depths.auto_resize(LOADED).depth == 10
    assert not depths.is_automatic
    assert depths.at_epoch(DeviceFigures(4 * GIB, 4 * GIB)).depth == 10


def test_out_of_memory_overrules_every_later_probe():
    depths = policy()
    depths.at_build(EMPTY)
    rung = depths.out_of_memory()
    assert (rung.action, rung.depth, depths.depth) == ("depth", 2, 2)
    later = depths.at_epoch(LOADED)
    assert (later.depth, later.why) == (2, "2 steps, for the device ran out of memory with more")
    assert depths.out_of_memory().depth == 1
    rung = depths.out_of_memory(pool_bytes=256 * MIB)
    assert (rung.action, rung.pool_bytes) == ("pool", 128 * MIB)
    assert depths.at_epoch(LOADED).pool.num_bytes == 128 * MIB
    assert depths.auto_resize(LOADED).depth == 10
    assert depths.latest.pool.num_bytes > 128 * MIB


def test_out_of_memory_overrules_a_forced_depth():
    depths = policy(forced=8)
    depths.at_build(EMPTY)
    depths.out_of_memory()
    assert depths.at_epoch(LOADED).depth == 4
    assert depths.set_prefetch_depth(8, LOADED).depth == 8


def test_without_a_pool_there_is_none():
    sizes = StepSizes(step_bytes=MIB, num_steps=10, row_bytes=100, num_rows=0)
    depths = DepthPolicy(sizes, vram_max_usage=0.9)
    assert depths.at_build(EMPTY).pool.num_bytes == 0
    assert [depths.out_of_memory().action for _ in range(4)] == ["depth", "depth", "latch", "nothing"]


def test_before_the_first_probe_the_depth_is_1():
    depths = policy()
    assert (depths.depth, depths.latest, depths.is_automatic) == (1, None, True)
    assert depths.out_of_memory().action == "latch"
