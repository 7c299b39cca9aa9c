"""The RAM cache for samples of different lengths: values one after the other, and a table of where each begins.

Samples of the range are taken in as they come, until the grant is used up; from then on nothing is. The first sample
that does not fit ends it, however small later ones are: what is held must not depend on length.

Shape letters: ``K`` samples asked for, ``M`` ranks of the range.
"""

import contextlib
import math
import threading
from collections.abc import Callable
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, ByteArray, IndexArray
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import Field
from flodl_pipe.memory.probe import HostMemory, probe_host
from flodl_pipe.sources.protocol import HasLengths, RaggedSource
from flodl_pipe.staging.arena import reserve
from flodl_pipe.staging.filling import FILL_CHUNK_BYTES, fill_ahead
from flodl_pipe.staging.growth import Growth
from flodl_pipe.staging.protocol import TierCount
from flodl_pipe.staging.ragged_cascade import columns_bytes
from flodl_pipe.staging.ram_cache import RankRange
from flodl_pipe.staging.ranking import Ranking

__all__ = ["RaggedCache", "ragged_rows_fitting"]

_NAME = "RAM cache"


def ragged_rows_fitting(source: RaggedSource, ranking: Ranking, grant_bytes: int, *, skip_ranks: int = 0) -> RankRange:
    """Return the range of samples that should fit in a grant, by their mean length or the one to reckon with.

    Args:
        source: The samples.
        ranking: Their ranks. Its tables are not reckoned with here: take ``ranking.held_bytes`` off the grant first.
        grant_bytes: What it may take.
        skip_ranks: Ranks from 0 on that another tier has.
    """
    each = _sample_bytes(source) + _table_bytes(source)
    num_ranks = min(max(0, len(ranking) - skip_ranks), int(max(0, grant_bytes - 1) // each))
    first_rank = len(ranking) - num_ranks if ranking.is_even else skip_ranks
    return RankRange(first_rank, num_ranks, math.ceil(num_ranks * each) + 1 if num_ranks else 0)


@final
class RaggedCache:
    """Some samples of a ragged source in host memory; a :class:`flodl_pipe.staging.ragged_cascade.RaggedTier`.

    Args:
        source: The samples.
        ranking: Their ranks.
        first_rank: First rank to hold.
        num_ranks: How many; :func:`ragged_rows_fitting` says how many should fit.
        grant_bytes: What it takes at most, tables included.
        read_lock: Held around each read of the source that fills ahead.
        probe: Looks at the machine's memory.

    Raises:
        StagingError: if the system refuses the address space.
        ValueError: if the ranks are not all of the source.
    """

    def __init__(
        self,
        source: RaggedSource,
        ranking: Ranking,
        *,
        first_rank: int,
        num_ranks: int,
        grant_bytes: int,
        read_lock: contextlib.AbstractContextManager[object],
        probe: Callable[[], HostMemory] = probe_host,
    ) -> None:
        if first_rank < 0 or num_ranks < 0 or first_rank + num_ranks > len(ranking):
            raise ValueError(f"ranks {first_rank} .. {first_rank + num_ranks} are not all in 0 .. {len(ranking)}")
        self.name = _NAME
        self.first_rank, self.num_ranks = first_rank, num_ranks
        self._source, self._ranking, self._read_lock = source, ranking, read_lock
        self._growth = Growth(_NAME, probe)
        self._expected_bytes = _sample_bytes(source)
        self._arena: _Arena | None = _Arena(source, num_ranks, grant_bytes)
        self._num_filled_ranks = 0
        self._filling, self._lock = threading.Lock(), threading.Lock()
        self._num_rows = self._num_hits = self._hit_bytes = self._filled_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it holds all of its range, or has no room for the next sample of it."""
        arena = self._arena
        return arena is not None and arena.is_full

    @property
    def stopped(self) -> str | None:
        """Why it grows no more before it is full, in words; None while it may."""
        return self._growth.stopped

    def read_ragged(self, indices: IndexArray) -> tuple[BoolArray, Columns]:
        """Return which samples are held, and those; see :class:`flodl_pipe.staging.ragged_cascade.RaggedTier`."""
        arena = self._arena
        if arena is None or not arena.num_held:
            held: BoolArray = np.zeros(len(indices), dtype=np.bool_)
            stored: Columns = {}
        else:
            places = self._places(indices)
            held = arena.is_held.take(places).view(np.bool_)
            stored = arena.gather(places[held])
        with self._lock:
            self._num_rows += len(indices)
            self._num_hits += int(np.count_nonzero(held))
            self._hit_bytes += columns_bytes(stored)
        return held, stored

    def missing(self, most: int) -> IndexArray:
        """Return the samples of the range that it has not, where they are no more than ``most``; else none."""
        arena = self._arena
        if arena is None or arena.is_full or self._growth.stopped is not None:
            return np.empty(0, dtype=np.int64)
        if self.num_ranks - arena.num_held > most:
            return np.empty(0, dtype=np.int64)
        samples = self._ranking.samples(self.first_rank, self.first_rank + self.num_ranks)
        found: IndexArray = samples[arena.is_held[: self.num_ranks] == 0]
        return found

    def offer_ragged(self, indices: IndexArray, stored: Columns) -> None:
        """Take in samples of the range; see :class:`flodl_pipe.staging.ragged_cascade.RaggedTier`."""
        arena = self._arena
        if arena is not None and len(indices) and not arena.is_full and self._growth.stopped is None:
            arena.take_in(self._places(indices), stored, self._growth)

    def fill(
        self,
        stop: Callable[[], bool],
        *,
        chunk_bytes: int = FILL_CHUNK_BYTES,
        yields: Callable[[], None] = lambda: None,
    ) -> None:
        """Read what is missing of the range in this thread; see :meth:`flodl_pipe.staging.ram_cache.RamCache.fill`."""
        with self._filling:
            fill_ahead(_NAME, self._load, stop=stop, chunk_bytes=chunk_bytes, yields=yields)

    def count(self) -> TierCount:
        """Return what was asked of it so far."""
        arena = self._arena
        with self._lock:
            return TierCount(
                name=_NAME,
                num_rows=self._num_rows,
                num_hits=self._num_hits,
                hit_bytes=self._hit_bytes,
                held_bytes=0 if arena is None else arena.held_bytes,
                filled_bytes=self._filled_bytes,
            )

    def close(self) -> None:
        """Give the memory back; later reads are misses."""
        self._arena = None

    def _places(self, indices: IndexArray) -> IndexArray:
        """Return the place in the range of each sample, ``M`` for one out of range."""
        places = self._ranking.ranks(indices) - self.first_rank
        found: IndexArray = np.minimum(places.view(np.uint64), np.uint64(self.num_ranks)).view(np.int64)
        return found

    def _load(self, chunk_bytes: int) -> bool:
        arena, first = self._arena, self._num_filled_ranks
        if arena is None or arena.is_full or self._growth.stopped is not None or first >= self.num_ranks:
            return False
        last = min(self.num_ranks, first + max(1, int(chunk_bytes / max(1.0, self._expected_bytes))))
        samples = self._ranking.samples(self.first_rank + first, self.first_rank + last)
        samples = samples[arena.is_held[first:last] == 0]
        if len(samples):
            with self._read_lock:
                stored = self._source.read_rows(samples)
            self.offer_ragged(samples, stored)
            with self._lock:
                self._filled_bytes += columns_bytes(stored)
        self._num_filled_ranks = last
        return True


@final
class _Arena:
    """Values of the samples that are held, their places in it, and one byte a sample that says so.

    One thread at a time takes in; a sample's values and table are written before its byte is set.
    """

    def __init__(self, source: RaggedSource, num_ranks: int, grant_bytes: int) -> None:
        self._num_ranks = num_ranks
        self.held_bytes = num_ranks * _table_bytes(source) + 1
        self._room = max(0, grant_bytes - self.held_bytes)
        self._ragged = {f.name: _Values(f, num_ranks, self._room) for f in source.spec if f.is_ragged}
        self._fixed: dict[str, Array] = {
            field.name: _fixed_rows(field, num_ranks) for field in source.spec if not field.is_ragged
        }
        self._fixed_bytes = sum(field.row_bytes for field in source.spec if not field.is_ragged)
        self._names = source.spec.names
        self.is_held: ByteArray = reserve(num_ranks + 1, scattered=True)
        self.num_held = 0
        self.is_full = not num_ranks
        self._lock = threading.Lock()

    def gather(self, places: IndexArray) -> Columns:
        return {
            name: self._ragged[name].gather(places) if name in self._ragged else self._fixed[name].take(places, axis=0)
            for name in self._names
        }

    def take_in(self, places: IndexArray, stored: Columns, growth: Growth) -> None:
        with self._lock:
            wanted = np.flatnonzero((places < self._num_ranks) & (self.is_held.take(places) == 0))
            # A sample may have come twice; which was first is kept, so that they are taken in as they came.
            wanted = np.sort(wanted[np.unique(places[wanted], return_index=True)[1]])
            ends = np.full(len(wanted), self._fixed_bytes, dtype=np.int64)
            for name, values in self._ragged.items():
                ends += _ragged(stored[name]).lengths[wanted] * values.item_bytes
            np.cumsum(ends, out=ends)
            num_fitting = int(np.searchsorted(ends, self._room, side="right"))
            if num_fitting < len(wanted):
                self.is_full = True
                wanted = wanted[:num_fitting]
            if not num_fitting or not growth.allows(int(ends[num_fitting - 1])):
                return
            places = places[wanted]
            for name, column in stored.items():
                if isinstance(column, Ragged):
                    self._ragged[name].append(places, column.take(wanted))
                else:
                    self._fixed[name][places] = column[wanted]
            self.is_held[places] = 1
            self.num_held += num_fitting
            self._room -= int(ends[num_fitting - 1])
            self.held_bytes += int(ends[num_fitting - 1])
            self.is_full = self.is_full or self.num_held == self._num_ranks


@final
class _Values:
    """The values of one ragged field."""

    def __init__(self, field: Field, num_ranks: int, room: int) -> None:
        self.item_bytes = np.dtype(field.dtype).itemsize * math.prod(field.shape)
        num_items = room // max(1, self.item_bytes)
        # Of the room each field may use all; only pages that are written are taken.
        arena = reserve(num_items * self.item_bytes)
        self._items: Array = arena.view(field.dtype).reshape(num_items, *field.shape)
        self._begins: IndexArray = reserve(8 * num_ranks, scattered=True).view(np.int64)
        self._lengths: IndexArray = reserve(8 * num_ranks, scattered=True).view(np.int64)
        self._num_items = 0

    def append(self, places: IndexArray, rows: Ragged) -> None:
        begin, end = self._num_items, self._num_items + len(rows.values)
        self._items[begin:end] = rows.values
        self._begins[places] = rows.offsets[:-1] + begin
        self._lengths[places] = rows.lengths
        self._num_items = end

    def gather(self, places: IndexArray) -> Ragged:
        begins, lengths = self._begins.take(places), self._lengths.take(places)
        offsets = np.zeros(len(places) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        # Place p of the result, in row r, is place p - offsets[r] + begins[r] of the items.
        items = np.arange(offsets[-1], dtype=np.int64)
        items += np.repeat(begins - offsets[:-1], lengths)
        return Ragged(self._items.take(items, axis=0), offsets)


def _fixed_rows(field: Field, num_ranks: int) -> Array:
    arena = reserve(num_ranks * field.row_bytes, scattered=True)
    return arena.view(field.dtype).reshape(num_ranks, *field.shape)


def _ragged(column: Array | Ragged) -> Ragged:
    assert isinstance(column, Ragged)
    return column


def _sample_bytes(source: RaggedSource) -> float:
    """Return the bytes to reckon with for a sample."""
    mean = float(source.lengths().mean()) if isinstance(source, HasLengths) and len(source) else None
    return sum(
        np.dtype(field.dtype).itemsize * math.prod(field.shape) * mean
        if field.is_ragged and mean is not None
        else field.row_bytes
        for field in source.spec
    )


def _table_bytes(source: RaggedSource) -> int:
    """Return the bytes of a sample's entries in the tables: begin and length of each ragged field, and its byte."""
    return 16 * sum(field.is_ragged for field in source.spec) + 1
