"""Rows by way of maps: the fastest read there is once the page tables are filled, for data of moderate size.

Files are mapped read-only; a chunk of rows becomes an array of (address, length) pairs, and one ``pwritev`` makes the
kernel copy them into this thread's scratch, from where they go to their places::

    (blob, offset) per row --> iovec array --> pwritev(scratch) --> out[rows]
                               address + offset   1 call per chunk   1 copy

No user-space instruction touches a mapped page: a file that shrinks is an error and not a signal. Mapped pages are
counted in the process's resident size (as file pages, which the kernel takes back at will), and the first touch of each
64 KiB costs a page fault; both are why larger data goes through :mod:`flodl_pipe.storage.queued`.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.storage import kernel
from flodl_pipe.storage.handles import Handle, HandleTable, open_pinned
from flodl_pipe.storage.pins import FilePin
from flodl_pipe.storage.scratch import SCRATCH_BYTES, ThreadScratch

__all__ = ["MappedReader", "available_bytes"]


@final
class MappedReader:
    """Reads rows of mapped files, in one process.

    Args:
        names: Absolute path of each file.
        pins: What each file was.
        limit: Most maps to hold; by default half of what the system allows a process.
    """

    def __init__(self, names: Sequence[str], pins: Sequence[FilePin], limit: int | None) -> None:
        # The kernel's answer to a missing page of a map is to read some 100 KiB around it. That fills the page cache
        # quickly when everything fits there, and reads megabytes per window for nothing when it does not.
        random = sum(pin.size for pin in pins) > available_bytes() // 2

        def open_map(blob: int) -> Handle:
            descriptor = open_pinned(names[blob], pins[blob])
            size = pins[blob].size
            try:
                address = kernel.map_file(descriptor, size)  # a map needs no open descriptor
            finally:
                os.close(descriptor)
            if random:
                kernel.advise_random(address, size)
            return Handle(address, kernel.unmap, size)

        self._num_blobs = len(names)
        self._scratch = ThreadScratch()
        self._spare = ThreadScratch()
        self._table = HandleTable(open_map, limit or _map_limit(), "sysctl vm.max_map_count")

    @property
    def pid(self) -> int:
        """The process it belongs to."""
        return self._table.pid

    def rows_of_a_call(self, row_bytes: int) -> int:
        """Return how many rows one call takes at most."""
        return min(kernel.IOV_MAX, SCRATCH_BYTES // row_bytes)

    def buffer(self, num_bytes: int) -> ByteArray | None:
        """Return this thread's scratch, where rows need no second copy; None if it is too small or not to be had."""
        if num_bytes > SCRATCH_BYTES:
            return None
        try:
            return self._scratch.get().bytes[:num_bytes]
        except OSError:
            return None

    def read(
        self,
        blobs: IndexArray,
        offsets: IndexArray,
        rows: IndexArray,
        out: ByteArray,
        touched: IndexArray,
    ) -> tuple[int, int] | None:
        """Read rows, one call.

        Args:
            blobs: Blob of each row, shape ``(K,)``.
            offsets: First byte of each row in its blob, shape ``(K,)``.
            rows: Row of ``out`` that each goes to, shape ``(K,)``.
            out: uint8, shape ``(B, row_bytes)``, C-contiguous.
            touched: The blobs that occur, ascending.

        Returns:
            None when all rows are whole, otherwise the first that is not, and how many of its bytes could be read.

        Raises:
            OSError: if files cannot be mapped.
        """
        maps = self._table.acquire(touched.tolist())
        row_bytes = out.shape[1]
        addresses = np.empty(self._num_blobs, dtype=np.int64)
        addresses[touched] = [file_map.value for file_map in maps]
        vectors = np.empty((len(rows), 2), dtype=np.int64)
        np.add(addresses[blobs], offsets, out=vectors[:, 0])
        vectors[:, 1] = row_bytes
        first = int(rows[0])
        consecutive = bool((rows[1:] - rows[:-1] == 1).all())
        scratch = self._scratch.get()
        # Rows that were lent by `buffer` lie in the scratch themselves. Then the kernel writes them where they belong;
        # anything else would pass through bytes that earlier rows of the same request already occupy.
        in_scratch = out.ctypes.data == scratch.bytes.ctypes.data
        if in_scratch and not consecutive:
            scratch, in_scratch = self._spare.get(), False
        try:
            count = kernel.gather(scratch.descriptor, vectors, first * row_bytes if in_scratch else 0)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            return 0, 0
        finally:
            del maps  # held until here: see Handle
        num_bytes = len(rows) * row_bytes
        if count < num_bytes:
            return count // row_bytes, count % row_bytes
        if in_scratch:
            return None
        found = scratch.bytes[:num_bytes].reshape(len(rows), row_bytes)
        if consecutive:
            # Not a NumPy copy: that would release the interpreter for these 30 us, and win it back only after the
            # training loop's switch interval.
            out[first : first + len(rows)].data.cast("B")[:] = found.data.cast("B")
        else:
            out[rows] = found
        return None


def _map_limit() -> int:
    try:
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        allowed = 65_530
    return max(allowed // 2, 1)


def available_bytes() -> int:
    """Return the memory that could hold file pages: what the machine has free, within the control group's limit."""
    available = 0
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return available
    return min(available, int(limit)) if limit.isdigit() else available
