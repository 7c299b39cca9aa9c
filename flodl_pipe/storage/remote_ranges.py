"""Rows of objects -> the fewest sensible requests: pure arithmetic.

Rows of one object that lie near each other are fetched as one range. Two limits say what "near" is:

- ``gap_bytes``: how many bytes nobody asked for may lie between two rows of a range. A request costs client and server
  about as much processor time as that many bytes, so a larger gap would be cheaper as two requests.
- ``range_bytes``: about how long a range may be. Longer ones cannot share the work among connections, take longer to
  repeat when one breaks, and need more memory while they are in flight.

Shape letter: ``K`` rows.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import BoolArray, ByteArray, IndexArray

__all__ = ["RowRange", "coalesce"]


@final
@dataclass(frozen=True, eq=False)
class RowRange:
    """One range to fetch, and the rows that are cut out of it.

    Attributes:
        blob: Which object.
        start: First byte.
        stop: Byte after the last.
        inside: First byte of each row, counted from ``start``, int64, shape ``(K,)``.
        rows: Row of the output that each goes to, int64, shape ``(K,)``.
    """

    blob: int
    start: int
    stop: int
    inside: IndexArray
    rows: IndexArray

    def scatter(self, found: ByteArray, out: ByteArray) -> None:
        """Copy the rows out of the bytes ``start .. stop`` to ``out``, uint8, shape ``(B, row_bytes)``."""
        if len(self.rows) == 1:
            first = int(self.inside[0])
            out[self.rows[0]] = found[first : first + out.shape[1]]
            return
        out[self.rows] = np.lib.stride_tricks.sliding_window_view(found, out.shape[1])[self.inside]


def coalesce(
    blobs: IndexArray,
    offsets: IndexArray,
    row_bytes: int,
    rows: IndexArray,
    *,
    gap_bytes: int,
    range_bytes: int,
    whole: BoolArray,
    sizes: IndexArray,
) -> list[RowRange]:
    """Return the ranges that hold all rows, by object and offset.

    Args:
        blobs: Object of each row, shape ``(K,)``.
        offsets: First byte of each row, shape ``(K,)``.
        row_bytes: Bytes of a row.
        rows: Row of the output for each, shape ``(K,)``.
        gap_bytes: See the module.
        range_bytes: See the module; a range is at most this and a row long.
        whole: Objects that can only be fetched whole.
        sizes: Bytes of each object.

    >>> one = coalesce(np.array([0, 0, 0]), np.array([100, 0, 10]), 10, np.arange(3), gap_bytes=20, range_bytes=1000,
    ...                whole=np.zeros(1, np.bool_), sizes=np.array([1000]))
    >>> [(part.start, part.stop, part.rows.tolist()) for part in one]
    [(0, 20, [1, 2]), (100, 110, [0])]
    """
    order = np.lexsort((offsets, blobs))
    blobs, offsets, rows = blobs[order], offsets[order], rows[order]
    other = np.diff(blobs, prepend=-1) != 0
    far = np.diff(offsets, prepend=offsets[:1]) > row_bytes + gap_bytes
    starts = np.flatnonzero(other | far)
    # Cut what hangs together at multiples of the range, counted from its first row.
    lengths = np.diff(starts, append=len(order))
    piece = (offsets - np.repeat(offsets[starts], lengths)) // range_bytes
    far |= np.diff(piece, prepend=0) != 0
    starts = np.flatnonzero(other | (far & ~whole[blobs]))
    found = []
    for first, last in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        blob, start, stop = int(blobs[first]), int(offsets[first]), int(offsets[last - 1]) + row_bytes
        if whole[blob]:
            start, stop = 0, int(sizes[blob])
        found.append(RowRange(blob, start, stop, offsets[first:last] - start, rows[first:last]))
    return found
