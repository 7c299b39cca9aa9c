"""Memory that several processes of a host have in common: a file without a name, which each of them maps.

It takes pages only as they are written, and goes when the last process that maps it ends, however that ends. It is
sealed: nobody can make it shorter, so no access to it can become a signal. Pieces of it are taken in the same order by
all, so nobody has to tell where a piece lies.

There are no locks in it. A process that dies while it holds one would stop the others.
"""

import errno
import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray
from flodl_pipe.staging.shared_fence import memory_fence
from flodl_pipe.storage.libc import libc, mapped

__all__ = ["SharedMemory", "memory_file"]

# Pieces begin at large pages, so that they can be joined to such. Of address space there is enough.
_ALIGNMENT = 2 << 20
_SEALED = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_PROT_NONE, _MAP_FIXED = 0, 0x10
_ADD_SEALS, _GET_SEALS = 1033, 1034
_OVERCOMMIT, _STRICT = Path("/proc/sys/vm/overcommit_memory"), "2"


def memory_file(num_bytes: int) -> int:
    """Make a memory file of a fixed size, and return its descriptor, which is the caller's.

    Raises:
        OSError: where the system has none, or refuses it.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "this system has no memory files")
    if _is_strict():
        # Its pages are accounted for as they are written: a refusal would be a signal, and end the process.
        raise OSError(errno.ENOMEM, "memory is accounted for strictly here (vm.overcommit_memory=2)")
    descriptor = os.memfd_create("flodl_pipe_cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, max(1, num_bytes))
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEALED)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@final
class SharedMemory:
    """A mapped memory file, taken piece by piece. Not thread-safe while pieces are taken.

    Args:
        descriptor: What :func:`memory_file` made, in this process or another; not needed any more afterwards.
        num_bytes: Its size.

    Attributes:
        fence: Orders data and marks; see :mod:`flodl_pipe.staging.shared_fence`.

    Raises:
        OSError: if it is not such a file, or the system refuses the address space or has no fence.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        size = os.fstat(descriptor).st_size
        if size != max(1, num_bytes) or fcntl.fcntl(descriptor, _GET_SEALS) & _SEALED != _SEALED:
            raise OSError(errno.EINVAL, f"a file of {size:,} bytes came instead of a sealed one of {num_bytes:,}")
        fence = memory_fence()
        if fence is None:
            raise OSError(errno.ENOSYS, "this system has no memory barrier (membarrier) for programs to use")
        self.fence: Callable[[], None] = fence
        # The map is kept alive by the arrays, and goes away with the last of them.
        self._bytes: ByteArray = np.asarray(_Map(descriptor, size))
        self._next = 0

    @staticmethod
    def bytes_for(sizes: Iterable[int]) -> int:
        """Return the size of a file for pieces of some sizes: address space, not memory."""
        return sum(_aligned(size) for size in sizes)

    def reserve(self, num_bytes: int, *, scattered: bool = False) -> ByteArray:
        """Take the next piece; zeroed memory that takes pages only as they are written.

        Args:
            num_bytes: How much.
            scattered: Whether it is written here and there, not front to back.

        Returns:
            uint8, shape ``(num_bytes,)``.

        Raises:
            ValueError: if that is more than is left.
        """
        begin, self._next = self._next, self._next + _aligned(num_bytes)
        if self._next > max(1, len(self._bytes)):
            raise ValueError(
                f"a piece of {num_bytes:,} bytes at {begin:,} is beyond the {len(self._bytes):,} there are"
            )
        piece = self._bytes[begin : begin + num_bytes]
        if num_bytes:  # advice, which a kernel without such pages refuses
            address = piece.__array_interface__["data"][0]
            libc().madvise(address, num_bytes, mmap.MADV_NOHUGEPAGE if scattered else mmap.MADV_HUGEPAGE)
        return piece


@final
class _Map:
    """A shared map of a file at an address where its large pages can be large pages of this process as well.

    The kernel chooses such an address for some files and sizes only. So more is reserved, and the map put inside.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        reserved_bytes = _aligned(num_bytes) + _ALIGNMENT
        reserved = mapped(libc().mmap(None, reserved_bytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0))
        address = _aligned(reserved)
        done = libc().mmap(
            address, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0
        )
        # All of it goes at once: what is left around the map takes address space, and no memory.
        weakref.finalize(self, libc().munmap, reserved, reserved_bytes).atexit = False
        mapped(done)
        self.__array_interface__ = {"version": 3, "shape": (num_bytes,), "typestr": "|u1", "data": (address, False)}


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _is_strict() -> bool:
    try:
        return _OVERCOMMIT.read_text().strip() == _STRICT
    except OSError:  # hidden by a sandbox
        return False
