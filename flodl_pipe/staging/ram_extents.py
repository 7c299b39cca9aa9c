"""A range of samples in memory as the bytes that they are in the files: overlapping windows share theirs.

The bytes of a few runs of samples lie one after the other in one arena, which is filled front to back. A sample is
there when all of its bytes are. It is gathered through a view that has one opaque item at every byte.

Shape letters: ``K`` samples asked for, ``S`` runs.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, ByteArray, IndexArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.sources.protocol import Extents
from flodl_pipe.staging.arena import reserve
from flodl_pipe.staging.growth import Growth
from flodl_pipe.staging.ram_rows import consecutive, row_items
from flodl_pipe.staging.ranking import Run

__all__ = ["ExtentArena", "ExtentBytes", "run_bytes"]

# Rows are moved through a temporary array of at most this size, which stays in a core's cache.
_CHUNK_BYTES = 128 << 10


def run_bytes(extents: Extents, runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Return the first byte of each run of samples and the first one after it, in the joined range."""
    ends = np.array([(run.first_sample, run.first_sample + run.num_samples - 1) for run in runs], dtype=np.int64)
    begins = extents.starts(ends.reshape(-1)).reshape(-1, 2)
    return [(begin, last + extents.row_bytes) for begin, last in begins.tolist()]


@final
class ExtentBytes:
    """The bytes of some runs of samples, one run after the other, and where samples lie in them.

    Args:
        spec: The one stored field.
        extents: Where samples lie in the files.
        runs: Samples to hold, at least one run.
        take: Returns memory for so many bytes.

    Attributes:
        num_bytes: How many bytes they are.
        row_bytes: Bytes of a sample.
        bytes: They, uint8, shape ``(num_bytes,)``.
    """

    def __init__(
        self, spec: SampleSpec, extents: Extents, runs: Sequence[Run], *, take: Callable[[int], ByteArray]
    ) -> None:
        (self._field,) = spec.fields
        self._extents = extents
        self.row_bytes = extents.row_bytes
        self._segments = run_bytes(extents, runs)
        sizes = [end - begin for begin, end in self._segments]
        ends = np.cumsum(sizes, dtype=np.int64)
        self.num_bytes = int(ends[-1])
        self.bytes = take(self.num_bytes)
        num_starts = self.num_bytes - self.row_bytes + 1
        self._windows = np.ndarray((num_starts,), f"V{self.row_bytes}", self.bytes, strides=(1,))
        # Runs by sample, to look a sample's up.
        by_sample = sorted(range(len(runs)), key=lambda number: runs[number].first_sample)
        self._first_samples: IndexArray = np.array([runs[i].first_sample for i in by_sample], dtype=np.int64)
        self._ends: IndexArray = ends[by_sample]
        self._begins: IndexArray = self._ends - np.array(sizes, dtype=np.int64)[by_sample]
        self._shifts: IndexArray = self._begins - np.array([self._segments[i][0] for i in by_sample], dtype=np.int64)

    def read(self, begin: int, out: ByteArray) -> int:
        """Read the bytes from place ``begin`` on, to fill ``out`` or up to the end of their run; return how many.

        Raises:
            SourceError: what the source raises.
        """
        base = 0
        for first, last in self._segments:
            size = last - first
            if begin < base + size:
                count = min(len(out), base + size - begin)
                self._extents.read(first + begin - base, out[:count])
                return count
            base += size
        return 0

    def places(self, indices: IndexArray, num_bytes: int) -> tuple[IndexArray, BoolArray]:
        """Return where each sample begins, and whether it lies in the first ``num_bytes``, at least a sample's."""
        starts = self._extents.starts(indices)
        limit = num_bytes - self.row_bytes
        held: BoolArray
        if len(self._segments) == 1:
            places = starts + int(self._shifts[0])
            held = places.view(np.uint64) <= np.uint64(limit)  # what lies before the run is huge as well
        else:
            # A sample before all runs is looked for in the last one, before which it lies too.
            runs = np.searchsorted(self._first_samples, indices, side="right") - 1
            places = starts + self._shifts[runs]
            held = (places >= self._begins[runs]) & (places <= np.minimum(limit, self._ends - self.row_bytes)[runs])
        return places, held

    def copy_out(self, places: IndexArray, held: BoolArray, rows: IndexArray, out: Mapping[str, Array]) -> BoolArray:
        """Copy the samples that are ``held`` to their rows, and return the same."""
        num_hits = np.count_nonzero(held)
        if num_hits == len(held):
            self._copy_out(places, rows, out[self._field.name])
        elif num_hits:
            self._copy_out(places[held], rows[held], out[self._field.name])
        return held

    def _copy_out(self, places: IndexArray, rows: IndexArray, out: Array) -> None:
        items = row_items(out, self.row_bytes)
        first = consecutive(rows)
        # `take` would copy the overlapping view first, all of it; indexing does not.
        step = max(1, _CHUNK_BYTES // self.row_bytes)
        for low in range(0, len(places), step):
            some = self._windows[places[low : low + step]]
            if first is None:
                items[rows[low : low + step]] = some
            else:
                items[first + low : first + low + len(some)] = some


@final
class ExtentArena:
    """The bytes of some runs of samples, filled front to back. Any number of threads may read while one loads.

    Args:
        spec: The one stored field.
        extents: Where samples lie.
        runs: Samples to hold, at least one run.
        growth: Asked before bytes are read.

    Attributes:
        num_bytes: What it takes when it is full.
        held_bytes: Bytes it has, from the front.
    """

    def __init__(self, spec: SampleSpec, extents: Extents, runs: Sequence[Run], growth: Growth) -> None:
        self._growth = growth
        self._bytes = ExtentBytes(spec, extents, runs, take=reserve)
        self.num_bytes = self._bytes.num_bytes
        self.held_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it has all of its bytes."""
        return self.held_bytes == self.num_bytes

    def load(self, chunk_bytes: int, read_lock: AbstractContextManager[object]) -> int | None:
        """Read up to ``chunk_bytes`` more and return how many; None if there are no more, or may be. For one thread.

        Raises:
            SourceError: what the source raises; nothing is taken in then.
        """
        begin = self.held_bytes
        if self.is_full or not self._growth.allows(min(chunk_bytes, self.num_bytes - begin)):
            return None
        with read_lock:
            count = self._bytes.read(begin, self._bytes.bytes[begin : begin + chunk_bytes])
        self.held_bytes = begin + count  # from here on readers may look at them
        return count

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> BoolArray:
        """See :meth:`flodl_pipe.staging.protocol.Tier.read_into`."""
        num_bytes = self.held_bytes
        if num_bytes < self._bytes.row_bytes:
            return np.zeros(len(indices), dtype=np.bool_)
        return self._bytes.copy_out(*self._bytes.places(indices, num_bytes), rows, out)
