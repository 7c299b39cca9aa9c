"""The RAM cache: a range of a source's samples in host memory.

Where samples are runs of bytes that overlap (``Extents``) and the range is a few runs of them, the bytes are kept, so
that windows share theirs, and filled ahead by sequential reads only. Otherwise rows are kept: taken in as they are
offered, and filled ahead too where that is asked for. Nothing is ever pinned or evicted.

The ranks of a host may keep a range together, in memory of all of them: what one has read the others find. They fill it
together too, each a part (:mod:`flodl_pipe.staging.shared_fill`).

In storage order the range is the high end, so that a device pool may have the low one and a change of budget moves one
boundary; samples that are ranked by how often they are drawn follow those of the pool.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, IndexArray
from flodl_pipe.memory.probe import HostMemory, probe_host
from flodl_pipe.sources.protocol import BundledSource, Extents, Source
from flodl_pipe.staging.filling import FILL_CHUNK_BYTES, fill_ahead
from flodl_pipe.staging.growth import Growth
from flodl_pipe.staging.protocol import TierCount
from flodl_pipe.staging.ram_extents import ExtentArena, run_bytes
from flodl_pipe.staging.ram_reading import RowReading
from flodl_pipe.staging.ram_rows import RowArena, row_arena_sizes
from flodl_pipe.staging.ranking import Ranking
from flodl_pipe.staging.shared_extents import SharedExtents, shared_extent_sizes
from flodl_pipe.staging.shared_fill import HostPart, RowChunks, chunk_rows, num_chunks
from flodl_pipe.staging.shared_memory import SharedMemory

__all__ = ["RamCache", "RankRange", "memory_file_bytes", "rows_fitting", "shared_bytes"]

# Rows that were read ahead are taken in by pieces: readers with rows to offer wait for no longer than that.
_PIECE_BYTES = 512 << 10
# Rows are gathered a third faster than windows that lie anywhere, and can be taken in one by one. Bytes must save more
# than windows that share one token of many do.
_MOST_SHARED = 0.9
_NAME = "RAM cache"


class RankRange(NamedTuple):
    """What a tier may hold.

    Attributes:
        first_rank: First rank.
        num_ranks: How many.
        num_bytes: What they take, tables included.
    """

    first_rank: int
    num_ranks: int
    num_bytes: int


def rows_fitting(source: Source, ranking: Ranking, grant_bytes: int, *, skip_ranks: int = 0) -> RankRange:
    """Return the largest range of samples that a RAM cache can hold in a grant; arithmetic only.

    Args:
        source: The samples; not ragged.
        ranking: Their ranks. Its tables are not reckoned with here: take ``ranking.held_bytes`` off the grant first.
        grant_bytes: What it may take.
        skip_ranks: Ranks from 0 on that another tier has.
    """
    num_ranks = max(0, len(ranking) - skip_ranks)
    extents = shared_bytes(source, ranking)
    if extents is None:
        fitting = min(num_ranks, max(0, grant_bytes - 1) // (source.spec.row_bytes + 1))
        num_bytes = fitting * (source.spec.row_bytes + 1) + 1
    else:
        fitting, beyond = 0, num_ranks + 1
        while beyond - fitting > 1:  # the bytes of a range grow with it
            middle = (fitting + beyond) // 2
            if _extent_bytes(extents, ranking, _first_rank(ranking, middle, skip_ranks), middle) <= grant_bytes:
                fitting = middle
            else:
                beyond = middle
        num_bytes = _extent_bytes(extents, ranking, _first_rank(ranking, fitting, skip_ranks), fitting)
    return RankRange(_first_rank(ranking, fitting, skip_ranks), fitting, num_bytes if fitting else 0)


def memory_file_bytes(
    source: Source, ranking: Ranking, *, first_rank: int, num_ranks: int, chunk_bytes: int = FILL_CHUNK_BYTES
) -> int:
    """Return the size of a memory file for a cache that the ranks of a host keep together."""
    extents, runs = shared_bytes(source, ranking), ranking.runs(first_rank, first_rank + num_ranks)
    if extents is not None and runs:
        return SharedMemory.bytes_for(shared_extent_sizes(extents, runs, chunk_bytes))
    chunks = num_chunks(num_ranks, chunk_rows(source.spec.row_bytes, chunk_bytes))
    return SharedMemory.bytes_for([*row_arena_sizes(source.spec, num_ranks), chunks])


@final
class RamCache:
    """Some samples of a source in host memory; a :class:`flodl_pipe.staging.protocol.Tier`.

    Args:
        source: The samples; not ragged (:class:`flodl_pipe.staging.ram_ragged.RaggedCache`).
        ranking: Their ranks.
        first_rank: First rank to hold.
        num_ranks: How many; :func:`rows_fitting` says how many fit.
        read_lock: Held around each read of the source that fills ahead.
        probe: Looks at the machine's memory.
        part: This process's part of memory that the ranks of a host have together; None: memory of its own.
        name: What it is called in words.

    Attributes:
        first_rank: First rank of the range.
        num_ranks: How many ranks.
        num_bytes: What it takes when it is full, for all who keep it together.

    Raises:
        StagingError: if the system refuses the address space.
        ValueError: if the ranks are not all of the source, or the memory is smaller than :func:`memory_file_bytes`.
    """

    def __init__(
        self,
        source: Source,
        ranking: Ranking,
        *,
        first_rank: int,
        num_ranks: int,
        read_lock: contextlib.AbstractContextManager[object],
        probe: Callable[[], HostMemory] = probe_host,
        part: HostPart | None = None,
        name: str = _NAME,
    ) -> None:
        if first_rank < 0 or num_ranks < 0 or first_rank + num_ranks > len(ranking):
            raise ValueError(f"ranks {first_rank} .. {first_rank + num_ranks} are not all in 0 .. {len(ranking)}")
        self.name = name
        self._source = source
        self._read_lock = read_lock
        self._row_bytes = source.spec.row_bytes
        self._num_keepers = 1 if part is None else part.num_places
        self._growth = Growth(name, probe)
        extents = shared_bytes(source, ranking)
        runs = ranking.runs(first_rank, first_rank + num_ranks)
        self._extents: ExtentArena | SharedExtents | None = None
        self._rows: RowArena | None = None
        self._chunks: RowChunks | None = None
        if extents is not None and runs:
            whole = source.spec, extents, runs, self._growth
            self._extents = ExtentArena(*whole) if part is None else SharedExtents(*whole, part)
        else:
            self._rows = RowArena(
                source.spec,
                ranking,
                first_rank=first_rank,
                num_ranks=num_ranks,
                growth=self._growth,
                shared=None if part is None else part.memory,
            )
            self._chunks = RowChunks(num_ranks, self._row_bytes, part=part, is_there=self._rows.has_all)
        self.first_rank = first_rank
        self.num_ranks = num_ranks
        self.num_bytes = self._extents.num_bytes if self._extents else self._rows.num_bytes if self._rows else 0
        self._filling = threading.Lock()
        self._lock = threading.Lock()
        self._num_rows = self._num_hits = self._filled_bytes = 0

    @property
    def needs_fill(self) -> bool:
        """Whether it takes in nothing but what :meth:`fill` reads."""
        return self._extents is not None

    @property
    def is_full(self) -> bool:
        """Whether it holds all of its range."""
        store = self._extents or self._rows
        return store is not None and store.is_full

    @property
    def stopped(self) -> str | None:
        """Why it grows no more before it is full, in words; None while it may."""
        return self._growth.stopped

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> BoolArray:
        """Fill the rows of samples that are held; see :meth:`flodl_pipe.staging.protocol.Tier.read_into`.

        Raises:
            IndexError: if an index is no sample.
        """
        store = self._extents or self._rows
        if store is None:  # closed
            return np.zeros(len(indices), dtype=np.bool_)
        held = store.read_into(indices, rows, out)
        num_hits = int(np.count_nonzero(held))
        with self._lock:
            self._num_rows += len(indices)
            self._num_hits += num_hits
        return held

    def missing(self, most: int) -> IndexArray:
        """Return the samples of the range that it has not, where they are no more than ``most``; else none."""
        rows = self._rows
        if rows is None or self._growth.stopped is not None or rows.num_missing > most:
            return np.empty(0, dtype=np.int64)
        return rows.missing(0, self.num_ranks)

    def offer(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """Take in samples of the range; see :meth:`flodl_pipe.staging.protocol.Tier.offer`."""
        store = self._rows
        if store is not None:
            store.offer(indices, rows, out)

    def fill(
        self,
        stop: Callable[[], bool],
        *,
        chunk_bytes: int = FILL_CHUNK_BYTES,
        yields: Callable[[], None] = lambda: None,
    ) -> None:
        """Read what is missing of the range, front to back, in this thread; a second call goes on.

        Ends when the range is whole, when ``stop`` says so, when the machine runs short of memory (aloud, once), or at
        a fault of the source, which the reader that meets it raises at its step. Rows that are whole are given large
        pages at the end, those too that came by offers alone: they are gathered a fourth to a third faster then.

        Args:
            stop: Asked before each chunk.
            chunk_bytes: Bytes read at a time, under the lock.
            yields: Called after each chunk, for readers to go first.
        """
        with self._filling:
            load = partial(self._load, RowReading(self._source))
            fill_ahead(self.name, load, stop=stop, chunk_bytes=chunk_bytes, yields=yields)
            rows = self._rows
            if rows is not None:
                rows.join_pages(stop=stop, yields=yields)

    def count(self) -> TierCount:
        """Return what was asked of it so far."""
        store = self._extents or self._rows
        with self._lock:
            return TierCount(
                name=self.name,
                num_rows=self._num_rows,
                num_hits=self._num_hits,
                hit_bytes=self._num_hits * self._row_bytes,
                held_bytes=0 if store is None else store.held_bytes,
                filled_bytes=self._filled_bytes,
                num_keepers=self._num_keepers,
            )

    def close(self) -> None:
        """Give the memory back; later reads are misses."""
        self._extents = self._rows = self._chunks = None

    def _load(self, reading: RowReading, chunk_bytes: int) -> bool:
        """Read one chunk; return whether there may be more."""
        extents, rows, chunks = self._extents, self._rows, self._chunks
        num_bytes: int | None
        if extents is not None:
            num_bytes = extents.load(chunk_bytes, self._read_lock)
        elif rows is not None and chunks is not None and self._growth.stopped is None:
            found = chunks.take(chunk_bytes)
            num_bytes = None if found is None else self._load_rows(rows, reading, *found)
            chunks.done()
        else:
            return False
        if num_bytes is None:
            return False
        with self._lock:
            self._filled_bytes += num_bytes
        return True

    def _load_rows(self, store: RowArena, reading: RowReading, first: int, last: int) -> int:
        missing = store.missing(first, last)
        if len(missing):
            with self._read_lock:
                out = reading.read(missing)
            rows = np.arange(len(missing), dtype=np.int64)
            step = max(1, _PIECE_BYTES // max(1, self._row_bytes))
            for low in range(0, len(missing), step):
                store.offer(missing[low : low + step], rows[low : low + step], out)
        return len(missing) * self._row_bytes


def shared_bytes(source: Source, ranking: Ranking) -> Extents | None:
    """Return the extents of a source whose samples overlap enough for their bytes to be kept instead of rows."""
    extents = source.extents if isinstance(source, BundledSource) else None
    if extents is None or ranking.runs(0, 1) is None:
        return None
    row_bytes = len(source) * source.spec.row_bytes
    return extents if extents.num_bytes <= _MOST_SHARED * row_bytes else None


def _first_rank(ranking: Ranking, num_ranks: int, skip_ranks: int) -> int:
    return len(ranking) - num_ranks if ranking.is_even else skip_ranks


def _extent_bytes(extents: Extents, ranking: Ranking, first_rank: int, num_ranks: int) -> int:
    runs = ranking.runs(first_rank, first_rank + num_ranks)
    return sum(end - begin for begin, end in run_bytes(extents, runs)) if runs else 0
