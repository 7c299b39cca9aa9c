"""Passes that still have threads when the interpreter goes down are stopped before it does."""

import atexit
import weakref
from typing import Protocol

__all__ = ["stop_at_exit"]


class _Stoppable(Protocol):
    def stop(self, *, wait: bool = True) -> None: ...


_alive: "weakref.WeakSet[_Stoppable]" = weakref.WeakSet()


def stop_at_exit(reading: _Stoppable) -> None:
    """Stop a pass when the interpreter exits, unless it was collected by then."""
    _alive.add(reading)


def _stop_all() -> None:
    for reading in list(_alive):
        reading.stop()


atexit.register(_stop_all)
