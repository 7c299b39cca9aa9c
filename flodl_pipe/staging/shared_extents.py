"""The bytes of overlapping samples in memory that the ranks of a host have together.

Ranks load them chunk by chunk (:mod:`flodl_pipe.staging.shared_fill`), so they do not come front to back: each chunk
has a mark. A chunk is no smaller than a sample, so a sample lies in one chunk or in two neighbours.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, BoolArray, ByteArray, IndexArray
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.sources.protocol import Extents
from flodl_pipe.staging.growth import Growth
from flodl_pipe.staging.ram_extents import ExtentBytes, run_bytes
from flodl_pipe.staging.ranking import Run
from flodl_pipe.staging.shared_fill import HostPart, Stripes, num_chunks
from flodl_pipe.staging.shared_marks import SharedMarks

__all__ = ["SharedExtents", "shared_extent_sizes"]


def shared_extent_sizes(extents: Extents, runs: Sequence[Run], chunk_bytes: int) -> list[int]:
    """Return the pieces of shared memory that they take, in bytes."""
    num_bytes = sum(end - begin for begin, end in run_bytes(extents, runs))
    chunks = num_chunks(num_bytes, max(chunk_bytes, extents.row_bytes))
    return [num_bytes, chunks + 1, chunks]


@final
class SharedExtents:
    """The bytes of some runs of samples, for the ranks of a host. Any number of threads may read while one loads.

    Args:
        spec: The one stored field.
        extents: Where samples lie.
        runs: Samples to hold, at least one run.
        growth: Asked before bytes are read.
        part: This rank's part of the memory.

    Attributes:
        num_bytes: What it takes when it is full.
    """

    def __init__(self, spec: SampleSpec, extents: Extents, runs: Sequence[Run], growth: Growth, part: HostPart) -> None:
        self._growth = growth
        memory = part.memory
        self._bytes = ExtentBytes(spec, extents, runs, take=memory.reserve)
        self.num_bytes = self._bytes.num_bytes
        self._chunk_bytes = max(part.chunk_bytes, extents.row_bytes)
        self._kept: ByteArray | None = None
        self._num_chunks = chunks = num_chunks(self.num_bytes, self._chunk_bytes)
        self._marks = SharedMarks(memory, chunks)
        self._stripes = Stripes(
            part,
            memory.reserve(chunks),
            num_items=self.num_bytes,
            chunk_items=self._chunk_bytes,
            is_there=lambda first, _: bool(self._marks.bytes[first // self._chunk_bytes]),
        )

    @property
    def is_full(self) -> bool:
        """Whether it has all of its bytes."""
        return self._marks.is_full

    @property
    def held_bytes(self) -> int:
        """Bytes it has."""
        short = self._num_chunks * self._chunk_bytes - self.num_bytes if self._marks.bytes[self._num_chunks - 1] else 0
        return self._marks.count * self._chunk_bytes - short

    def load(self, chunk_bytes: int, read_lock: AbstractContextManager[object]) -> int | None:
        """Read another chunk and return its bytes; 0 while others read the last ones, None after that. For one thread.

        Args:
            chunk_bytes: Not looked at: chunks are the same for all ranks.
            read_lock: Held around each read.

        Raises:
            SourceError: what the source raises; nothing is taken in then.
        """
        del chunk_bytes
        found = self._stripes.take()
        if found is None:
            return None
        first, last = found
        if last > first and not self._growth.allows(last - first):
            return None
        if last > first:
            # Apart, and then copied: a rank that was slow may read what another has read in its stead, and a read that
            # fails half way must not touch what others have of it.
            if self._kept is None:
                self._kept = np.empty(self._chunk_bytes, dtype=np.uint8)
            read = self._kept[: last - first]
            done = 0
            while done < len(read):  # a chunk may belong to several runs
                with read_lock:
                    done += self._bytes.read(first + done, read[done:])
            self._bytes.bytes[first:last] = read
            self._marks.add(np.array([first // self._chunk_bytes], dtype=np.int64))
        else:
            self._kept = None
        return last - first

    def read_into(self, indices: IndexArray, rows: IndexArray, out: Mapping[str, Array]) -> BoolArray:
        """See :meth:`flodl_pipe.staging.protocol.Tier.read_into`."""
        places, held = self._bytes.places(indices, self.num_bytes)
        if not self.is_full:
            # What is not in range may lie anywhere: it is looked up at the front, and not held whatever is there.
            first = np.where(held, places, 0)
            last = first + (self._bytes.row_bytes - 1)
            held = held & self._marks.held(first // self._chunk_bytes) & self._marks.held(last // self._chunk_bytes)
        return self._bytes.copy_out(places, held, rows, out)
