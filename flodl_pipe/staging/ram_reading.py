"""Rows read to fill a cache: by one sequential read of all bytes between them, where that is little more than they are.

They are read apart, not into the cache: a read that fails half way must not touch rows that are held by then.

Shape letter: ``K`` samples.
"""

from collections.abc import Mapping
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, ByteArray, IndexArray
from flodl_pipe.sources.protocol import BundledSource, Extents, Source

__all__ = ["RowReading"]

_MOST_GAPS = 1.25


@final
class RowReading:
    """Reads rows of a source, chunk after chunk, through memory that is kept from one to the next; for one thread.

    Args:
        source: The samples; not ragged.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bundled = source if isinstance(source, BundledSource) else None
        self._extents = self._bundled.extents if self._bundled is not None else None
        self._kept: ByteArray = np.empty(0, dtype=np.uint8)

    def read(self, indices: IndexArray) -> Mapping[str, Array]:
        """Return samples, row by row: one array per field of the source, or one of opaque items, which may be strided.

        Args:
            indices: Samples wanted, at least one, int64, shape ``(K,)``.

        Raises:
            Exception: what the source raises.
        """
        if self._extents is not None and (indices[1:] > indices[:-1]).all():
            items = self._between(self._extents, indices)
            if items is not None:
                return {self._source.spec.fields[0].name: items}
        num_rows = len(indices)
        out = self._bundled.buffers(num_rows) if self._bundled is not None else self._source.spec.empty(num_rows)
        self._source.read_into(indices, np.arange(num_rows, dtype=np.int64), out)
        return out

    def _between(self, extents: Extents, indices: IndexArray) -> Array | None:
        """Read from the first sample to the last; None where too much of that is in none of them."""
        starts = extents.starts(indices)
        begin = int(starts[0])
        starts -= begin
        num_bytes = int(starts[-1]) + extents.row_bytes
        if num_bytes > _MOST_GAPS * len(indices) * extents.row_bytes:
            return None
        if len(self._kept) < num_bytes:
            self._kept = np.empty(num_bytes, dtype=np.uint8)
        joined = self._kept[:num_bytes]
        extents.read(begin, joined)
        stride = int(starts[1]) if len(starts) > 1 else extents.row_bytes
        item = f"V{extents.row_bytes}"
        if (starts[1:] - starts[:-1] == stride).all():
            return np.ndarray((len(indices),), item, joined, strides=(stride,))
        return np.ndarray((num_bytes - extents.row_bytes + 1,), item, joined, strides=(1,))[starts]
