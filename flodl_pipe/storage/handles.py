"""What is open in one process: blob number -> handle (a map or a descriptor), bounded in number.

Above the limit the handle used longest ago goes first. One that another thread is reading from stays until that read
has let go of it: an address or a descriptor that was given back may be handed out again, and would then name another
file's bytes.
"""

import errno
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import final

from flodl_pipe.errors import SourceError
from flodl_pipe.storage.pins import FilePin, require_pinned, require_status

__all__ = ["Handle", "HandleTable", "cannot_read", "open_pinned"]

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
        else "the file must stay readable while a run uses it; check the disk or the network mount"
    )
    return SourceError(f"{path}: cannot be read ({error.strerror}); {remedy}")


@final
class Handle:
    """Something open, given back when its last user lets go of it.

    Attributes:
        value: An address, for the kernel only, or a descriptor.
    """

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: int, give_back: Callable[..., object], *args: int) -> None:
        self.value = value
        weakref.finalize(self, give_back, value, *args).atexit = False


@final
class HandleTable:
    """The handles of one process, least recently used first.

    Args:
        open_handle: Opens the handle of a blob.
        limit: Most handles to keep.
        limit_name: The system's limit behind it, for the warning: ``ulimit -n``.

    Attributes:
        pid: The process it belongs to; a forked child makes its own, because this one's lock may be held by a thread
            that does not exist there.
    """

    def __init__(self, open_handle: Callable[[int], Handle], limit: int, limit_name: str) -> None:
        self.pid = os.getpid()
        self._open_handle = open_handle
        self._limit, self._limit_name = limit, limit_name
        self._handles: OrderedDict[int, Handle] = OrderedDict()
        self._lock = threading.Lock()
        self._warned = False

    def acquire(self, blobs: Sequence[int]) -> list[Handle]:
        """Return the handle of each blob, opening what is not open. They stay open as long as the list lives.

        Raises:
            ChangedError: if a file is not what it was.
            SourceError: if a file cannot be opened.
        """
        with self._lock:
            return [self._acquire(blob) for blob in blobs]

    def _acquire(self, blob: int) -> Handle:
        found = self._handles.get(blob)
        if found is not None:
            self._handles.move_to_end(blob)
            return found
        found = self._handles[blob] = self._open_handle(blob)
        if len(self._handles) > self._limit:
            self._handles.popitem(last=False)
            self._warn()
        return found

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _logger.warning(
                "more than %s files: they are opened again and again, which is slow; "
                "raise the limit (%s), or join the files into fewer, larger ones",
                *(f"{self._limit:,}", self._limit_name),
            )
