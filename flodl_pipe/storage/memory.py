"""Bytes in memory as blobs: what a source decodes (an unpacked file, text as ids) is read like a file.

Where the bytes come from is watched all the same: the files they were decoded from are given as ``origin``, and a
change there is an error at the start of the next epoch, though the copy in memory is whole.
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.errors import SourceError
from flodl_pipe.storage.protocol import Blobs
from flodl_pipe.units import format_count

__all__ = ["MemoryBlobs"]


@final
class MemoryBlobs:
    """Arrays of bytes as blobs; see :class:`flodl_pipe.storage.protocol.Blobs` for what it promises.

    Args:
        contents: The bytes of each blob, uint8, 1-D. They are kept, not copied, and must not be changed.
        names: What each is called in messages: the file it was decoded from.
        origin: Those files; None where the bytes come from nowhere.
    """

    def __init__(self, contents: Sequence[ByteArray], names: Sequence[str], *, origin: Blobs | None = None) -> None:
        self.contents: tuple[ByteArray, ...] = tuple(np.ascontiguousarray(content) for content in contents)
        self._names = tuple(names)
        self._origin = origin
        self._sizes: IndexArray = np.array([len(content) for content in self.contents], dtype=np.int64)

    @property
    def names(self) -> Sequence[str]:
        """Name of each blob."""
        return self._names

    @property
    def sizes(self) -> IndexArray:
        """Bytes of each blob, int64, shape ``(num_blobs,)``."""
        return self._sizes

    def read_rows(
        self, blobs: IndexArray, offsets: IndexArray, row_bytes: int, rows: IndexArray, out: ByteArray
    ) -> None:
        """Copy rows of equal size into rows of ``out``; see :meth:`flodl_pipe.storage.protocol.Blobs.read_rows`."""
        if not len(rows):
            return
        if int(blobs.view(np.uint64).max()) >= len(self.contents):
            raise SourceError(f"blobs {blobs.min()} .. {blobs.max()} do not exist: there are {len(self.contents)}")
        outside = (offsets < 0) | (offsets > self._sizes[blobs] - row_bytes)
        if outside.any():
            bad = int(np.argmax(outside))
            raise self._outside(int(blobs[bad]), int(offsets[bad]), row_bytes)
        if len(self.contents) == 1:
            self._gather(0, offsets, row_bytes, rows, out)
            return
        for blob in np.unique(blobs).tolist():
            at = np.flatnonzero(blobs == blob)
            self._gather(blob, offsets[at], row_bytes, rows[at], out)

    def read_range(self, blob: int, offset: int, out: ByteArray) -> None:
        """Fill ``out`` with the bytes from ``offset`` on; see :meth:`flodl_pipe.storage.protocol.Blobs.read_range`."""
        if not 0 <= blob < len(self.contents):
            raise SourceError(f"blob {blob} does not exist: there are {len(self.contents)}, numbered from 0")
        if not 0 <= offset <= int(self._sizes[blob]) - len(out):
            raise self._outside(blob, offset, len(out))
        np.copyto(out, self.contents[blob][offset : offset + len(out)])

    def buffer(self, num_bytes: int) -> ByteArray:
        """Return ``num_bytes`` bytes to read rows to."""
        return np.empty(num_bytes, dtype=np.uint8)

    def check_unchanged(self) -> None:
        """Compare the files that the bytes were decoded from with what they were.

        Raises:
            ChangedError: naming the first that differs.
        """
        if self._origin is not None:
            self._origin.check_unchanged()

    def close(self) -> None:
        """Close the files that the bytes were decoded from; the bytes stay."""
        if self._origin is not None:
            self._origin.close()

    def _gather(self, blob: int, offsets: IndexArray, row_bytes: int, rows: IndexArray, out: ByteArray) -> None:
        content = self.contents[blob]
        if not row_bytes:
            return
        # One opaque item of `row_bytes` at every byte: indexing copies whole rows, whatever their distance.
        num_starts = len(content) - row_bytes + 1
        windows = np.ndarray((num_starts,), f"V{row_bytes}", content, strides=(1,))
        out.view(f"V{row_bytes}")[rows, 0] = windows[offsets]

    def _outside(self, blob: int, offset: int, num_bytes: int) -> SourceError:
        return SourceError(
            f"{self._names[blob]}: bytes {format_count(offset)} .. {format_count(offset + num_bytes)} lie outside its "
            f"{format_count(int(self._sizes[blob]))} bytes"
        )
