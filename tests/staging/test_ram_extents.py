"""The RAM cache where samples share bytes: bytes instead of rows, filled front to back."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.errors import SourceError
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.staging.cascade import Cascade
from flodl_pipe.staging.ram_cache import RamCache, rows_fitting
from flodl_pipe.staging.ranking import ByParts, ByWeight, RankedPart, StorageOrder
from tests.staging import real_sources
from tests.staging.caches import after, cache_of

SHARING = {"windows that overlap", "every start", "some windows that overlap", "mixture of windows"}


def held_by(cache: RamCache, source: Any) -> list[int]:
    """Return the samples that a cache has, after a look at their bytes."""
    everything, rows = np.arange(len(source)), np.arange(len(source))
    found, wanted = source.spec.empty(len(source)), source.spec.empty(len(source))
    source.read_into(everything, rows, wanted)
    held = cache.read_into(everything, rows, found)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name][held], value[held])
    return [int(sample) for sample in np.flatnonzero(held)]


@pytest.mark.parametrize("kind", real_sources.KINDS)
def test_bytes_are_kept_where_samples_share_them_and_rows_elsewhere(tmp_path: Path, kind: str) -> None:
    source = real_sources.make(kind, tmp_path)
    cache = cache_of(source, StorageOrder(len(source)), 0, len(source))
    assert cache.needs_fill == (kind in SHARING)
    if kind in SHARING:
        assert cache.num_bytes < 0.9 * len(source) * source.spec.row_bytes


@pytest.mark.parametrize("kind", real_sources.KINDS)
def test_a_range_that_fits_is_within_the_grant_and_holds_exactly_its_samples(tmp_path: Path, kind: str) -> None:
    source = real_sources.make(kind, tmp_path)
    order = StorageOrder(len(source))
    all_bytes = rows_fitting(source, order, 10**12).num_bytes
    assert rows_fitting(source, order, 10**12).num_ranks == len(source)
    assert rows_fitting(source, order, 0).num_ranks == 0
    before = 0
    for grant in np.linspace(20, all_bytes, 6).astype(int).tolist():
        found = rows_fitting(source, order, grant)
        assert found.num_bytes <= grant
        assert before <= found.num_ranks
        assert found.num_ranks == len(source) or grant - found.num_bytes <= 3 * source.spec.row_bytes + 9 * 2 * 9
        before = found.num_ranks
        cache = cache_of(source, order, found.first_rank, found.num_ranks)
        assert cache.num_bytes == found.num_bytes or not found.num_ranks
        cache.fill(lambda: False, chunk_bytes=100)
        assert held_by(cache, source) == list(range(len(source) - found.num_ranks, len(source)))
        assert cache.count().held_bytes == cache.num_bytes


@pytest.mark.parametrize("rates", [(0.5, 3.0, 0.7), (3.0, 0.1, 2.0)])
@pytest.mark.parametrize("kind", sorted(SHARING))
def test_ranked_parts_are_several_runs_of_bytes(tmp_path: Path, kind: str, rates: tuple[float, ...]) -> None:
    source = real_sources.make(kind, tmp_path)
    third = len(source) // 3
    ranking = ByParts(
        [
            RankedPart(0, third, rates[0]),
            RankedPart(third, third, rates[1]),
            RankedPart(2 * third, len(source) - 2 * third, rates[2]),
        ]
    )
    found = rows_fitting(source, ranking, 10**12, skip_ranks=5)
    assert found[:2] == (5, len(source) - 5)
    for first, count in ((0, third), (5, third), (third - 1, third + 4), (5, len(source) - 5), (0, 2 * third + 1)):
        cache = cache_of(source, ranking, first, count)
        assert cache.needs_fill
        before: list[int] = []
        for stop_at in (1, 3, 10**9):
            cache.fill(after(stop_at), chunk_bytes=61)
            now = held_by(cache, source)
            assert set(before) <= set(now)
            before = now
        assert before == sorted(ranking.samples(first, first + count).tolist())


def test_weights_keep_rows(tmp_path: Path) -> None:
    source = real_sources.make("windows that overlap", tmp_path)
    cache = cache_of(source, ByWeight(np.arange(len(source)) % 5), 0, 40)
    assert not cache.needs_fill
    cache.fill(lambda: False)
    assert held_by(cache, source) == sorted(sample for sample in range(len(source)) if sample % 5 == 4)[:40]


def test_a_damaged_id_ends_the_filling_and_is_raised_where_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flodl_pipe")
    source = real_sources.tokens(tmp_path, stride=2, vocab_size=1_000, bad=200)
    cache = cache_of(source, StorageOrder(len(source)), 0, len(source))
    cache.fill(lambda: False, chunk_bytes=64)
    assert "reading ahead failed" in caplog.text
    rows = np.arange(10)
    out = source.buffers(10)
    cascade = Cascade(source, [cache], read_lock=contextlib.nullcontext())
    cascade.read_into(np.arange(10), rows, out)
    assert cache.count().num_hits == 10
    with pytest.raises(SourceError, match="vocab_size"):
        cascade.read_into(np.arange(95, 105), rows, out)
    cascade.read_into(np.arange(110, 120), rows, out)
    assert cache.count().num_hits == 10
    assert not cache.is_full


def test_the_machine_is_looked_at_before_bytes_are_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = real_sources.make("every start", tmp_path)
    cache = RamCache(
        source,
        StorageOrder(len(source)),
        first_rank=0,
        num_ranks=len(source),
        read_lock=contextlib.nullcontext(),
        probe=lambda: HostMemory(8 << 30, 100 << 20, "cgroup"),
    )
    cache.fill(lambda: False)
    assert cache.count().held_bytes == 0
    assert "takes no more samples" in caplog.text
