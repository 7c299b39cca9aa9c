"""What a resident set keeps samples in: the bytes as they lie in the files, or one array per stored field.

See :mod:`flodl_pipe.loader.planes` for the third way, one array per delivered field.
"""

import contextlib
import mmap
from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.sources.protocol import Extents, Source

__all__ = ["CHUNK_BYTES", "ExtentStore", "RowStore", "Store", "reserve"]

# Large enough for sequential disk speed, small enough that a batch waiting for the same disk goes soon.
CHUNK_BYTES = 4 << 20


class Store(Protocol):
    """All samples of a source, loaded chunk by chunk, gathered from once they are whole."""

    def chunks(self) -> int:
        """Return how many chunks there are to load."""
        ...

    def load(self, chunk: int) -> None:
        """Load one chunk."""
        ...

    def gather(self, indices: IndexArray) -> dict[str, Array]:
        """Return copies of the stored rows of ``K`` samples, in order."""
        ...


def reserve(num_bytes: int) -> ByteArray:
    """Map private memory that takes pages only as they are written."""
    memory = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # fewer page faults where the kernel offers it
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[:num_bytes]


@final
class ExtentStore:
    """The source's bytes as they lie, and one view that has a row at every byte."""

    def __init__(self, source: Source, extents: Extents) -> None:
        (self._field,) = source.spec.fields
        self._extents = extents
        self._bytes = reserve(extents.num_bytes) if extents.memory is None else extents.memory
        num_starts = max(0, extents.num_bytes - extents.row_bytes + 1)
        # One opaque item of `row_bytes` at every byte: indexing it copies whole rows, 10 % faster than rows of a
        # matrix.
        self._windows = np.ndarray((num_starts,), f"V{extents.row_bytes}", self._bytes, strides=(1,))

    def chunks(self) -> int:
        """Return how many chunks there are to load."""
        return 0 if self._extents.memory is not None else -(-self._extents.num_bytes // CHUNK_BYTES)

    def load(self, chunk: int) -> None:
        """Load one chunk."""
        start = chunk * CHUNK_BYTES
        self._extents.read(start, self._bytes[start : start + CHUNK_BYTES])

    def gather(self, indices: IndexArray) -> dict[str, Array]:
        """Return copies of the stored rows of ``K`` samples, in order."""
        rows = self._windows[self._extents.starts(indices)]
        return {self._field.name: rows.view(self._field.dtype).reshape(len(indices), *self._field.shape)}


@final
class RowStore:
    """One array of ``N`` rows per stored field."""

    def __init__(self, source: Source) -> None:
        self._source = source
        num_rows = len(source)
        self._fields = {
            field.name: reserve(num_rows * field.row_bytes).view(field.dtype).reshape(num_rows, *field.shape)
            for field in source.spec
        }
        self._chunk_rows = max(1, CHUNK_BYTES // max(1, source.spec.row_bytes))

    def chunks(self) -> int:
        """Return how many chunks there are to load."""
        return -(-len(self._source) // self._chunk_rows)

    def load(self, chunk: int) -> None:
        """Load one chunk."""
        first = chunk * self._chunk_rows
        last = min(first + self._chunk_rows, len(self._source))
        indices = np.arange(first, last, dtype=np.int64)
        self._source.read_into(indices, indices - first, {name: a[first:last] for name, a in self._fields.items()})

    def gather(self, indices: IndexArray) -> dict[str, Array]:
        """Return copies of the stored rows of ``K`` samples, in order."""
        return {name: kept.take(indices, axis=0) for name, kept in self._fields.items()}
