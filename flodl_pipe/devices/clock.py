"""Virtual time: what a schedule of reads, copies and steps would take, without waiting for it.

Every thread has a time of its own. Work moves it on; whatever hands something from one thread to another stamps it with
the giver's time, and the taker's time becomes at least that. The times are those of a pipeline in which every part
starts as soon as what it needs is there, however the operating system runs the threads meanwhile.

Real devices have :data:`NO_CLOCK`, which costs a call and does nothing.
"""

import threading
from typing import Protocol, final

__all__ = ["NO_CLOCK", "Clock", "VirtualClock"]


class Clock(Protocol):
    """Times in seconds. All methods may be called from several threads."""

    def now(self) -> float:
        """Return the calling thread's time."""
        ...

    def reach(self, time_s: float) -> None:
        """Move the calling thread's time on to ``time_s``, unless it is later already."""
        ...

    def spend(self, seconds: float) -> None:
        """Note that the calling thread works for ``seconds``."""
        ...


@final
class VirtualClock:
    """A time for each thread, from 0 on."""

    def __init__(self) -> None:
        self._local = threading.local()

    def now(self) -> float:
        """Return the calling thread's time."""
        time_s: float = getattr(self._local, "time_s", 0.0)
        return time_s

    def reach(self, time_s: float) -> None:
        """Move the calling thread's time on to ``time_s``, unless it is later already."""
        self._local.time_s = max(self.now(), time_s)

    def spend(self, seconds: float) -> None:
        """Note that the calling thread works for ``seconds``."""
        self._local.time_s = self.now() + seconds


@final
class _NoClock:
    def now(self) -> float:
        return 0.0

    def reach(self, time_s: float) -> None:
        pass

    def spend(self, seconds: float) -> None:
        pass


NO_CLOCK: Clock = _NoClock()
"""The clock of everything that really takes its time."""
