"""Bytes in memory as blobs: what a source decodes (an unpacked file, text as ids) is read like a file.

Several files decoded into one array are cut out of it (``cut_from``), so that they are gathered from in one step, and
joined again at no cost.

Where the bytes come from is watched all the same: the files they were decoded from are given as ``origin``, and a
change there is an error at the start of the next epoch, though the copy in memory is whole.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.storage.bounds import require_range_inside, require_rows_inside
from flodl_pipe.storage.protocol import Blobs

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
        self._starts: IndexArray = np.cumsum(self._sizes) - self._sizes
        self._joined: ByteArray | None = self.contents[0] if len(self.contents) == 1 else None

    @classmethod
    def cut_from(
        cls, joined: ByteArray, sizes: Sequence[int], names: Sequence[str], *, origin: Blobs | None = None
    ) -> "MemoryBlobs":
        """Return consecutive parts of one array as blobs.

        Args:
            joined: The bytes of all blobs, one after the other, uint8, 1-D, C-contiguous; kept, not copied.
            sizes: Bytes of each; together all of ``joined``.
            names: See the class, like ``origin``.
            origin: See the class.
        """
        if sum(sizes) != len(joined) or not joined.flags.c_contiguous:
            raise ValueError(f"parts of {sum(sizes)} bytes are not all of an array of {len(joined)} contiguous bytes")
        ends = np.cumsum(np.array(sizes, dtype=np.int64))
        blobs = cls([joined[end - size : end] for size, end in zip(sizes, ends, strict=True)], names, origin=origin)
        blobs._joined = joined
        return blobs

    @property
    def num_bytes(self) -> int:
        """Bytes of all blobs."""
        return int(self._sizes.sum())

    def run(self, offsets: IndexArray, lengths: IndexArray) -> ByteArray | None:
        """Return parts of all blobs as one array, where they follow each other in memory; else None.

        Args:
            offsets: First byte of each blob's part, int64, shape ``(num_blobs,)``.
            lengths: Bytes of each part, int64, shape ``(num_blobs,)``.
        """
        begins, ends = self._starts + offsets, self._starts + offsets + lengths
        if self._joined is None or (begins[1:] != ends[:-1]).any():
            return None
        return self._joined[int(begins[0]) : int(ends[-1])]

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
        require_rows_inside(self._names, self._sizes, blobs, offsets, row_bytes)
        if self._joined is not None:
            _gather(self._joined, offsets + self._starts[blobs], row_bytes, rows, out)
            return
        for blob in np.unique(blobs).tolist():
            at = np.flatnonzero(blobs == blob)
            _gather(self.contents[blob], offsets[at], row_bytes, rows[at], out)

    def read_range(self, blob: int, offset: int, out: ByteArray) -> None:
        """Fill ``out`` with the bytes from ``offset`` on; see :meth:`flodl_pipe.storage.protocol.Blobs.read_range`."""
        require_range_inside(self._names, self._sizes, blob, offset, len(out))
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

    def __reduce__(self) -> tuple[Any, ...]:
        # Parts of one array would otherwise travel twice, and arrive as arrays of their own.
        if self._joined is None:
            return partial(MemoryBlobs, origin=self._origin), (self.contents, self._names)
        return partial(MemoryBlobs.cut_from, origin=self._origin), (self._joined, self._sizes.tolist(), self._names)


def _gather(content: ByteArray, offsets: IndexArray, row_bytes: int, rows: IndexArray, out: ByteArray) -> None:
    if not row_bytes:
        return
    # One opaque item of `row_bytes` at every byte: indexing copies whole rows, whatever their distance.
    num_starts = len(content) - row_bytes + 1
    windows = np.ndarray((num_starts,), f"V{row_bytes}", content, strides=(1,))
    out.view(f"V{row_bytes}")[rows, 0] = windows[offsets]
