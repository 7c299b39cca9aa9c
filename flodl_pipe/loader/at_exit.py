"""How reader threads end: promptly, also from a read that waits for a network, and before the interpreter does."""

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

__all__ = ["is_own_thread", "join_readers", "stop_at_exit"]

_PATIENCE_S = 1.0
_INTERRUPT_EVERY_S = 0.25


class _Stoppable(Protocol):
    def stop(self, *, wait: bool = True) -> None: ...


# References without callbacks: Ctrl-C inside one, as a WeakSet has them, would be printed and lost.
_alive: "list[weakref.ref[_Stoppable]]" = []


def stop_at_exit(reading: _Stoppable) -> None:
    """Stop a pass when the interpreter exits, unless it was collected by then."""
    _alive[:] = [other for other in _alive if other() is not None]
    _alive.append(weakref.ref(reading))


def is_own_thread() -> bool:
    """Return whether this is a thread of ours, which must not wait for another: it may hold what that one needs.

    Garbage is collected in any thread, and with it loaders and iterators that nobody wants.
    """
    return threading.current_thread().name.startswith("flodl_pipe-")


def join_readers(threads: Sequence[threading.Thread], interrupt: Callable[[], None]) -> None:
    """Wait until readers that were told to stop have ended.

    Args:
        threads: The readers.
        interrupt: Ends reads that they are waiting for. Called when they have not ended after a second: most reads take
            milliseconds, and what it closes would have to be opened again.
    """
    patient_until_s = time.monotonic() + _PATIENCE_S
    for thread in threads:
        thread.join(max(0.0, patient_until_s - time.monotonic()))
    while any(thread.is_alive() for thread in threads):
        interrupt()  # again and again: a reader that missed a group reads its steps one by one before it gives up
        for thread in threads:
            thread.join(_INTERRUPT_EVERY_S)


def _stop_all() -> None:
    for reading in [reference() for reference in _alive]:
        if reading is not None:
            reading.stop()


atexit.register(_stop_all)
