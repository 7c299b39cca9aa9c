"""Order between what one process writes to shared memory and what another reads of it.

Whoever publishes a row writes its bytes first and its mark after them; whoever reads looks at the mark first. That is
enough only if both the compiler and the processor keep these orders:

* The two are separate calls into compiled code here, with the interpreter in between: no compiler moves one past the
  other.
* x86 makes stores visible in the order in which they were made, and loads in order (the exception, stores that bypass
  the caches, end with a fence inside the copy that uses them). Nothing is left to do.
* ARM, RISC-V and POWER keep neither order. There a fence is needed on both sides, and Python has none to offer; the
  kernel has, ``membarrier``: a call that is a full barrier for the thread that calls it, and by the kernel's own table
  ordered with another process's call of it. It takes 0.7 us, once per batch that is read or kept (AMD EPYC, Linux
  6.18, 2026-11-30), and none once all is there.

Within a process the interpreter's lock orders threads.
"""

import ctypes
import platform
import sys
from collections.abc import Callable
from functools import cache, partial

__all__ = ["memory_fence"]

_IN_ORDER = ("x86_64", "amd64", "i386", "i686")
# Numbers of the system call; the same on all architectures that came after 2012.
_MEMBARRIER = {"aarch64": 283, "arm64": 283, "riscv64": 283, "loongarch64": 283, "ppc64le": 365, "s390x": 356}
# To all processes that asked for it, of which we are none: nobody is interrupted, the caller has its barrier.
_GLOBAL_EXPEDITED = 2


@cache
def memory_fence() -> Callable[[], None] | None:
    """Return what a process calls between data and mark, on both sides; None where there is no such thing."""
    machine = platform.machine().lower()
    if machine in _IN_ORDER:
        return _nothing
    number = _MEMBARRIER.get(machine)
    return None if number is None or sys.platform != "linux" else membarrier(number)


def membarrier(number: int) -> Callable[[], None] | None:
    """Return the system call of this number as a fence; None where the kernel or a sandbox refuses it."""
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (AttributeError, TypeError, OSError):  # no such C library
        return None
    call.restype, call.argtypes = ctypes.c_long, (ctypes.c_long,) * 4
    fence = partial(call, number, _GLOBAL_EXPEDITED, 0, 0)
    return fence if fence() == 0 else None


def _nothing() -> None:
    return None
