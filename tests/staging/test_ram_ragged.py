"""Samples of different lengths in memory: exact rows and order, a grant that is kept, admission as they come."""

import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import SourceError
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.sources.protocol import Fingerprint
from flodl_pipe.sources.ragged_source import RaggedRows
from flodl_pipe.sources.subset import Subset
from flodl_pipe.staging.ragged_cascade import RaggedCascade, columns_bytes
from flodl_pipe.staging.ram_ragged import RaggedCache, ragged_rows_fitting
from flodl_pipe.staging.ranking import ByWeight, Ranking, StorageOrder
from tests.staging.caches import PLENTY, after


def rows_of(num_samples: int = 50, *, longest: int = 9) -> Any:
    """Ragged ids and boxes beside labels; some samples are empty."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 1000, rng.integers(0, longest + 1), dtype=np.uint16) for _ in range(num_samples)]
    boxes = [rng.random((rng.integers(0, 4), 4), dtype=np.float32) for _ in range(num_samples)]
    return RaggedRows({"ids": Ragged.of(ids), "label": np.arange(num_samples), "boxes": Ragged.of(boxes)})


class Damaged:
    """Ragged samples some of which cannot be read, with no more than the contract asks for."""

    def __init__(self, source: Any, bad: set[int]) -> None:
        self.source, self.bad = source, bad
        self.spec = self.delivered = source.spec
        self.thread_safe = True
        self.reads: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.source)

    def read_rows(self, indices: Any) -> Columns:
        self.reads.append(indices.tolist())
        for index in indices.tolist():
            if index in self.bad:
                raise SourceError(f"sample {index} is damaged")
        found: Columns = self.source.read_rows(indices)
        return found

    def deliver_rows(self, stored: Columns) -> Columns:
        return stored

    def read_into(self, indices: Any, rows: Any, out: Any) -> None:
        raise NotImplementedError

    def deliver(self, stored: Any, out: Any) -> None:
        raise NotImplementedError

    def fingerprint(self, *, full: bool = False) -> Fingerprint:
        return Fingerprint("damaged", "0")


def cache_of(
    source: Any,
    *,
    first_rank: int = 0,
    num_ranks: int | None = None,
    grant_bytes: int = 1 << 20,
    ranking: Ranking | None = None,
    memory: HostMemory = PLENTY,
) -> RaggedCache:
    return RaggedCache(
        source,
        ranking or StorageOrder(len(source)),
        first_rank=first_rank,
        num_ranks=len(source) - first_rank if num_ranks is None else num_ranks,
        grant_bytes=grant_bytes,
        read_lock=contextlib.nullcontext(),
        probe=lambda: memory,
    )


def require_same(found: Columns, wanted: Columns) -> None:
    assert list(found) == list(wanted)
    for name, column in wanted.items():
        other = found[name]
        if isinstance(column, Ragged):
            assert isinstance(other, Ragged)
            assert other.offsets.tolist() == column.offsets.tolist()
            assert other.values.dtype == column.values.dtype
            np.testing.assert_array_equal(other.values, column.values)
        else:
            assert not isinstance(other, Ragged)
            assert other.dtype == column.dtype
            np.testing.assert_array_equal(other, column)


def held_by(cache: RaggedCache, source: Any) -> list[int]:
    """Return the samples that a cache has, after a look at their bytes."""
    everything = np.arange(len(source))
    held, stored = cache.read_ragged(everything)
    if held.any():
        require_same(stored, source.read_rows(everything[held]))
    return [int(sample) for sample in np.flatnonzero(held)]


def bytes_of(source: Any, sample: int) -> int:
    return columns_bytes(source.read_rows(np.array([sample])))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_play_of_reads_and_fills_gives_the_sources_rows(data: Any) -> None:
    source = rows_of()
    if data.draw(st.booleans(), "subset"):
        source = Subset(source, np.arange(0, 50, 2))
    num_samples = len(source)
    tiers = []
    for _ in range(data.draw(st.integers(1, 3), "tiers")):
        first = data.draw(st.integers(0, num_samples))
        count = data.draw(st.integers(0, num_samples - first))
        ranking = data.draw(st.sampled_from([None, ByWeight(np.arange(num_samples) % 3)]))
        grant = data.draw(st.sampled_from([0, 500, 2_000, 1 << 20]))
        tiers.append(cache_of(source, first_rank=first, num_ranks=count, ranking=ranking, grant_bytes=grant))
    cascade = RaggedCascade(source, tiers, read_lock=contextlib.nullcontext())
    for _ in range(data.draw(st.integers(1, 8), "moves")):
        move = data.draw(st.sampled_from(["read", "read", "fill", "close"]))
        tier = tiers[data.draw(st.integers(0, len(tiers) - 1))]
        if move == "read":
            rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
            some = rng.integers(0, num_samples, data.draw(st.integers(0, 40)))
            require_same(cascade.read_rows(some), source.read_rows(some))
        elif move == "fill":
            tier.fill(after(data.draw(st.integers(0, 5))), chunk_bytes=data.draw(st.integers(1, 500)))
        elif data.draw(st.integers(0, 3)) == 0:
            tier.close()
    everything = np.random.default_rng(0).permutation(num_samples)
    require_same(cascade.read_rows(everything), source.read_rows(everything))


def test_the_grant_is_kept_and_the_first_that_does_not_fit_ends_admission() -> None:
    source = rows_of()
    order = np.random.default_rng(3).permutation(50)
    sizes = [bytes_of(source, sample) for sample in order.tolist()]
    tables = 50 * 33 + 1
    for grant in (0, tables, tables + sizes[0] - 1, tables + sizes[0], tables + sum(sizes[:20]), 1 << 20):
        cache = cache_of(source, grant_bytes=grant)
        for low in range(0, 50, 7):
            cache.offer_ragged(order[low : low + 7], source.read_rows(order[low : low + 7]))
        num_held = max(count for count in range(51) if not count or tables + sum(sizes[:count]) <= grant)
        assert held_by(cache, source) == sorted(order[:num_held].tolist())
        assert cache.count().held_bytes == tables + sum(sizes[:num_held])
        assert cache.is_full


def test_only_the_range_is_held() -> None:
    source = rows_of()
    cache = cache_of(source, first_rank=20, num_ranks=15)
    cache.offer_ragged(np.arange(10, 25), source.read_rows(np.arange(10, 25)))
    assert held_by(cache, source) == list(range(20, 25))
    assert not cache.is_full
    cache.fill(lambda: False, chunk_bytes=40)
    assert held_by(cache, source) == list(range(20, 35))
    assert cache.is_full
    assert cache.count().filled_bytes == columns_bytes(source.read_rows(np.arange(25, 35)))


def test_samples_may_be_offered_and_asked_for_twice_at_once_and_rows_are_kept_apart() -> None:
    source = rows_of()
    cache = cache_of(source)
    twice = np.array([7, 3, 7, 7, 3, 9])
    stored = source.read_rows(twice)
    cache.offer_ragged(twice, stored)
    for column in stored.values():
        (column.values if isinstance(column, Ragged) else column).fill(0)
    held, found = cache.read_ragged(np.array([9, 4, 7, 9]))
    assert held.tolist() == [True, False, True, True]
    require_same(found, source.read_rows(np.array([9, 7, 9])))
    assert cache.count().held_bytes == 50 * 33 + 1 + sum(bytes_of(source, sample) for sample in (3, 7, 9))
    assert (cache.count().num_rows, cache.count().num_hits) == (4, 3)
    assert cache.count().hit_bytes == 2 * bytes_of(source, 9) + bytes_of(source, 7)


def test_what_should_fit_goes_by_the_mean_length() -> None:
    source = rows_of()
    order = StorageOrder(50)
    mean = source.lengths().mean()
    each = mean * 2 + mean * 16 + 8 + 33
    found = ragged_rows_fitting(source, order, int(10 * each) + 2)
    assert (found.first_rank, found.num_ranks) == (40, 10)
    assert found.num_bytes <= 10 * each + 2
    assert ragged_rows_fitting(source, order, 1 << 30)[:2] == (0, 50)
    assert ragged_rows_fitting(source, order, 0).num_bytes == 0
    assert ragged_rows_fitting(source, ByWeight(np.arange(50)), 1 << 30, skip_ranks=12)[:2] == (12, 38)


def test_a_source_without_lengths_goes_by_the_length_to_reckon_with() -> None:
    source = Damaged(rows_of(), set())
    source.spec = SampleSpec((Field("ids", "uint16", (), True, 100), Field("label", "int64")))
    assert ragged_rows_fitting(source, StorageOrder(50), 4 * (200 + 8 + 17) + 1).num_ranks == 4


def test_a_read_that_fails_is_raised_as_it_is_and_offered_to_no_tier(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flodl_pipe")
    source = Damaged(rows_of(), {9})
    cache = cache_of(source)
    cascade = RaggedCascade(source, [cache], read_lock=contextlib.nullcontext())
    with pytest.raises(SourceError, match=r"^sample 9 is damaged$"):
        cascade.read_rows(np.arange(20))
    cache.fill(lambda: False)
    assert "sample 9 is damaged" in caplog.text
    assert cascade.source_count().num_rows == 0
    assert cache.count().held_bytes == 50 * 33 + 1
    source.bad.clear()
    require_same(cascade.read_rows(np.arange(20)), source.source.read_rows(np.arange(20)))
    assert held_by(cache, source.source) == list(range(20))
    assert cascade.source_count().num_bytes == columns_bytes(source.source.read_rows(np.arange(20)))


def test_it_takes_nothing_when_the_machine_runs_short(caplog: pytest.LogCaptureFixture) -> None:
    source = rows_of()
    cache = cache_of(source, memory=HostMemory(8 << 30, 300 << 20, "host"))
    for _ in range(3):
        cache.offer_ragged(np.arange(50), source.read_rows(np.arange(50)))
        cache.fill(lambda: False)
    assert held_by(cache, source) == []
    assert len(caplog.records) == 1
    assert "takes no more samples" in caplog.text


def test_a_closed_cache_misses_and_takes_nothing_in() -> None:
    source = rows_of()
    cache = cache_of(source)
    cache.fill(lambda: False)
    assert len(held_by(cache, source)) == 50
    cache.close()
    cache.close()
    cache.offer_ragged(np.arange(50), source.read_rows(np.arange(50)))
    cache.fill(lambda: False)
    assert held_by(cache, source) == []
    assert cache.count().held_bytes == 0


def test_ranks_that_are_not_of_the_source_are_refused() -> None:
    with pytest.raises(ValueError, match="are not all in"):
        cache_of(rows_of(), first_rank=30, num_ranks=21)


def test_readers_and_a_filler_at_once_see_only_whole_rows(tmp_path: Path) -> None:
    source = rows_of(200, longest=40)
    tiers = [cache_of(source, first_rank=100), cache_of(source, first_rank=0, num_ranks=80, grant_bytes=6_000)]
    cascade = RaggedCascade(source, tiers, read_lock=contextlib.nullcontext())
    wrong: list[BaseException] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(50):
                some = rng.integers(0, 200, 30)
                require_same(cascade.read_rows(some), source.read_rows(some))
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    threads += [
        threading.Thread(target=tier.fill, args=(lambda: False,), kwargs={"chunk_bytes": 200}) for tier in tiers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    counts = cascade.tier_counts()
    assert counts[0].num_rows == 3 * 50 * 30
    assert counts[1].held_bytes <= 6_000
    assert cascade.source_count().num_rows == counts[1].num_rows - counts[1].num_hits
    cascade.close()
    assert [count.held_bytes for count in cascade.tier_counts()] == [0, 0]
