"""One file without a name: disk space that is private to this process and gone however the process ends.

It is made with ``O_TMPFILE``; where a file system lacks that, a file is made and unlinked at once. Its space is
reserved when it is made, so that a full disk is met then and not in the middle of a run. ``du`` cannot see it, which is
why where it is and who holds it is said in the log.

Written bytes leave the page cache again: of data that passes the cache once an epoch it would only be a second copy.
Reads go through it, many at a time by one call, without the GIL.
"""

import contextlib
import ctypes
import errno
import logging
import os
import sys
import tempfile
import threading
import weakref
from functools import cache
from pathlib import Path
from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray, WordArray
from flodl_pipe.errors import ConfigError, StagingError
from flodl_pipe.staging.read_ahead import ReadAhead
from flodl_pipe.storage.queued import QUEUE_ROWS, queue_supported, read_runs
from flodl_pipe.units import format_bytes

__all__ = ["DROP_BYTES", "DiskFile"]

_log = logging.getLogger("flodl_pipe")

DROP_BYTES = 64 << 20
"""Written bytes after which the page cache is told to let go of what was written."""

# What open() says where a file system, or an old kernel, has no files without a name.
_NO_TMPFILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}

_WRONG_FOLDER = {
    errno.ENOENT: "does not exist; make it",
    errno.ENOTDIR: "is not a folder; give a folder",
    errno.EACCES: "may not be written to by this process; allow it",
    errno.EPERM: "may not be written to by this process; allow it",
    errno.EROFS: "is on a file system that is mounted read-only; mount it for writing",
}


@final
class DiskFile:
    """Bytes on disk, read and written at positions. Threads may share it; a forked child may not.

    The descriptor is closed with the last reference, so whoever is in a call must hold one: the number of a closed
    descriptor may be another file's a moment later.

    Args:
        folder: Where; it must exist.
        num_bytes: How many.

    Attributes:
        folder: As given.
        num_bytes: As given.
        pid: The process that holds it.

    Raises:
        ConfigError: (``loader.disk_stage_dir``) if the folder cannot be written to.
        StagingError: if there is not enough space, or the system lacks what this needs.
    """

    def __init__(self, folder: Path, num_bytes: int) -> None:
        if sys.platform != "linux" or sys.maxsize <= 2**32:
            raise StagingError(
                f"loader.disk_stage needs 64-bit Linux, and this is {sys.platform} with pointers of "
                f"{8 if sys.maxsize > 2**32 else 4} bytes; leave it at 0"
            )
        self.folder = folder
        self.num_bytes = num_bytes
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._written_bytes = 0
        self._drop_from = 0
        self._queued = queue_supported()
        self.descriptor = _open_nameless(folder, num_bytes)
        closing = weakref.finalize(self, os.close, self.descriptor)
        closing.atexit = False
        try:
            reserved = _reserve(self.descriptor, folder, num_bytes)
        except StagingError:
            closing()  # now: the error's traceback holds this object
            raise
        _log.info(
            "disk stage: %s in %s, a file without a name held by process %d; du does not show it, lsof -p %d does%s",
            *(format_bytes(num_bytes), folder, self.pid, self.pid),
            "" if reserved else "; its space is not reserved, which this file system cannot do",
        )
        self._ahead: ReadAhead | None = None
        try:
            self._ahead = ReadAhead(self.descriptor, num_bytes) if num_bytes else None
        except OSError as error:
            _log.warning(
                "disk stage: rows that are not in the page cache are read one after the other, which is slower: the "
                "system refuses to be told of them ahead (%s); it takes Linux 5.10, and address space as large as the "
                "file (ulimit -v)",
                error.strerror,
            )
        if not self._queued:
            _log.warning(
                "disk stage: rows are read one by one, which is slower: the system has no read queue for this process; "
                "raise the limit (sysctl fs.aio-max-nr)"
            )

    def read(self, offsets: IndexArray, out: WordArray) -> None:
        """Read one run per row of ``out``.

        Args:
            offsets: First byte of each run, int64, shape ``(K,)``.
            out: uint64, C-contiguous, shape ``(K, W)``: runs are ``8 * W`` bytes long.

        Raises:
            OSError: if a run cannot be read in full.
        """
        run_bytes = 8 * out.shape[1]
        if self._ahead is not None and len(offsets) > 1:
            self._ahead.hint(offsets, run_bytes)
        if not self._queued:
            self._read_each(offsets, out)
            return
        addresses = out.__array_interface__["data"][0] + run_bytes * np.arange(len(offsets), dtype=np.int64)
        for first in range(0, len(offsets), QUEUE_ROWS):
            part = slice(first, first + QUEUE_ROWS)
            try:
                counts = read_runs(self.descriptor, offsets[part], addresses[part], run_bytes)
            except OSError:
                # No queue for this thread: they are shared out among all processes. The plain way tells what is wrong
                # if it is the disk.
                self._read_each(offsets[part], out[part])
                continue
            short = np.flatnonzero(counts != run_bytes)
            if len(short):
                _refuse_short(int(counts[short[0]]), run_bytes, int(offsets[part][short[0]]))

    def write(self, offset: int, records: WordArray) -> None:
        """Write consecutive bytes.

        Raises:
            OSError: if not all of them could be written.
        """
        content = records.data.cast("B")
        num_bytes, done = len(content), 0
        while done < num_bytes:  # a disk that fills up takes a part first, and says why at the next try
            count = os.pwrite(self.descriptor, content[done:], offset + done)
            if not count:
                raise OSError(errno.EIO, "the system wrote nothing")
            done += count
        self._forget(offset, num_bytes)

    def give_back(self) -> None:
        """Free the space now, though others may still hold the descriptor: reads in flight come up short."""
        if os.getpid() == self.pid:  # a forked child's descriptor is of the same file
            os.ftruncate(self.descriptor, 0)

    def _read_each(self, offsets: IndexArray, out: WordArray) -> None:
        for offset, row in zip(offsets.tolist(), out, strict=True):
            count = os.preadv(self.descriptor, [row.data.cast("B")], offset)
            if count != row.nbytes:
                _refuse_short(count, row.nbytes, offset)

    def _forget(self, offset: int, num_bytes: int) -> None:
        """Take written pages out of the page cache, in batches.

        The advice starts the writing of pages that are not on disk yet, and drops those that are. So each batch covers
        the one before it once more.
        """
        with self._lock:
            self._written_bytes += num_bytes
            end = offset + num_bytes
            if self._written_bytes < DROP_BYTES and end < self.num_bytes:
                return
            end = max(end, self._drop_from)  # another thread may have been quicker with what comes later
            first, self._drop_from, self._written_bytes = self._drop_from, max(0, end - DROP_BYTES), 0
        if end > first:
            with contextlib.suppress(OSError):  # advice only: a refusal changes nothing but the page cache
                os.posix_fadvise(self.descriptor, first, end - first, os.POSIX_FADV_DONTNEED)


