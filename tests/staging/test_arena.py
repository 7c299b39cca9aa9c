"""Memory of tiers: zeroed, resident only where it was written, refused with a remedy.

White box: the call that joins pages is counted.
"""

from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import StagingError
from flodl_pipe.memory.probe import resident_set_bytes
from flodl_pipe.staging import arena
from flodl_pipe.staging.arena import join_pages, reserve
from flodl_pipe.staging.ranking import StorageOrder
from tests.contract.tiers import Stamped, offer, read_tier
from tests.staging.caches import after, cache_of

MIB = 1 << 20


def test_what_is_not_written_takes_no_memory() -> None:
    before = resident_set_bytes()
    memory = reserve(1 << 30)
    assert len(memory) == 1 << 30
    memory[: 4 * MIB] = 1
    assert resident_set_bytes() - before < 64 * MIB
    assert not memory[4 * MIB : 4 * MIB + 100].any()


def test_rows_taken_in_here_and_there_take_about_their_own_size() -> None:
    source = Stamped(200_000, SampleSpec.of(x=("uint8", (3_072,))))
    cache = cache_of(source, StorageOrder(200_000), 0, 200_000)
    some = np.random.default_rng(0).permutation(200_000)[:1_000]
    out = source.spec.empty(1_000)
    source.read_into(some, np.arange(1_000), out)
    before = resident_set_bytes()
    cache.offer(some, np.arange(1_000), out)
    assert cache.read_into(some, np.arange(1_000), out).all()
    assert resident_set_bytes() - before < 32 * MIB


def test_what_the_system_refuses_is_said_with_a_remedy() -> None:
    with pytest.raises(StagingError, match=r"no memory for a tier of .*; lower loader\.ram_max_usage"):
        reserve(1 << 62)


def large_pages_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


def test_rows_that_are_whole_get_large_pages_and_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    num_joined = 0
    advise = arena._madvise()

    def counted(address: int, num_bytes: int, advice: int) -> int:
        nonlocal num_joined
        refused = advise(address, num_bytes, advice)
        num_joined += num_bytes == 2 * MIB and not refused
        return refused

    source = Stamped(7_000, SampleSpec.of(x=("uint8", (3_072,))))
    cache = cache_of(source, StorageOrder(7_000), 0, 7_000)
    for some in np.array_split(np.random.default_rng(0).permutation(7_000), 20):
        offer(cache, source, some)
    assert cache.is_full
    source.reads.clear()
    before = large_pages_bytes()
    monkeypatch.setattr(arena, "_madvise", lambda: counted)
    cache.fill(lambda: False)
    grown = large_pages_bytes() - before
    assert source.reads == []
    for some in np.array_split(np.random.default_rng(1).permutation(7_000), 20):
        assert read_tier(cache, source, some).all()
    if not num_joined:
        pytest.skip("this kernel does not join pages, or has no memory for it")
    assert grown >= num_joined * MIB  # half of them: others may have been taken apart again


@pytest.mark.parametrize("num_bytes", [0, 1, 2 * MIB - 1, 2 * MIB, 9 * MIB + 17])
def test_joining_pages_keeps_the_bytes_and_stops_when_told(num_bytes: int) -> None:
    memory = reserve(num_bytes, scattered=True)
    memory[:] = np.arange(num_bytes) % 251
    join_pages(memory, stop=after(2), yields=lambda: None)
    join_pages(memory, stop=lambda: False, yields=lambda: None)
    np.testing.assert_array_equal(memory, (np.arange(num_bytes) % 251).astype(np.uint8))
