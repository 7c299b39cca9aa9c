"""The maps open in one process: blob number -> address, bounded in number.

A map needs no open descriptor, so a source over thousands of shards stays far below the limit on open files. What is
limited is the number of maps (``vm.max_map_count``, 65,530 by default); above half of it the map used longest ago goes
first. A map that another thread is reading from stays until that read has let go of it: the address of a map that is
gone may be handed out again, and would then name another file's bytes.
"""

import errno
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from flodl_pipe.errors import SourceError
from flodl_pipe.storage import kernel
from flodl_pipe.storage.pins import FilePin, require_pinned, require_status

__all__ = ["FileMap", "MapTable", "available_bytes", "cannot_read", "map_limit", "open_pinned"]

_logger = logging.getLogger("flodl_pipe")


def open_pinned(path: str, pin: FilePin) -> int:
    """Open a file for reading and return its descriptor, once it has proved to be the pinned one.

    Raises:
        ChangedError: if another file stands there now, or none.
        SourceError: if it may not be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        require_pinned(path, pin)  # gone or replaced, which says more than the refusal
        raise cannot_read(path, error) from error
    try:
        require_status(path, pin, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def cannot_read(path: str, error: OSError) -> SourceError:
    """Return the error to raise when the system refuses to open or read a file."""
    remedy = (
        "raise the limit on open files (ulimit -n)"
        if error.errno in (errno.EMFILE, errno.ENFILE)
        else "the file must stay readable while a run uses it"
    )
    return SourceError(f"{path}: cannot be read ({error.strerror}); {remedy}")


@final
class FileMap:
    """One mapped file; unmapped when the last user lets go of it.

    Attributes:
        address: Address of byte 0. For the kernel only: never read through it.
    """

    __slots__ = ("__weakref__", "address")

    def __init__(self, path: str, pin: FilePin, *, random: bool) -> None:
        descriptor = open_pinned(path, pin)
        try:
            self.address = kernel.map_file(descriptor, pin.size)
        finally:
            os.close(descriptor)
        weakref.finalize(self, kernel.unmap, self.address, pin.size).atexit = False
        if random:
            kernel.advise_random(self.address, pin.size)


@final
class MapTable:
    """The maps of one process, least recently used first.

    Attributes:
        pid: The process it belongs to; a forked child makes its own, because this one's lock may be held by a thread
            that does not exist there.
    """

    def __init__(self, open_map: Callable[[int], FileMap], limit: int) -> None:
        self.pid = os.getpid()
        self._open_map = open_map
        self._limit = limit
        self._maps: OrderedDict[int, FileMap] = OrderedDict()
        self._lock = threading.Lock()
        self._warned = False

    def acquire(self, blobs: Sequence[int]) -> list[FileMap]:
        """Return the map of each blob, opening what is not open. The maps live as long as the list does."""
        with self._lock:
            return [self._acquire(blob) for blob in blobs]

    def _acquire(self, blob: int) -> FileMap:
        found = self._maps.get(blob)
        if found is not None:
            self._maps.move_to_end(blob)
            return found
        found = self._maps[blob] = self._open_map(blob)
        if len(self._maps) > self._limit:
            self._maps.popitem(last=False)
            self._warn()
        return found

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _logger.warning(
                "more than %s files: they are opened again and again, which is slow; "
                "raise the limit on maps (sysctl vm.max_map_count) or join the files into fewer, larger ones",
                f"{self._limit:,}",
            )

    def __len__(self) -> int:
        return len(self._maps)


def map_limit() -> int:
    """Return how many maps one source may hold: half of what the system allows a process."""
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
