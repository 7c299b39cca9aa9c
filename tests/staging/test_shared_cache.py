"""One RAM cache of several ranks: what one has read, all have; filled once; nothing half written is ever seen.

White box: chunks are claimed as a rank does that then is gone, and the time for which others wait for it is given.
"""

import os
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.staging import shared_fill
from flodl_pipe.staging.ram_cache import RamCache
from flodl_pipe.staging.ranking import ByParts, ByWeight, RankedPart, Ranking, StorageOrder
from flodl_pipe.staging.shared_marks import SharedMarks
from flodl_pipe.staging.shared_memory import SharedMemory, memory_file
from tests.contract.tiers import SPECS, Stamped, TierContract, offer, read_tier
from tests.staging.real_sources import make
from tests.staging.shared_caches import shared_caches

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs memory files")


def never() -> bool:
    return False


class Clock:
    """Time that passes only while a rank waits, and then at once."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(shared_fill, "time", clock)
    monkeypatch.setattr(shared_fill, "_PATIENCE_S", 10.0)
    return clock


@pytest.fixture
def patient(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads wait for each other, on the real clock, as long as it takes."""
    monkeypatch.setattr(shared_fill, "time", time)
    monkeypatch.setattr(shared_fill, "_PATIENCE_S", 1e9)


