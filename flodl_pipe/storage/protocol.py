"""The storage contract: an ordered list of blobs, read by position.

A blob is a run of bytes with a size: a local file, or a remote object. Sources speak to the whole list at once,
because one vectored read may gather rows from many blobs. Everything here is lazy: nothing stays open until the first
read, and an unread or unpickled object holds names and sizes only.
"""

from collections.abc import Sequence
from typing import Protocol

from flodl_pipe.arrays import ByteArray, IndexArray

__all__ = ["Blobs"]


class Blobs(Protocol):
    """Positioned reads over an ordered list of blobs.

    Promises, held by every implementation:

    1. What is read is what was there when the list was made: a blob that became shorter, was overwritten, replaced or
       removed raises ``ChangedError`` naming blob and offset. Bytes are never made up, and a signal never reaches the
       process.
    2. All methods may be called by several threads at once, in any process the object was pickled or forked into.
    3. The number of system calls, not of Python steps, grows with the number of rows.
    """

    @property
    def names(self) -> Sequence[str]:
        """Absolute path or address of each blob, in order."""
        ...

    @property
    def sizes(self) -> IndexArray:
        """Bytes of each blob when the list was made, int64, shape ``(num_blobs,)``."""
        ...

    def read_rows(
        self, blobs: IndexArray, offsets: IndexArray, row_bytes: int, rows: IndexArray, out: ByteArray
    ) -> None:
        """Read ``K`` rows of equal size, from any blobs, into rows of ``out``.

        Args:
            blobs: Blob of each row, int64, shape ``(K,)``.
            offsets: First byte of each row in its blob, int64, shape ``(K,)``.
            row_bytes: Bytes of one row.
            rows: Row of ``out`` that each goes to, int64, shape ``(K,)``.
            out: uint8, shape ``(B, row_bytes)``, C-contiguous, ``B > max(rows)``.

        Raises:
            ChangedError: if a blob is not what it was.
            SourceError: if a blob cannot be read, or a row lies outside it.
        """
        ...

    def read_range(self, blob: int, offset: int, out: ByteArray) -> None:
        """Fill ``out`` (uint8, 1-D, contiguous) with the bytes from ``offset`` on.

        Raises:
            ChangedError: if the blob is not what it was.
            SourceError: if the range lies outside the blob or cannot be read.
        """
        ...

    def buffer(self, num_bytes: int) -> ByteArray:
        """Return ``num_bytes`` bytes, uint8, 1-D, where :meth:`read_rows` is quickest to read to.

        They belong to this thread and may be the same every time: use what was read before asking again.
        """
        ...

    def check_unchanged(self) -> None:
        """Compare every blob with what it was when the list was made.

        Raises:
            ChangedError: naming the first blob whose size, identity or modification time differs.
        """
        ...

    def close(self) -> None:
        """Close what is open in this process. The object stays usable: the next read opens again.

        Reads of remote objects that other threads are waiting for end with an error.
        """
        ...
