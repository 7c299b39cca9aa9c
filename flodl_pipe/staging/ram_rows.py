"""A range of samples in memory, row by row: one arena per stored field, and one byte a row that says it is there.

A byte, not a bit: two threads that set neighbouring bits would lose one. A row's bytes are written before its byte is
set, by one thread of a process at a time; who reads looks at the byte first and needs no lock. Where the ranks of a
host keep rows together, arenas and bytes lie in memory of all of them (:mod:`flodl_pipe.staging.shared_marks`).

Shape letters: ``K`` samples asked for, ``M`` rows of the range, ``B`` rows of a buffer.
"""

import threading
from collections.abc import Callable, Mapping
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, ByteArray, IndexArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.staging.arena import join_pages, reserve
from flodl_pipe.staging.growth import Growth
from flodl_pipe.staging.ranking import Ranking
from flodl_pipe.staging.shared_marks import SharedMarks
from flodl_pipe.staging.shared_memory import SharedMemory

__all__ = ["RowArena", "consecutive", "row_arena_sizes", "row_items"]

# Rows are moved through a temporary array of at most this size, which stays in a core's cache.
_CHUNK_BYTES = 128 << 10


def row_arena_sizes(spec: SampleSpec, num_ranks: int) -> list[int]:
    """Return the pieces of shared memory that an arena takes, in bytes."""
    return [*(num_ranks * field.row_bytes for field in spec if field.row_bytes), num_ranks + 1]


@final
class _Marks:
    """A byte for each row that says whether it is there, for the threads of this process; one writes at a time."""

    def __init__(self, num_rows: int) -> None:
        # One more than there are rows: what is out of range is looked up there, and never held.
        self.bytes: ByteArray = reserve(num_rows + 1, scattered=True)
        self._num_rows = num_rows
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self.count == self._num_rows

    def held(self, rows: IndexArray) -> BoolArray:
        if not self.count:
            return np.zeros(len(rows), dtype=np.bool_)
        return self.bytes.take(rows).view(np.bool_)

    def add(self, rows: IndexArray) -> None:
        self.bytes[rows] = 1
        self.count += len(rows)


