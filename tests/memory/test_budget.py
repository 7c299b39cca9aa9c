"""The budget neither ratchets up nor starves, and says how it came to its figure."""

import pytest

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.budget import (
    Grant,
    floor_bytes,
    host_share,
    local_share,
    may_grow,
    require_batch,
    split_host,
)
from flodl_pipe.memory.probe import HostMemory

GIB = 1 << 30


def test_the_share_is_taken_of_available_and_held():
    before = host_share(HostMemory(16 * GIB, 8 * GIB, "host"), ram_max_usage=0.5, held_bytes=0)
    after = host_share(HostMemory(16 * GIB, 5 * GIB, "host"), ram_max_usage=0.5, held_bytes=3 * GIB)
    assert before.num_bytes == after.num_bytes == 4 * GIB
    assert "3.00 GiB held" in after.reason


def test_the_reason_names_a_control_group():
    grant = host_share(HostMemory(GIB, GIB, "cgroup"), ram_max_usage=0.25, held_bytes=0)
    assert str(grant) == "256 MiB: ram_max_usage 0.25 of 1.00 GiB available (control group limit)"


def test_the_floor_is_at_least_256_mib():
    assert floor_bytes(HostMemory(GIB, GIB, "host")) == 256 << 20
    assert floor_bytes(HostMemory(1000 * GIB, GIB, "host")) == 20 * GIB


def test_an_integrated_gpus_reserve_is_taken_off_before_the_share():
    memory = HostMemory(16 * GIB, 8 * GIB, "host")
    grant = host_share(memory, ram_max_usage=0.5, held_bytes=GIB, reserve_bytes=3 * GIB)
    assert grant.num_bytes == 3 * GIB
    assert "1.00 GiB held - 3.00 GiB reserved for the integrated GPU" in grant.reason
    assert host_share(memory, ram_max_usage=0.5, held_bytes=0, reserve_bytes=9 * GIB).num_bytes == 0


def test_ranks_of_one_host_divide_its_share():
    memory = HostMemory(16 * GIB, 8 * GIB, "host")
    grant = host_share(memory, ram_max_usage=0.5, held_bytes=0, share_of_host=0.25)
    assert grant.num_bytes == GIB
    assert grant.reason.endswith("8.00 GiB available, of that 0.25 for this rank")


def test_ranks_of_one_host_neither_ratchet_up_nor_starve_when_they_know_of_each_other():
    free = 8 * GIB
    held = [0, 0]
    for _ in range(3):
        for rank in range(2):
            memory = HostMemory(16 * GIB, free - sum(held), "host")
            share = host_share(
                memory, ram_max_usage=0.5, held_bytes=held[rank], share_of_host=0.5, co_held_bytes=held[1 - rank]
            )
            held[rank] = share.num_bytes
    assert held == [2 * GIB, 2 * GIB]


def test_the_number_of_local_ranks_is_the_share_where_nothing_else_is_known():
    assert local_share({"LOCAL_WORLD_SIZE": "8"}) == 0.125
    assert local_share({"LOCAL_WORLD_SIZE": ""}) == local_share({"RANK": "3"}) == 1


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5", "\u00b2"])
def test_a_number_of_local_ranks_that_is_none_is_refused(text):
    with pytest.raises(StagingError, match=r"LOCAL_WORLD_SIZE='.*a whole number of at least 1"):
        local_share({"LOCAL_WORLD_SIZE": text})


def test_the_ram_cache_gets_what_ring_and_others_leave():
    grant = split_host(Grant(100, "a test"), ring_bytes=30, held_bytes=50)
    assert str(grant) == (
        "20 B: 20 B of the host grant of 100 B is left beside 30 B for the ring and 50 B held already (a test)"
    )
    assert split_host(Grant(100, "a test"), ring_bytes=80, held_bytes=50).num_bytes == 0
    assert split_host(Grant(100, "a test"), ring_bytes=30, held_bytes=50, set_bytes=20).reason.startswith("all rows;")
    assert split_host(Grant(100, "a test"), ring_bytes=30, held_bytes=0, set_bytes=60).num_bytes == 60
    assert split_host(Grant(100, "a test"), ring_bytes=30, held_bytes=0, set_bytes=80).num_bytes == 70


def test_a_control_group_below_one_batch_is_named():
    memory = HostMemory(512 << 20, 100 << 20, "cgroup", 512 << 20)
    require_batch(memory, 100 << 20)
    with pytest.raises(
        StagingError,
        match=r"one batch of 4,096 rows takes 1\.00 GiB, but the control group's memory limit is 512 MiB, and 100 MiB "
        r"of it is available; lower loader\.batch_size, or raise the limit",
    ):
        require_batch(memory, GIB, num_rows=4096)


def test_a_host_below_one_batch_is_named():
    with pytest.raises(StagingError, match=r"one batch takes 2\.00 GiB, but 1\.00 GiB of memory is available"):
        require_batch(HostMemory(2 * GIB, GIB, "host"), 2 * GIB)


def test_a_tier_grows_only_above_the_floor():
    memory = HostMemory(4 * GIB, (256 << 20) + 64, "host")
    assert may_grow(memory, 64)
    assert not may_grow(memory, 65)
