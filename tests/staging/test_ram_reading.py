"""Rows read ahead are exactly the source's, however they lie, and by one read where they lie together."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flodl_pipe.staging.ram_reading import RowReading
from flodl_pipe.staging.ranking import StorageOrder
from tests.contract.tiers import Stamped, raw
from tests.staging import real_sources
from tests.staging.caches import cache_of


def require_read(reading: RowReading, source: Any, indices: Any) -> None:
    wanted = source.spec.empty(len(indices))
    source.read_into(indices, np.arange(len(indices)), wanted)
    found = reading.read(indices)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(raw(found[name][: len(indices)]), raw(value), err_msg=name)


@pytest.mark.parametrize("kind", real_sources.KINDS)
def test_rows_are_the_sources_however_they_lie(tmp_path: Path, kind: str) -> None:
    source = real_sources.make(kind, tmp_path)
    reading = RowReading(source)
    everything = np.arange(len(source))
    rng = np.random.default_rng(0)
    for indices in (
        everything,
        everything[:1],
        everything[-2:],
        everything[::-1].copy(),
        everything[::2].copy(),
        np.delete(everything, [5, 11]),
        np.array([10, 11, 9]),
        np.array([4, 4, 5]),
        rng.permutation(len(source)),
        rng.integers(0, len(source), 20),
    ):
        require_read(reading, source, indices)


def test_a_source_without_extents_is_asked_for_rows() -> None:
    source = Stamped()
    require_read(RowReading(source), source, np.arange(7, 30))
    assert source.reads[-1] == list(range(7, 30))


@pytest.mark.parametrize("kind", ["windows that overlap", "records", "tail kept"])
def test_filling_reads_under_the_lock(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = real_sources.make(kind, tmp_path)
    lock = threading.Lock()
    locked: list[bool] = []

    def seen(read: Any) -> Any:
        def call(*arguments: Any) -> None:
            locked.append(lock.locked())
            read(*arguments)

        return call

    if source.extents is None:
        monkeypatch.setattr(source, "read_into", seen(source.read_into))
    else:
        monkeypatch.setattr(source.extents, "read", seen(source.extents.read))
    cache = cache_of(source, StorageOrder(len(source)), 0, len(source), lock)
    cache.fill(lambda: False, chunk_bytes=200)
    assert cache.is_full
    assert locked
    assert all(locked)
