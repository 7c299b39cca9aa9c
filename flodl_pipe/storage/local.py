"""Local files as blobs: many small rows by one kernel call, long runs by plain positioned reads.

Small rows. Files are mapped read-only and a row becomes an (address, length) pair; NumPy builds up to 1,024 of them at
once and a single ``pwritev`` makes the kernel copy the rows into this thread's scratch, from where they go to their
places. There is no Python step per row, the GIL is released meanwhile, and no user-space instruction touches a mapped
page, so a file that shrinks is an error and not a signal::

    (blob, offset) per row --> iovec array --> pwritev(scratch) --> out[rows]
                               address + offset   1 call per chunk   1 copy

Long rows and ranges are read straight into place by ``preadv``. Either way the files read from are compared with their
pins afterwards, because pages past a new end of file read as zeros without any error.
"""

import errno
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.storage import kernel
from flodl_pipe.storage.maps import FileMap, MapTable, available_bytes, cannot_read, map_limit, open_pinned
from flodl_pipe.storage.pins import FilePin, pin_file, require_pinned
from flodl_pipe.storage.scratch import SCRATCH_BYTES, thread_scratch
from flodl_pipe.units import format_count

__all__ = ["LocalBlobs"]

_logger = logging.getLogger("flodl_pipe")

_DIRECT_BYTES = 128 * 1024
"""Rows from this size on are read one by one: the copy through the scratch would cost more than the calls saved."""


