"""Memory that tiers keep samples in: private, anonymous, and resident only where it was written.

Large pages (2 MiB) let rows be gathered a fourth to a third faster than small ones (3 KB rows: 0.93 of a bare
``numpy.take``, against 0.69). But where rows are written here and there, each brings a whole page with it: 1,000 rows
of 3 KB at random took 379 MiB at once, and 5 with small pages. So memory that is written front to back has large pages
from the start, other memory small ones until all of it is written; then they are joined to large ones, 2 ms each.
"""

import contextlib
import ctypes
import errno
import mmap
import sys
from collections.abc import Callable
from functools import cache

import numpy as np

from flodl_pipe.arrays import ByteArray
from flodl_pipe.errors import StagingError
from flodl_pipe.units import format_bytes

__all__ = ["join_pages", "reserve"]

_LARGE_BYTES = 2 << 20
_MADV_COLLAPSE = 25


def reserve(num_bytes: int, *, scattered: bool = False) -> ByteArray:
    """Map zeroed memory that takes pages only as they are written; it goes when the last view of it goes.

    Args:
        num_bytes: How much.
        scattered: Whether it is written here and there, not front to back.

    Returns:
        uint8, shape ``(num_bytes,)``, aligned to a page.

    Raises:
        StagingError: if the system refuses.
    """
    try:
        memory = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise StagingError(
            f"no memory for a tier of {format_bytes(num_bytes)} ({error}); lower loader.ram_max_usage, or lift the "
            "limit on memory (ulimit -v)"
        ) from error
    with contextlib.suppress(OSError, AttributeError):  # where the kernel offers it
        memory.madvise(mmap.MADV_NOHUGEPAGE if scattered else mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[:num_bytes]


def join_pages(memory: ByteArray, *, stop: Callable[[], bool], yields: Callable[[], None]) -> None:
    """Give memory of :func:`reserve` that is wholly written large pages, in this thread; others may use it meanwhile.

    Does nothing where the kernel has no such call (before Linux 6.1) or no memory for it.

    Args:
        memory: All of it.
        stop: Asked before each large page.
        yields: Called after each.
    """
    advise = _madvise()
    if advise is None or len(memory) < _LARGE_BYTES:
        return
    address = memory.__array_interface__["data"][0]
    end = address + len(memory)
    if advise(address, len(memory), mmap.MADV_HUGEPAGE):
        return
    # Whole large pages only: what is left over at both ends is small either way.
    for begin in range(-(-address // _LARGE_BYTES) * _LARGE_BYTES, end - _LARGE_BYTES + 1, _LARGE_BYTES):
        if stop() or (advise(begin, _LARGE_BYTES, _MADV_COLLAPSE) and ctypes.get_errno() == errno.EINVAL):
            return
        yields()


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """Return the call, which gives up the interpreter meanwhile; that of :class:`mmap.mmap` does not."""
    if sys.platform != "linux":
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True).madvise
    except (AttributeError, TypeError, OSError):  # no such C library
        return None
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    call.restype = ctypes.c_int
    return call