@final
class RowArena:
    """Rows of the ranks ``first_rank .. first_rank + M - 1``. Thread-safe.

    Args:
        spec: The stored fields; none ragged.
        ranking: Rank of each sample.
        first_rank: First of the range.
        num_ranks: ``M``.
        growth: Asked before rows are taken in.
        shared: Where they are to lie for the ranks of a host together; None: for this process alone.

    Attributes:
        num_bytes: What it takes when it is full.
    """

    def __init__(
        self,
        spec: SampleSpec,
        ranking: Ranking,
        *,
        first_rank: int,
        num_ranks: int,
        growth: Growth,
        shared: SharedMemory | None = None,
    ) -> None:
        self._ranking, self._first, self._num_ranks = ranking, first_rank, num_ranks
        self._growth = growth
        self._row_bytes = spec.row_bytes
        # Fields without bytes have nothing to keep.
        take = reserve if shared is None else shared.reserve
        self._arenas: dict[str, Array] = {
            field.name: take(num_ranks * field.row_bytes, scattered=True).view(f"V{field.row_bytes}")
            for field in spec
            if field.row_bytes
        }
        self._marks = _Marks(num_ranks) if shared is None else SharedMarks(shared, num_ranks)
        self._lock = threading.Lock()
        self.num_bytes = num_ranks * spec.row_bytes + num_ranks + 1
        self._is_joined = False

    @property
    def num_held(self) -> int:
        """Rows it has."""
        return self._marks.count

    @property
    def is_full(self) -> bool:
        """Whether it has every row of its range."""
        return self._marks.is_full

    @property
    def held_bytes(self) -> int:
        """Bytes of the rows it has, and of its table."""
        return self.num_held * self._row_bytes + self._num_ranks + 1

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> BoolArray:
        """See :meth:`flodl_pipe.staging.protocol.Tier.read_into`."""
        places = self._places(indices)
        # Once it is full, what is in range is there: no look at the table, which may be far larger than the caches.
        held: BoolArray = places < self._num_ranks if self.is_full else self._marks.held(places)
        num_hits = np.count_nonzero(held)
        if num_hits == len(held):
            self._copy_out(places, rows, out)
        elif num_hits:
            self._copy_out(places[held], rows[held], out)
        return held

    def offer(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        """See :meth:`flodl_pipe.staging.protocol.Tier.offer`."""
        if self.is_full or self._growth.stopped is not None or not len(indices):
            return
        places = self._places(indices)
        with self._lock:
            wanted = np.flatnonzero((places < self._num_ranks) & (self._marks.bytes.take(places) == 0))
            if not len(wanted):
                return
            places, first = np.unique(places[wanted], return_index=True)  # a sample may have come twice
            if not self._growth.allows(len(places) * self._row_bytes):
                return
            self._copy_in(places, rows[wanted[first]], out)
            self._marks.add(places)

    def missing(self, first: int, last: int) -> IndexArray:
        """Return the samples among rows ``first .. last - 1`` of the range that it has not, int64."""
        samples = self._ranking.samples(self._first + first, self._first + last)
        found: IndexArray = samples[self._marks.bytes[first:last] == 0]
        return found

    @property
    def num_missing(self) -> int:
        """Rows of its range that it has not."""
        return self._num_ranks - self.num_held

    def has_all(self, first: int, last: int) -> bool:
        """Return whether it has the rows ``first .. last - 1`` of the range."""
        return bool(self._marks.bytes[first:last].all())

    def join_pages(self, *, stop: Callable[[], bool], yields: Callable[[], None]) -> None:
        """Give the rows large pages, once there is nothing more to come; later calls do nothing."""
        if self.is_full and not self._is_joined:
            self._is_joined = True
            for arena in self._arenas.values():
                join_pages(arena.view(np.uint8), stop=stop, yields=yields)

    def _places(self, indices: IndexArray) -> IndexArray:
        """Return the row of each sample, ``M`` for one out of range."""
        places = self._ranking.ranks(indices) - self._first
        # Seen as unsigned, what lies before the range is huge as well.
        found: IndexArray = np.minimum(places.view(np.uint64), np.uint64(self._num_ranks)).view(np.int64)
        return found

    def _copy_in(self, places: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        first_place, first_row = consecutive(places), consecutive(rows)
        for name, arena in self._arenas.items():
            items = row_items(out[name], arena.dtype.itemsize)
            if first_place is not None and first_row is not None:
                arena[first_place : first_place + len(rows)] = items[first_row : first_row + len(rows)]
                continue
            step = max(1, _CHUNK_BYTES // arena.dtype.itemsize)
            for low in range(0, len(places), step):
                arena[places[low : low + step]] = items[rows[low : low + step]]

    def _copy_out(self, places: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> None:
        first = consecutive(rows)
        for name, arena in self._arenas.items():
            items = row_items(out[name], arena.dtype.itemsize)
            if first is not None:
                # Clipped, not checked: a check would make `take` copy twice, and the places are good.
                arena.take(places, out=items[first : first + len(places)], mode="clip")
                continue
            step = max(1, _CHUNK_BYTES // arena.dtype.itemsize)
            for low in range(0, len(places), step):
                items[rows[low : low + step]] = arena.take(places[low : low + step])


def row_items(array: Array, row_bytes: int) -> Array:
    """Return a C-contiguous array as one opaque item per row, a view of shape ``(B,)``."""
    return array.reshape(-1).view(f"V{row_bytes}")


def consecutive(rows: IndexArray) -> int | None:
    """Return the first of rows that follow each other without a gap; None if they do not, or there are none."""
    if not len(rows):
        return None
    first, last = int(rows[0]), int(rows[-1])
    if last - first != len(rows) - 1 or not (rows[1:] - rows[:-1] == 1).all():
        return None
    return first