@final
class LocalBlobs:
    """Local files, in the order given; see :class:`flodl_pipe.storage.protocol.Blobs` for what it promises.

    Nothing is opened here: only names and sizes are taken. Threads may share one object; a pickled or forked copy
    opens the files itself.

    Args:
        paths: Path of each file; relative ones are made absolute now.
        vectored: Whether small rows go through the vectored call; by default where the system has it. Without it each
            row is one ``preadv``, which is right everywhere but slow beside a busy training thread.
        max_maps: Most files mapped at once; by default half of what the system allows a process.

    Raises:
        SourceError: if a file is missing, not visible or not a regular file.
    """

    def __init__(self, paths: Sequence[str], *, vectored: bool | None = None, max_maps: int | None = None) -> None:
        self._names = tuple(str(Path(path).absolute()) for path in paths)
        self._pins = tuple(map(pin_file, self._names))
        self._sizes: IndexArray = np.array([pin.size for pin in self._pins], dtype=np.int64)
        self._vectored = kernel.vectored_supported() if vectored is None else vectored
        self._max_maps = max_maps
        self._table: MapTable | None = None

    @property
    def names(self) -> Sequence[str]:
        """Absolute path of each file."""
        return self._names

    @property
    def sizes(self) -> IndexArray:
        """Bytes of each file when the list was made, int64, shape ``(num_blobs,)``."""
        return self._sizes

    @property
    def vectored(self) -> bool:
        """Whether small rows are read by the vectored call."""
        return self._vectored

    def read_rows(
        self, blobs: IndexArray, offsets: IndexArray, row_bytes: int, rows: IndexArray, out: ByteArray
    ) -> None:
        """Read rows of equal size into rows of ``out``; see :meth:`flodl_pipe.storage.protocol.Blobs.read_rows`."""
        if not len(rows):
            return
        self._require_inside(blobs, offsets, row_bytes)
        if out.shape[1:] != (row_bytes,) or not out.flags.c_contiguous or _largest(rows) >= len(out):
            raise ValueError(
                f"out must be C-contiguous, of shape (B, {row_bytes}) with B above every row, got {out.shape} and rows "
                f"{rows.min()} .. {rows.max()}"
            )
        if not self._vectored or row_bytes >= _DIRECT_BYTES:
            self._read_each(blobs, offsets, rows, out)
            return
        step = min(kernel.IOV_MAX, SCRATCH_BYTES // max(row_bytes, 1))
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            self._read_chunk(blobs[part], offsets[part], row_bytes, rows[part], out)

    def read_range(self, blob: int, offset: int, out: ByteArray) -> None:
        """Fill ``out`` with the bytes from ``offset`` on; see :meth:`flodl_pipe.storage.protocol.Blobs.read_range`."""
        if not 0 <= blob < len(self._names):
            raise SourceError(f"blob {blob} does not exist: there are {len(self._names)}, numbered from 0")
        if not 0 <= offset <= self._pins[blob].size - len(out):
            raise self._outside(blob, offset, len(out))
        path, pin = self._names[blob], self._pins[blob]
        descriptor = open_pinned(path, pin)
        try:
            _fill(descriptor, path, pin, offset, out.data)
        finally:
            os.close(descriptor)
        require_pinned(path, pin, offset=offset)

    def check_unchanged(self) -> None:
        """Compare every file with its pin, change time included.

        Raises:
            ChangedError: naming the first file that differs.
        """
        for path, pin in zip(self._names, self._pins, strict=True):
            require_pinned(path, pin, strict=True)

    def close(self) -> None:
        """Let go of the maps of this process; the next read makes them again."""
        self._table = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_table": None}

    def _read_chunk(
        self, blobs: IndexArray, offsets: IndexArray, row_bytes: int, rows: IndexArray, out: ByteArray
    ) -> None:
        """Read at most ``IOV_MAX`` rows that fit the scratch: one vectored call, one copy."""
        touched = _distinct(blobs, len(self._names))
        try:
            maps = self._maps().acquire(touched.tolist())
        except OSError as error:
            self._forgo_maps(error)
            self._read_each(blobs, offsets, rows, out)
            return
        addresses = np.empty(len(self._names), dtype=np.int64)
        addresses[touched] = [file_map.address for file_map in maps]
        vectors = np.empty((len(rows), 2), dtype=np.int64)
        np.add(addresses[blobs], offsets, out=vectors[:, 0])
        vectors[:, 1] = row_bytes
        scratch = thread_scratch()
        num_bytes = len(rows) * row_bytes
        try:
            count = kernel.gather(scratch.descriptor, vectors)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise cannot_read(self._names[blobs[0]], error) from error
            count = 0
        if count < num_bytes:
            row, inside = divmod(count, row_bytes)
            raise self._why_short(int(blobs[row]), int(offsets[row]) + inside)
        first = int(rows[0])
        found = scratch.bytes[:num_bytes].reshape(len(rows), row_bytes)
        if (rows[1:] - rows[:-1] == 1).all():
            out[first : first + len(rows)] = found
        else:
            out[rows] = found
        for blob in touched.tolist():
            require_pinned(self._names[blob], self._pins[blob])
        del maps  # held until here: see FileMap

    def _read_each(self, blobs: IndexArray, offsets: IndexArray, rows: IndexArray, out: ByteArray) -> None:
        """Read rows one by one, straight into place, with one file open at a time."""
        for blob, at in _by_blob(blobs):
            path, pin = self._names[blob], self._pins[blob]
            descriptor = open_pinned(path, pin)
            try:
                for offset, row in zip(offsets[at].tolist(), rows[at].tolist(), strict=True):
                    _fill(descriptor, path, pin, offset, out[row].data)
            finally:
                os.close(descriptor)
            require_pinned(path, pin)

    def _maps(self) -> MapTable:
        table = self._table
        if table is None or table.pid != os.getpid():
            limit = map_limit() if self._max_maps is None else self._max_maps
            # The kernel's answer to a missing page of a map is to read some 100 KiB around it. That fills the page
            # cache quickly when everything fits there, and reads megabytes per window for nothing when it does not.
            random = int(self._sizes.sum()) > available_bytes() // 2
            names, pins = self._names, self._pins
            table = MapTable(lambda blob: FileMap(names[blob], pins[blob], random=random), limit)
            self._table = table
        return table

    def _forgo_maps(self, error: OSError) -> None:
        """Say once that files cannot be mapped here, and why; read row by row from now on."""
        self._vectored = False
        _logger.warning(
            "%s: the files cannot be mapped (%s), so rows are read one by one, which is slower; "
            "put them on a file system with mmap, or lift the limit on address space (ulimit -v)",
            self._names[0],
            error.strerror,
        )

    def _require_inside(self, blobs: IndexArray, offsets: IndexArray, row_bytes: int) -> None:
        if _largest(blobs) >= len(self._names):
            raise SourceError(
                f"blobs {blobs.min()} .. {blobs.max()} do not exist: there are {len(self._names)}, numbered from 0"
            )
        inside = (offsets >= 0) & (offsets <= self._sizes[blobs] - row_bytes)
        if not inside.all():
            bad = int(np.argmin(inside))
            raise self._outside(int(blobs[bad]), int(offsets[bad]), row_bytes)

    def _outside(self, blob: int, offset: int, num_bytes: int) -> SourceError:
        return SourceError(
            f"{self._names[blob]}: bytes {format_count(offset)} .. {format_count(offset + num_bytes)} lie outside the "
            f"file of {format_count(self._pins[blob].size)} bytes"
        )

    def _why_short(self, blob: int, offset: int) -> SourceError:
        """Return the error for a row that the kernel could not read: the file changed, or the disk failed."""
        path, pin = self._names[blob], self._pins[blob]
        require_pinned(path, pin, offset=offset)
        try:
            self.read_range(blob, offset, np.empty(1, dtype=np.uint8))
        except SourceError as error:
            return error
        return ChangedError(f"{path}, byte {format_count(offset)}: changed while it was read; start the run again")


def _fill(descriptor: int, path: str, pin: FilePin, offset: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        try:
            count = os.preadv(descriptor, [view[done:]], offset + done)
        except OSError as error:
            message = f"{path}, byte {format_count(offset + done)}: cannot be read ({error.strerror})"
            raise SourceError(f"{message}; check the disk or the network mount") from error
        if not count:
            require_pinned(path, pin, offset=offset + done)
            raise ChangedError(f"{path}, byte {format_count(offset + done)}: the file ended while it was read")
        done += count


def _largest(numbers: IndexArray) -> int:
    """Return the maximum; a negative number counts as a huge one, so that one pass checks both ends."""
    return int(numbers.view(np.uint64).max())


def _distinct(blobs: IndexArray, num_blobs: int) -> IndexArray:
    """Return the blobs that occur, ascending. A mask is four times as fast as a sort while there are few blobs."""
    if num_blobs > 8192:
        return np.unique(blobs)
    seen = np.zeros(num_blobs, dtype=np.bool_)
    seen[blobs] = True
    return np.flatnonzero(seen)


def _by_blob(blobs: IndexArray) -> Iterator[tuple[int, IndexArray]]:
    """Yield each blob that occurs with the positions where it does."""
    order = np.argsort(blobs, kind="stable")
    starts = np.flatnonzero(np.diff(blobs[order], prepend=-1))
    for at in np.split(order, starts[1:]):
        yield int(blobs[at[0]]), at
