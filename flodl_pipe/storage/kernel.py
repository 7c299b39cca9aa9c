"""The Linux calls behind the vectored read, through ctypes, which releases the GIL around each but
:func:`has_identity`.

A user's file is mapped read-only and *never touched from user space*: its pages are only ever named in an iovec, so
the kernel does the reading. A page that is gone (the file was shortened) then shows as ``EFAULT`` or a short count,
where a user-space access would be a SIGBUS that ends the process.
"""

import ctypes
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable
from functools import cache

from flodl_pipe.arrays import IndexArray
from flodl_pipe.storage.libc import last_error, libc, mapped

__all__ = [
    "IOV_MAX",
    "advise_random",
    "gather",
    "has_identity",
    "identity",
    "map_file",
    "unmap",
    "vectored_supported",
]

IOV_MAX = 1024
"""Most iovec entries of one call; Linux fixes it."""

# struct statx, the same on every architecture: links (u32) at 16; inode and size (u64) at 32; modification time (s64,
# u32) at 112; device (2 x u32) at 136.
_STATX_BYTES = 256
_AT_FDCWD, _STATX_BASIC_STATS = -100, 0x7FF


def vectored_supported() -> bool:
    """Return whether this system has 64-bit offsets and addresses, memory files and ``pwritev``."""
    return sys.platform == "linux" and sys.maxsize > 2**32


def map_file(descriptor: int, num_bytes: int) -> int:
    """Map a file read-only and return the address. The descriptor may be closed afterwards.

    Raises:
        OSError: ``ENODEV`` where the file system cannot map files, ``ENOMEM`` where address space is limited.
    """
    return mapped(libc().mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0))


def unmap(address: int, num_bytes: int) -> None:
    """Undo :func:`map_file`. Nothing may read from the address any more: the kernel may hand it out again."""
    libc().munmap(address, num_bytes)


def advise_random(address: int, num_bytes: int) -> None:
    """Tell the kernel not to read around a missing page. Advice only: a refusal changes nothing but speed."""
    libc().madvise(address, num_bytes, mmap.MADV_RANDOM)


def gather(descriptor: int, vectors: IndexArray, offset: int = 0) -> int:
    """Write the runs that ``vectors`` names to a file, one after the other, in one call; return the bytes written.

    Args:
        descriptor: An open file.
        vectors: int64, C-contiguous, shape ``(K, 2)``: address and length of each run; ``K <= IOV_MAX``.
        offset: Where in the file the first run goes.

    Raises:
        OSError: ``EFAULT`` if not even the first run could be read.
    """
    count = int(libc().pwritev(descriptor, vectors.__array_interface__["data"][0], len(vectors), offset))
    if count < 0:
        raise last_error()
    return count


def identity(size: int, device: int, inode: int, mtime_ns: int) -> tuple[bytes, bytes, bytes]:
    """Return a file's identity as the parts of a status that :func:`has_identity` compares."""
    seconds, nanoseconds = divmod(mtime_ns, 1_000_000_000)
    return (
        struct.pack("=QQ", inode, size),
        struct.pack("=qI", seconds, nanoseconds),
        struct.pack("=II", os.major(device), os.minor(device)),
    )


def has_identity(path: bytes, expected: tuple[bytes, bytes, bytes]) -> bool:
    """Return whether a file is there and has this identity; the GIL is held throughout.

    A status takes about 1 us. ``os.stat`` would release the GIL for it, and beside a training loop in pure Python
    getting it back takes the interpreter's switch interval of 5 ms, per file.
    """
    statx = _statx()
    if statx is None:
        return _plain_has_identity(path, expected)
    buffer = _status_buffer()
    if statx(_AT_FDCWD, path, 0, _STATX_BASIC_STATS, buffer):
        return False
    found = buffer.raw
    return (found[32:48], found[112:124], found[136:144]) == expected and found[16:20] != b"\0\0\0\0"


@cache
def _statx() -> Callable[..., int] | None:
    try:
        call = ctypes.PyDLL(None).statx
    except (AttributeError, TypeError, OSError):  # not Linux, or a C library older than the call
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    return call


class _Local(threading.local):
    buffer: "ctypes.Array[ctypes.c_char] | None" = None


_local = _Local()


def _status_buffer() -> "ctypes.Array[ctypes.c_char]":
    if _local.buffer is None:
        _local.buffer = ctypes.create_string_buffer(_STATX_BYTES)
    return _local.buffer


def _plain_has_identity(path: bytes, expected: tuple[bytes, bytes, bytes]) -> bool:
    try:
        status = os.stat(path)  # noqa: PTH116 - the same call as above, by its own name
    except OSError:
        return False
    found = identity(status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)
    return found == expected and status.st_nlink > 0