def _refuse_short(count: int, run_bytes: int, offset: int) -> None:
    if count < 0:
        raise OSError(-count, f"{os.strerror(-count)}, at offset {offset:,}")
    raise OSError(errno.EIO, f"only {count:,} of {run_bytes:,} bytes could be read at offset {offset:,}")


def _open_nameless(folder: Path, num_bytes: int) -> int:
    try:
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)  # O_EXCL: it can never get a name
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
        descriptor, name = tempfile.mkstemp(prefix=".flodl_pipe-stage-", dir=folder)
        try:
            os.unlink(name)  # noqa: PTH108 - the same call as the one that made it, in one family
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise _no_file(error, folder, num_bytes) from error
    return descriptor


def _no_file(error: OSError, folder: Path, num_bytes: int) -> Exception:
    rule = _WRONG_FOLDER.get(error.errno or 0)
    if rule is not None:
        return ConfigError.at(
            "loader.disk_stage_dir",
            f"{str(folder)!r} {rule}, or set loader.disk_stage_dir to another folder ({error.strerror})",
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StagingError(
            f"the disk stage cannot open its file in {folder}: too many files are open ({error.strerror}); raise the "
            "limit (ulimit -n), or set loader.disk_stage=0"
        )
    return _no_space(error, folder, num_bytes)


def _no_space(error: OSError, folder: Path, num_bytes: int) -> StagingError:
    asked = f"the disk stage asked for {format_bytes(num_bytes)} in {folder}"
    if error.errno == errno.EFBIG:
        return StagingError(
            f"{asked}, and a file may not be that large there ({error.strerror}); lift the limit (ulimit -f), set "
            "loader.disk_stage_dir to another file system, or lower loader.disk_stage"
        )
    try:
        status = os.statvfs(folder)
        free = f"{format_bytes(status.f_bavail * status.f_frsize)} free"
    except OSError:
        free = "unknown free space"
    return StagingError(
        f"{asked}, which has {free}, and could not get it ({error.strerror}); lower loader.disk_stage, make room, or "
        "set loader.disk_stage_dir to a folder on another disk"
    )


def _reserve(descriptor: int, folder: Path, num_bytes: int) -> bool:
    """Reserve the file's space; return whether the file system can."""
    while num_bytes:
        try:
            _fallocate(descriptor, num_bytes)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise _no_space(error, folder, num_bytes) from error
            try:
                os.ftruncate(descriptor, num_bytes)
            except OSError as refused:
                raise _no_space(refused, folder, num_bytes) from refused
            return False
        break
    return True


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return libc


def _fallocate(descriptor: int, num_bytes: int) -> None:
    # Not os.posix_fallocate: where the file system cannot, the C library behind it writes into every block instead,
    # which takes minutes for what may be terabytes.
    if _libc().fallocate(descriptor, 0, 0, num_bytes):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
