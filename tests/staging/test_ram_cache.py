"""The RAM cache over sources in memory: the contract of tiers, what it admits, how it fills, when it stops."""

import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.staging.ram_cache import RamCache, rows_fitting
from flodl_pipe.staging.ranking import ByWeight, Ranking, StorageOrder
from tests.contract.tiers import SPECS, Stamped, TierContract, offer, read_tier

PLENTY = HostMemory(64 << 30, 32 << 30, "host")


def make_cache(
    source: Any, first_rank: int, num_ranks: int, *, ranking: Ranking | None = None, memory: HostMemory = PLENTY
) -> RamCache:
    return RamCache(
        source,
        ranking or StorageOrder(len(source)),
        first_rank=first_rank,
        num_ranks=num_ranks,
        read_lock=threading.Lock() if not source.thread_safe else contextlib.nullcontext(),
        probe=lambda: memory,
    )


def never() -> bool:
    return False


class TestFilledByOffers(TierContract):
    def make_tier(self, source: Stamped, folder: Path) -> RamCache:
        return make_cache(source, 20, 40)


class TestFilledAhead(TierContract):
    def make_tier(self, source: Stamped, folder: Path) -> RamCache:
        return make_cache(source, 20, 40)

    def fill(self, tier: Any, source: Stamped) -> None:
        tier.fill(never, chunk_bytes=3 * source.spec.row_bytes)


class TestByWeight(TierContract):
    def make_tier(self, source: Stamped, folder: Path) -> RamCache:
        ranking = ByWeight(np.arange(len(source)) % 7)
        return make_cache(source, 5, 45, ranking=ranking)


class TestAllOfIt(TierContract):
    def make_tier(self, source: Stamped, folder: Path) -> RamCache:
        return make_cache(source, 0, len(source))


@pytest.mark.parametrize("ahead", [False, True])
def test_exactly_the_range_is_held(ahead: bool) -> None:
    source = Stamped()
    cache = make_cache(source, 25, 20)
    if ahead:
        cache.fill(never, chunk_bytes=500)
    else:
        offer(cache, source, np.random.default_rng(0).permutation(len(source)))
    assert np.flatnonzero(read_tier(cache, source, np.arange(60))).tolist() == list(range(25, 45))
    assert cache.is_full
    assert cache.count().held_bytes == 20 * source.spec.row_bytes + 21 == cache.num_bytes


def test_the_heaviest_samples_after_those_skipped_are_held() -> None:
    source = Stamped(8)
    weights = [1.0, 9.0, 3.0, 9.0, 0.0, 5.0, 5.0, 2.0]
    cache = make_cache(source, 2, 3, ranking=ByWeight(weights))
    cache.fill(never)
    assert np.flatnonzero(read_tier(cache, source, np.arange(8))).tolist() == [2, 5, 6]


def test_hit_rates_are_exactly_the_share_that_is_held() -> None:
    source = Stamped(60, SPECS["scalars"])
    cache = make_cache(source, 45, 15)
    cache.fill(never)
    for epoch in range(10):
        order = np.random.default_rng(epoch).permutation(60)
        for low in range(0, 60, 8):
            read_tier(cache, source, order[low : low + 8], seed=epoch)
    assert (cache.count().num_rows, cache.count().num_hits) == (600, 150)


def test_filling_reads_only_what_was_not_offered_and_counts_it() -> None:
    source = Stamped()
    cache = make_cache(source, 30, 30)
    offer(cache, source, np.arange(28, 50))
    source.reads.clear()
    cache.fill(never)
    assert source.reads == [list(range(50, 60))]
    assert cache.count().filled_bytes == 10 * source.spec.row_bytes
    cache.fill(never)
    assert len(source.reads) == 1


def test_filling_stops_when_told_yields_between_chunks_and_goes_on_later() -> None:
    source = Stamped()
    cache = make_cache(source, 0, 60)
    yielded: list[int] = []
    size = 10 * source.spec.row_bytes
    cache.fill(lambda: len(yielded) == 2, chunk_bytes=size, yields=lambda: yielded.append(0))
    assert read_tier(cache, source, np.arange(60)).sum() == 20
    assert not cache.is_full
    cache.fill(never, chunk_bytes=size)
    assert cache.is_full
    assert [len(read) for read in source.reads] == [10] * 6


def test_a_fault_of_the_source_ends_the_filling_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flodl_pipe")
    source = Stamped(bad=(25,))
    cache = make_cache(source, 0, 60)
    cache.fill(never, chunk_bytes=10 * source.spec.row_bytes)
    assert read_tier(cache, source, np.arange(60)).sum() == 20
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "sample 25 is damaged" in caplog.text
    offer(cache, source, np.arange(26, 60))
    assert np.flatnonzero(~read_tier(cache, source, np.arange(60))).tolist() == [20, 21, 22, 23, 24, 25]


@pytest.mark.parametrize("ahead", [False, True])
def test_it_takes_nothing_when_the_machine_runs_short_and_says_so_once(
    ahead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = Stamped()
    cache = make_cache(source, 0, 60, memory=HostMemory(8 << 30, 300 << 20, "host"))
    for _ in range(3):
        if ahead:
            cache.fill(never)
        else:
            offer(cache, source, np.arange(60))
    assert not read_tier(cache, source, np.arange(60)).any()
    assert len(caplog.records) == 1
    assert "the RAM cache takes no more samples: only 300 MiB of memory is available" in caplog.text
    assert cache.stopped is not None
    assert cache.count().off is None


def test_a_source_that_is_not_thread_safe_is_filled_under_the_lock() -> None:
    source = Stamped(thread_safe=False)
    lock = threading.Lock()
    cache = RamCache(source, StorageOrder(60), first_rank=0, num_ranks=60, read_lock=lock, probe=lambda: PLENTY)
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for seed in range(50):
                out, rows = source.spec.empty(20), np.arange(20)
                with lock:
                    source.read_into(np.random.default_rng(seed).integers(0, 60, 20), rows, out)
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            wrong.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    cache.fill(never, chunk_bytes=source.spec.row_bytes)
    thread.join()
    assert wrong == []
    assert cache.is_full


@pytest.mark.parametrize("spec", list(SPECS))
def test_what_fits_is_within_the_grant_and_one_more_is_not(spec: str) -> None:
    source = Stamped(spec=SPECS[spec])
    each = source.spec.row_bytes + 1
    for grant in (0, 1, each, each + 1, 10 * each + 1, 11 * each, 60 * each + 1, 10**9):
        found = rows_fitting(source, StorageOrder(60), grant)
        assert found.num_bytes <= grant
        assert found.first_rank + found.num_ranks == 60
        assert found.num_ranks == 60 or (found.num_ranks + 1) * each + 1 > grant
    skipping = rows_fitting(source, ByWeight(np.arange(60)), 10**9, skip_ranks=13)
    assert skipping[:2] == (13, 47)


@pytest.mark.parametrize(("first_rank", "num_ranks"), [(-1, 3), (0, 61), (60, 1), (3, -1)])
def test_ranks_that_are_not_of_the_source_are_refused(first_rank: int, num_ranks: int) -> None:
    with pytest.raises(ValueError, match="are not all in"):
        make_cache(Stamped(), first_rank, num_ranks)


def test_an_empty_range_holds_nothing() -> None:
    source = Stamped()
    cache = make_cache(source, 30, 0)
    offer(cache, source, np.arange(60))
    cache.fill(never)
    assert cache.is_full
    assert not read_tier(cache, source, np.arange(60)).any()
