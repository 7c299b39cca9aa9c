"""The C library's memory and vectored-write calls, through ctypes, which releases the GIL around each."""

import ctypes
import os
from functools import cache

__all__ = ["last_error", "libc", "mapped"]

_FAILED = ctypes.c_void_p(-1).value


@cache
def libc() -> ctypes.CDLL:
    """Return the C library, with ``mmap``, ``munmap``, ``madvise`` and ``pwritev`` typed; Linux, 64 bits."""
    library = ctypes.CDLL(None, use_errno=True)
    size, address, whole = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    library.mmap.argtypes = (address, size, whole, whole, whole, ctypes.c_int64)
    library.mmap.restype = address
    library.munmap.argtypes = (address, size)
    library.madvise.argtypes = (address, size, whole)
    library.pwritev.argtypes = (whole, address, whole, ctypes.c_int64)
    library.pwritev.restype = ctypes.c_ssize_t
    return library


def mapped(address: int | None) -> int:
    """Return what ``mmap`` returned.

    Raises:
        OSError: if it failed.
    """
    if address is None or address == _FAILED:
        raise last_error()
    return address


def last_error() -> OSError:
    """Return the failure of the last call of this thread."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