def fill_at_once(caches: list[RamCache]) -> None:
    threads = [threading.Thread(target=cache.fill, args=(never,)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def of_two(source: Stamped, first_rank: int, num_ranks: int, **options: Any) -> list[RamCache]:
    other = Stamped(len(source), source.spec)
    ranking = options.pop("ranking", None) or StorageOrder(len(source))
    return shared_caches([source, other], ranking, first_rank, num_ranks, **options)


class TestOneOfTwo(TierContract):
    def make_tier(self, source: Stamped, folder: Path) -> RamCache:
        return of_two(source, 20, 40)[0]


class TestFilledByOneOfTwo(TierContract):
    def make_tier(self, source: Stamped, folder: Path) -> RamCache:
        return of_two(source, 20, 40)[1]

    def fill(self, tier: Any, source: Stamped) -> None:
        tier.fill(never)


class TestByWeightWithAnother(TierContract):
    def make_tier(self, source: Stamped, folder: Path) -> RamCache:
        return of_two(source, 5, 45, ranking=ByWeight(np.arange(len(source)) % 7))[0]


@pytest.mark.parametrize("spec", SPECS)
def test_what_one_rank_has_read_the_others_have(spec: str) -> None:
    sources = [Stamped(60, SPECS[spec]) for _ in range(3)]
    caches = shared_caches(sources, StorageOrder(60), 20, 40)
    offer(caches[0], sources[0], np.arange(10, 35))
    offer(caches[2], sources[2], np.arange(50, 60))
    for cache, source in zip(caches, sources, strict=True):
        held = np.flatnonzero(read_tier(cache, source, np.arange(60)))
        assert held.tolist() == [*range(20, 35), *range(50, 60)]
        assert cache.count().num_hits == 25
        assert not cache.is_full
    offer(caches[1], sources[1], np.arange(60))
    for cache, source in zip(caches, sources, strict=True):
        assert cache.is_full
        assert read_tier(cache, source, np.arange(60), seed=1).sum() == 40
        assert cache.count().held_bytes == cache.num_bytes


@pytest.mark.usefixtures("patient")
def test_a_range_is_filled_once_by_all_together_each_its_stripe() -> None:
    sources = [Stamped(240) for _ in range(3)]
    caches = shared_caches(sources, StorageOrder(240), 40, 200, chunk_bytes=5 * sources[0].spec.row_bytes)
    fill_at_once(caches)
    read = [sum(source.reads, []) for source in sources]
    assert set(sum(read, [])) == set(range(40, 240))
    assert all(cache.is_full for cache in caches)
    num_read = sum(cache.count().filled_bytes for cache in caches) // sources[0].spec.row_bytes
    assert num_read == len(sum(read, []))
    # Each sample once, but where two claim a chunk in the same microsecond; they meet at three.
    assert 200 <= num_read <= 200 + 3 * 5


def test_ranks_read_stripes_of_their_own_and_then_the_ends_of_the_others() -> None:
    sources = [Stamped(200) for _ in range(3)]
    caches = shared_caches(sources, StorageOrder(200), 0, 200, chunk_bytes=5 * sources[0].spec.row_bytes)
    chunks = [cache._chunks for cache in caches]
    found: list[list[int]] = [[], [], []]
    for turn in range(40):  # the first rank reads as many as the others together
        place = (0, 1, 0, 2)[turn % 4]
        one = chunks[place]
        assert one is not None
        taken = one.take(0)
        assert taken is not None
        assert taken[1] - taken[0] == 5
        found[place].append(taken[0] // 5)
    assert found[0][:17] == [*range(13), 25, 24, 23, 22]  # up to where it meets the second
    assert found[0][17:19] == [39, 38]
    assert found[1][:9] == list(range(13, 22))
    assert found[2][:9] == list(range(26, 35))
    assert sorted(sum(found, [])) == list(range(40))


def test_a_rank_alone_at_filling_fills_it_all_and_does_what_others_claimed_last() -> None:
    source = Stamped(60)
    caches = of_two(source, 0, 60, chunk_bytes=10 * source.spec.row_bytes)
    taken = iter([False, True])
    caches[1].fill(lambda: next(taken))  # one chunk of its stripe, and no more
    chunks = caches[1]._chunks
    assert chunks is not None
    assert chunks.take(0) == (40, 50)  # claimed, and never read: this rank is gone
    caches[0].fill(never)
    assert caches[0].is_full
    assert [read[0] for read in source.reads] == [0, 10, 20, 50, 40]


def abandoned(num_ranks: int, num_chunks: int) -> tuple[list[Stamped], list[RamCache]]:
    """Return caches of ranks of which the last has claimed as many chunks, all of its stripe, and gone."""
    sources = [Stamped(num_ranks * num_chunks * 5) for _ in range(num_ranks)]
    num_rows = len(sources[0])
    caches = shared_caches(sources, StorageOrder(num_rows), 0, num_rows, chunk_bytes=5 * sources[0].spec.row_bytes)
    chunks = caches[-1]._chunks
    assert chunks is not None
    for _ in range(num_chunks):
        assert chunks.take(0) is not None
    return sources, caches


def test_chunks_of_a_rank_that_is_gone_cost_one_wait_together(clock: Clock) -> None:
    sources, caches = abandoned(2, 6)
    caches[0].fill(never)
    assert caches[0].is_full
    assert clock.now_s == pytest.approx(10.0, abs=0.1)
    assert len(sum(sources[0].reads, [])) == len(sources[0])


def test_ranks_that_read_for_one_that_is_gone_do_not_wait_for_each_other(clock: Clock) -> None:
    sources, caches = abandoned(3, 6)
    for place, num_chunks in ((0, 6), (1, 6), (0, 1), (1, 1)):  # their stripes, and one look at what else is claimed
        caches[place].fill(iter([False] * num_chunks + [True]).__next__)
    assert not caches[0].is_full
    clock.now_s = 20.0
    for turn in range(6):
        caches[turn % 2].fill(iter([False, True]).__next__)
    assert caches[0].is_full
    assert clock.now_s == 20.0
    assert sum(len(sum(source.reads, [])) for source in sources) == len(sources[0])


def test_a_rank_that_reads_on_after_all_is_waited_for_again(clock: Clock) -> None:
    sources, caches = abandoned(2, 6)
    caches[0].fill(iter([False] * 7 + [True]).__next__)
    chunks = caches[0]._chunks
    assert chunks is not None
    clock.now_s = 20.0
    offer(caches[1], sources[1], np.arange(30, 35))
    assert chunks.take(0) == (0, 0)
    clock.now_s = 25.0
    assert chunks.take(0) == (0, 0)
    clock.now_s = 31.0
    assert chunks.take(0) not in ((0, 0), None)


def test_filling_ends_when_told_while_it_waits_for_others(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = of_two(Stamped(60), 0, 60)
    chunks = caches[1]._chunks
    assert chunks is not None
    assert chunks.take(0) is not None
    waits: list[float] = []
    monkeypatch.setattr(clock, "sleep", waits.append)  # no time passes, so it would wait for ever
    caches[0].fill(lambda: len(waits) == 5)
    assert not caches[0].is_full


def test_a_fault_of_one_ranks_source_leaves_the_rest_to_the_others() -> None:
    bad, good = Stamped(60, bad=(5,)), Stamped(60)
    caches = shared_caches([bad, good], StorageOrder(60), 0, 60, chunk_bytes=10 * good.spec.row_bytes)
    caches[0].fill(never)
    assert len(bad.reads) == 1
    caches[1].fill(never)
    assert caches[1].is_full
    assert read_tier(caches[1], good, np.arange(60)).all()


def test_a_machine_that_runs_short_ends_the_filling_of_a_shared_cache(caplog: pytest.LogCaptureFixture) -> None:
    source = Stamped(60)
    caches = of_two(source, 0, 60, memory=HostMemory(64 << 30, 1 << 20, "host"))
    caches[0].fill(never)
    assert len(source.reads) <= 1  # what was read by the time that it was refused
    offer(caches[0], source, np.arange(60))
    assert not read_tier(caches[1], source, np.arange(60)).any()
    assert "RAM cache takes no more samples" in caplog.text


@pytest.mark.parametrize("chunk_bytes", [64, 700, 4096])
@pytest.mark.parametrize("kind", ["windows that overlap", "every start", "windows of two parts"])
@pytest.mark.usefixtures("patient")
def test_overlapping_windows_are_kept_as_bytes_by_all_together(tmp_path: Path, kind: str, chunk_bytes: int) -> None:
    source = make("windows that overlap" if "two parts" in kind else kind, tmp_path)
    sources = [source, pickle.loads(pickle.dumps(source))]
    num_samples = len(sources[0])
    first, count = num_samples // 3, num_samples - num_samples // 3
    ranking: Ranking = StorageOrder(num_samples)
    if "two parts" in kind:
        half = num_samples // 2
        ranking = ByParts([RankedPart(0, half, 1.0), RankedPart(half, num_samples - half, 2.0)])
    caches = shared_caches(sources, ranking, first, count, chunk_bytes=chunk_bytes)
    assert all(cache.needs_fill for cache in caches)
    chunks = iter(range(4))
    caches[1].fill(lambda: next(chunks, None) is None)
    _check_windows(caches, sources)
    fill_at_once(caches)
    assert all(cache.is_full for cache in caches)
    held = _check_windows(caches, sources)
    assert held == sorted(ranking.samples(first, first + count).tolist())
    assert caches[0].count().held_bytes == caches[0].num_bytes
    # Each byte once, but where two claim a chunk in the same microsecond; they meet at one.
    twice = sum(cache.count().filled_bytes for cache in caches) - caches[0].num_bytes
    assert 0 <= twice <= max(chunk_bytes, source.spec.row_bytes)


def _check_windows(caches: list[RamCache], sources: list[Any]) -> list[int]:
    """Return which windows are held; what is held is right, on all ranks."""
    indices = np.arange(len(sources[0]))
    rows = np.random.default_rng(0).permutation(len(indices))
    wanted = sources[0].spec.empty(len(indices))
    sources[0].read_into(indices, rows, wanted)
    found = []
    for cache in caches:
        out = sources[0].spec.empty(len(indices))
        held = cache.read_into(indices, rows, out)
        for name, value in out.items():
            np.testing.assert_array_equal(value[rows[held]], wanted[name][rows[held]])
        found.append(np.flatnonzero(held).tolist())
    assert found[0] == found[1]
    return found[0]


def test_a_rank_killed_while_it_writes_rows_leaves_none_that_is_half_written() -> None:
    num_rows, num_written = 300, 200
    source = Stamped(num_rows, SPECS["big rows"])
    caches = of_two(source, 0, num_rows, chunk_bytes=1 << 20)
    child = os.fork()
    if not child:
        try:
            for first in range(0, num_written, 20):
                offer(caches[1], source, np.arange(first, first + 20))
            signal.pause()  # it ends no other way
        finally:
            os._exit(1)
    try:
        while not caches[0].read_into(np.array([40]), np.array([0]), source.spec.empty(1))[0]:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    held = read_tier(caches[0], source, np.arange(num_rows))  # checks every byte of what is held
    assert 40 <= held.sum() <= num_written
    offer(caches[0], source, np.arange(num_rows))
    assert read_tier(caches[0], source, np.arange(num_rows), seed=1).all()


def test_ranks_that_write_the_same_rows_at_once_never_show_anything_else() -> None:
    source = Stamped(3_000, SPECS["narrow rows"])
    caches = of_two(source, 0, 3_000)
    child = os.fork()
    if not child:
        ok = False
        try:
            for low in range(0, 3_000, 37):
                offer(caches[1], source, np.arange(low, min(low + 37, 3_000)))
            ok = True
        finally:
            os._exit(0 if ok else 1)
    try:
        for low in range(0, 3_000, 41):
            read_tier(caches[0], source, np.arange(0, 3_000, 7))
            offer(caches[0], source, np.arange(low, min(low + 41, 3_000)))
    finally:
        assert os.waitpid(child, 0)[1] == 0
    assert caches[0].is_full
    assert read_tier(caches[0], source, np.arange(3_000)).all()


@pytest.mark.parametrize("missing", [0, 65_535, 65_536, 69_999])
def test_a_long_range_is_full_only_when_its_last_row_is_there(missing: int) -> None:
    num_bytes = SharedMemory.bytes_for([70_001])
    descriptor = memory_file(num_bytes)
    one, other = (SharedMarks(SharedMemory(descriptor, num_bytes), 70_000) for _ in range(2))
    os.close(descriptor)
    one.add(np.delete(np.arange(70_000), missing))
    assert not one.is_full
    assert not other.is_full
    assert (one.count, other.count) == (69_999, 69_999)
    assert other.held(np.array([missing, (missing + 1) % 70_000, 70_000])).tolist() == [False, True, False]
    other.add(np.array([missing]))
    assert one.is_full
    assert other.is_full
    assert one.count == 70_000


def test_the_memory_goes_with_the_last_who_has_it() -> None:
    def memory_files() -> set[str]:
        """Return the inodes of the caches' memory that is mapped here: other tests' too, which may go at any time."""
        maps = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[4] for line in maps if "memfd:flodl_pipe_cache" in line}

    before = memory_files()
    caches = of_two(Stamped(), 0, 60)
    made = memory_files() - before
    assert made
    offer(caches[0], Stamped(), np.arange(60))
    caches[0].close()
    assert not caches[0].read_into(np.arange(3), np.arange(3), Stamped().spec.empty(3)).any()
    assert read_tier(caches[1], Stamped(), np.arange(60)).all()
    assert made <= memory_files()
    caches[1].close()
    assert not made & memory_files()
