"""Records in memory, field by field, as blobs: what a source decodes to be gathered from, read like files of records.

Each *plane* holds the same bytes of all records, one record after the other: ``N x width``. A batch of one field is
gathered from its plane straight to where it goes. Records as such are made of the planes on demand, so that rows,
fingerprints and digests are those of the records; the planes are the only copy.

As with :class:`flodl_pipe.storage.memory.MemoryBlobs`, the files they were decoded from are watched.
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.storage.bounds import require_range_inside, require_rows_inside
from flodl_pipe.storage.protocol import Blobs

__all__ = ["PlanarBlobs", "cut_planes"]


def cut_planes(memory: ByteArray, num_records: int, widths: Sequence[int]) -> tuple[ByteArray, ...]:
    """Return planes for ``num_records`` records, one after the other in one array.

    Args:
        memory: uint8, 1-D, ``num_records * sum(widths)`` bytes.
        num_records: Records, ``N``.
        widths: Bytes of a record in each plane, in the order in which they lie in a record.
    """
    ends = np.cumsum(np.array(widths, dtype=np.int64) * num_records).tolist()
    return tuple(
        memory[end - num_records * width : end].reshape(num_records, width)
        for end, width in zip(ends, widths, strict=True)
    )


@final
class PlanarBlobs:
    """Planes of records as blobs; see :class:`flodl_pipe.storage.protocol.Blobs` for what it promises.

    Args:
        planes: uint8, ``N x width`` each, C-contiguous, in the order in which they lie in a record. They are kept, not
            copied, and must not be changed.
        counts: Records of each blob, in order; ``N`` together.
        names: What each blob is called in messages: the file it was decoded from.
        origin: Those files; None where the bytes come from nowhere.
    """

    def __init__(
        self,
        planes: Sequence[ByteArray],
        counts: Sequence[int],
        names: Sequence[str],
        *,
        origin: Blobs | None = None,
    ) -> None:
        num_records = sum(counts)
        if any(len(plane) != num_records or not plane.flags.c_contiguous for plane in planes):
            shapes = ", ".join(str(plane.shape) for plane in planes)
            raise ValueError(f"planes of {num_records} records must be contiguous and have as many rows, got {shapes}")
        self.planes: tuple[ByteArray, ...] = tuple(planes)
        self.record_bytes = sum(plane.shape[1] for plane in planes)
        self.num_bytes = num_records * self.record_bytes
        self._columns = _columns(self.planes)
        self._items = [plane.view(f"V{plane.shape[1]}").reshape(num_records) for plane in planes]
        self._names = tuple(names)
        self._origin = origin
        self._sizes: IndexArray = np.array(counts, dtype=np.int64) * self.record_bytes
        self._starts: IndexArray = np.cumsum(self._sizes) - self._sizes

    @property
    def names(self) -> Sequence[str]:
        """Name of each blob."""
        return self._names

    @property
    def sizes(self) -> IndexArray:
        """Bytes of each blob, int64, shape ``(num_blobs,)``."""
        return self._sizes

    def column(self, offset: int) -> ByteArray:
        """Return byte ``offset`` of every record, uint8, shape ``(N,)``, without a copy."""
        for plane, columns in zip(self.planes, self._columns, strict=True):
            if columns.start <= offset < columns.stop:
                return plane[:, offset - columns.start]
        raise ValueError(f"a record has the bytes 0 .. {self.record_bytes - 1}, and no byte {offset}")

    def read_rows(
        self, blobs: IndexArray, offsets: IndexArray, row_bytes: int, rows: IndexArray, out: ByteArray
    ) -> None:
        """Copy rows of equal size into rows of ``out``; see :meth:`flodl_pipe.storage.protocol.Blobs.read_rows`."""
        if not len(rows):
            return
        require_rows_inside(self._names, self._sizes, blobs, offsets, row_bytes)
        starts = offsets + self._starts[blobs]
        records, skipped = np.divmod(starts, self.record_bytes)
        if row_bytes == self.record_bytes and not skipped.any():
            for items, columns in zip(self._items, self._columns, strict=True):
                # Opaque items are copied whole; a slice of columns would go byte by byte.
                target = out[:, columns].view(items.dtype)[:, 0]
                target[rows] = items[records]
            return
        for start, row in zip(starts.tolist(), rows.tolist(), strict=True):  # blocks for a fingerprint, some hundreds
            self._read(start, out[row])

    def read_range(self, blob: int, offset: int, out: ByteArray) -> None:
        """Fill ``out`` with the bytes from ``offset`` on; see :meth:`flodl_pipe.storage.protocol.Blobs.read_range`."""
        require_range_inside(self._names, self._sizes, blob, offset, len(out))
        self._read(int(self._starts[blob]) + offset, out)

    def buffer(self, num_bytes: int) -> ByteArray:
        """Return ``num_bytes`` bytes to read rows to."""
        return np.empty(num_bytes, dtype=np.uint8)

    def check_unchanged(self) -> None:
        """Compare the files that the records were decoded from with what they were.

        Raises:
            ChangedError: naming the first that differs.
        """
        if self._origin is not None:
            self._origin.check_unchanged()

    def close(self) -> None:
        """Close the files that the records were decoded from; the planes stay."""
        if self._origin is not None:
            self._origin.close()

    def _read(self, start: int, out: ByteArray) -> None:
        """Fill ``out`` with the bytes of all records, one after the other, from ``start`` on."""
        size = self.record_bytes
        record, skipped = divmod(start, size)
        done = 0
        if skipped:
            done = min(size - skipped, len(out))
            out[:done] = self._records(record, record + 1)[0, skipped : skipped + done]
            record += 1
        num_whole, rest = divmod(len(out) - done, size)
        if num_whole:
            whole = out[done : done + num_whole * size].reshape(num_whole, size)
            self._interleave(record, whole)
        if rest:
            out[len(out) - rest :] = self._records(record + num_whole, record + num_whole + 1)[0, :rest]

    def _records(self, first: int, last: int) -> ByteArray:
        records = np.empty((last - first, self.record_bytes), dtype=np.uint8)
        self._interleave(first, records)
        return records

    def _interleave(self, first: int, out: ByteArray) -> None:
        for plane, columns in zip(self.planes, self._columns, strict=True):
            out[:, columns] = plane[first : first + len(out)]


def _columns(planes: Sequence[ByteArray]) -> list[slice]:
    """Return where each plane lies in a record."""
    ends = np.cumsum([plane.shape[1] for plane in planes]).tolist()
    return [slice(end - plane.shape[1], end) for end, plane in zip(ends, planes, strict=True)]
