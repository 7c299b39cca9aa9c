"""Local files as blobs: many small rows by one kernel call, long runs by plain positioned reads.

Small rows are read a chunk at a time, without a Python step per row and without the GIL, by one of two readers::

    up to 1 GiB of files   mapped   pwritev from maps: 0.45 us a row, the file's pages count as resident
    beyond                 queued   io_submit: 0.9 us a row, nothing resident

Where the system has neither, and for long rows and ranges, it is one ``preadv`` each (``single``). Whichever reads, the
files are compared with their pins afterwards: pages past a new end of file, for example, read as zeros without error.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, final

import numpy as np

from flodl_pipe.arrays import ByteArray, IndexArray
from flodl_pipe.errors import ChangedError, SourceError
from flodl_pipe.storage import kernel
from flodl_pipe.storage.handles import open_pinned
from flodl_pipe.storage.mapped import MappedReader
from flodl_pipe.storage.pins import FilePin, PinWatch, pin_file, require_pinned
from flodl_pipe.storage.queued import QueuedReader, queue_supported
from flodl_pipe.units import format_count

__all__ = ["LocalBlobs", "Way"]

_logger = logging.getLogger("flodl_pipe")

Way = Literal["mapped", "queued", "single"]
"""How small rows are read."""

_DIRECT_BYTES = 128 * 1024
"""Rows from this size on are read one by one: the copy through the scratch would cost more than the calls saved."""

_MAPPED_BYTES = 1 << 30
"""Most bytes of files that are mapped: what a process's resident size may grow by, though the kernel can take it back.
Beyond, first touches are so frequent that maps are slower as well."""


@final
class LocalBlobs:
    """Local files, in the order given; see :class:`flodl_pipe.storage.protocol.Blobs` for what it promises.

    Nothing is opened here: only names and sizes are taken. Threads may share one object; a pickled or forked copy
    opens the files itself.

    Args:
        paths: Path of each file; relative ones are made absolute now.
        way: How small rows are read; by default what suits the system and the size of the files.
        max_open: Most files mapped or open at once; by default half of what the system allows a process.

    Raises:
        SourceError: if a file is missing, not visible or not a regular file.
    """

    def __init__(self, paths: Sequence[str], *, way: Way | None = None, max_open: int | None = None) -> None:
        self._names = tuple(str(Path(path).absolute()) for path in paths)
        self._pins = tuple(map(pin_file, self._names))
        self._sizes: IndexArray = np.array([pin.size for pin in self._pins], dtype=np.int64)
        self._watch = PinWatch(self._names, self._pins)
        self._way: Way | None = way
        self._max_open = max_open
        self._reader: MappedReader | QueuedReader | None = None

    @property
    def names(self) -> Sequence[str]:
        """Absolute path of each file."""
        return self._names

    @property
    def sizes(self) -> IndexArray:
        """Bytes of each file when the list was made, int64, shape ``(num_blobs,)``."""
        return self._sizes

    @property
    def way(self) -> Way:
        """How small rows are read in this process."""
        if self._way is None:
            small = int(self._sizes.sum()) <= _MAPPED_BYTES
            if small and kernel.vectored_supported():
                self._way = "mapped"
            else:
                self._way = "queued" if queue_supported() else "mapped" if kernel.vectored_supported() else "single"
        return self._way

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
        reader = None if row_bytes >= _DIRECT_BYTES else self._open_reader()
        if reader is None:
            self._read_each(blobs, offsets, rows, out)
            return
        step = reader.rows_of_a_call(row_bytes)
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            self._read_chunk(reader, blobs[part], offsets[part], rows[part], out)

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

    def buffer(self, num_bytes: int) -> ByteArray:
        """Return bytes to read rows to; see :meth:`flodl_pipe.storage.protocol.Blobs.buffer`."""
        reader = self._open_reader()
        lent = reader.buffer(num_bytes) if isinstance(reader, MappedReader) else None
        return np.empty(num_bytes, dtype=np.uint8) if lent is None else lent

    def check_unchanged(self) -> None:
        """Compare every file with its pin, change time included.

        Raises:
            ChangedError: naming the first file that differs.
        """
        for path, pin in zip(self._names, self._pins, strict=True):
            require_pinned(path, pin, strict=True)

    def close(self) -> None:
        """Let go of what is open in this process; the next read opens it again."""
        self._reader = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_reader": None}

    def _read_chunk(
        self,
        reader: MappedReader | QueuedReader,
        blobs: IndexArray,
        offsets: IndexArray,
        rows: IndexArray,
        out: ByteArray,
    ) -> None:
        touched = _distinct(blobs, len(self._names))
        try:
            broken = reader.read(blobs, offsets, rows, out, touched)
        except OSError as error:
            self._forgo_reader(error)
            self._read_each(blobs, offsets, rows, out)
            return
        if broken is not None:
            row, inside = broken
            raise self._why_short(int(blobs[row]), int(offsets[row]) + inside)
        changed = self._watch.changed(touched.tolist())
        if changed is not None:
            require_pinned(self._names[changed], self._pins[changed])  # words the error

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

    def _open_reader(self) -> MappedReader | QueuedReader | None:
        reader = self._reader
        if self.way == "single":
            return None
        if reader is None or reader.pid != os.getpid():
            make = MappedReader if self.way == "mapped" else QueuedReader
            reader = self._reader = make(self._names, self._pins, self._max_open)
        return reader

    def _forgo_reader(self, error: OSError) -> None:
        """Say once that the fast way is refused here, and why; read row by row from now on."""
        if self._way == "single":
            return
        remedy = (
            "put them on a file system with mmap, or lift the limit on address space (ulimit -v)"
            if self._way == "mapped"
            else "raise the limit on read queues (sysctl fs.aio-max-nr)"
        )
        _logger.warning(
            "%s (file 1 of %d): rows are read one by one, which is slower: the system refuses to read them %s (%s); %s",
            *(self._names[0], len(self._names), self._way, error.strerror, remedy),
        )
        self._way, self._reader = "single", None

    def _require_inside(self, blobs: IndexArray, offsets: IndexArray, row_bytes: int) -> None:
        if _largest(blobs) >= len(self._names):
            raise SourceError(
                f"blobs {blobs.min()} .. {blobs.max()} do not exist: there are {len(self._names)}, numbered from 0"
            )
        room = self._sizes[blobs]
        room -= offsets
        if int(room.min()) < row_bytes or int(offsets.min()) < 0:
            bad = int(np.argmax((room < row_bytes) | (offsets < 0)))
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
