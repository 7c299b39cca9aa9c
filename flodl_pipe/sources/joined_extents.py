"""Sources one after the other as runs of bytes in one range: the extents of a mixture.

Shape letters: ``K`` samples asked for, ``P`` parts.
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.protocol import BundledSource, Extents, Source
from flodl_pipe.units import format_count

__all__ = ["JoinedExtents", "join_extents"]


def join_extents(sources: Sequence[Source]) -> Extents | None:
    """Return the extents of sources one after the other; None if one of them has none, or has rows of another size."""
    found = [source.extents if isinstance(source, BundledSource) else None for source in sources]
    extents = [each for each in found if each is not None]
    if len(extents) != len(sources) or len({each.row_bytes for each in extents}) != 1:
        return None
    return JoinedExtents(extents, [len(source) for source in sources])


@final
class JoinedExtents:
    """Runs of bytes of several sources; a :class:`flodl_pipe.sources.protocol.Extents`.

    Args:
        parts: Extents of each source, with rows of one size.
        sizes: Samples of each.
    """

    def __init__(self, parts: Sequence[Extents], sizes: Sequence[int]) -> None:
        self._parts = tuple(parts)
        self._ends: IndexArray = np.cumsum(sizes, dtype=np.int64)
        self._byte_ends: IndexArray = np.cumsum([part.num_bytes for part in parts], dtype=np.int64)
        self.row_bytes = parts[0].row_bytes
        self.num_bytes = int(self._byte_ends[-1])
        self.memory: ByteArray | None = parts[0].memory if len(parts) == 1 else None

    def starts(self, indices: IndexArray) -> IndexArray:
        """Return the first byte of each sample in the joined range, int64, shape ``(K,)``."""
        if len(indices) and int(indices.view(np.uint64).max()) >= self._ends[-1]:
            raise IndexError(f"samples {indices.min()} .. {indices.max()} are not all in 0 .. {self._ends[-1] - 1}")
        numbers: IndexArray = np.searchsorted(self._ends, indices, side="right")
        starts = np.empty_like(indices)
        for number in np.flatnonzero(np.bincount(numbers, minlength=len(self._parts))).tolist():
            here = np.flatnonzero(numbers == number)
            first = int(self._ends[number - 1]) if number else 0
            starts[here] = self._parts[number].starts(indices[here] - first) + self._begin(number)
        return starts

    def read(self, start: int, out: ByteArray) -> None:
        """Fill ``out`` with the joined bytes from ``start`` on; see :class:`flodl_pipe.sources.protocol.Extents`."""
        if not 0 <= start <= self.num_bytes - len(out):
            raise SourceError(
                f"bytes {format_count(start)} .. {format_count(start + len(out))} lie outside the mixture's "
                f"{format_count(self.num_bytes)} bytes"
            )
        done = 0
        number = int(np.searchsorted(self._byte_ends, start, side="right"))
        while done < len(out):
            count = min(len(out) - done, int(self._byte_ends[number]) - start - done)
            self._parts[number].read(start + done - self._begin(number), out[done : done + count])
            done += count
            number += 1

    def _begin(self, number: int) -> int:
        return int(self._byte_ends[number - 1]) if number else 0
