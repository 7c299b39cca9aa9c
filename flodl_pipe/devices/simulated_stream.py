"""Simulated streams: work that is put off as long as it may be, and the virtual time that it would take.

A stream keeps what was enqueued until somebody needs it: a synchronisation, the consumer's wait, or work whose results
are asked for. Then it is done in the thread that needs it, together with whatever it waits for on other streams, and
nothing else. So a copy reads its source at the latest legal moment; who wrote there too early, or reads the target
without waiting, finds wrong bytes every time.

The *consumer* stream is the one that the loop's torch calls go to. They are done at once and nobody tells of them, so
it puts nothing off, and its time is the time of the thread that uses it.

Times are settled when work is enqueued, whenever it is done.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal, final

import torch

from flodl_pipe.devices.clock import VirtualClock
from flodl_pipe.devices.simulated_order import Known

__all__ = ["SimulatedEvent", "SimulatedStream", "Timing", "as_enqueued"]

_TIMELINE_ENTRIES = 10_000
# A device makes progress though nobody waits: who asks this often whether an event is done gets a yes.
_ASKS = 64


@final
class SimulatedStream:
    """Work in order; used under the device's lock.

    Args:
        name: For people.
        actor: Its number.
        clock: Virtual time of the device.
        lock: The device's.
        runs_at_once: Whether it is the consumer stream.

    Attributes:
        known: What is done before its next operation.
        time_s: When what was enqueued so far is done.
        num_enqueued: Entries so far.
        num_done: Entries done.
        pending: Those that are not.
    """

    def __init__(
        self, name: str, actor: int, clock: VirtualClock, lock: threading.RLock, *, runs_at_once: bool = False
    ) -> None:
        self.name = name
        self.actor = actor
        self.clock = clock
        self.lock = lock
        self.runs_at_once = runs_at_once
        self.known: Known = {}
        self.time_s = 0.0
        self.num_enqueued = 0
        self.num_done = 0
        self.pending: deque[Callable[[], object] | SimulatedEvent] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is put off."""
        return not self.pending

    def put(self, entry: "Callable[[], object] | SimulatedEvent") -> None:
        """Enqueue work, or an event to wait for."""
        self.num_enqueued += 1
        self.pending.append(entry)
        if self.runs_at_once:
            self.run_until(self.num_enqueued)

    def run_until(self, place: int) -> None:
        """Do the work up to an entry, and before it whatever it waits for elsewhere.

        Raises what the work raises; the entry counts as done then, so that nobody meets it again.
        """
        # Events are recorded before they are waited for, so this ends. A stack of its own, since chains of waits may
        # be longer than Python's.
        wanted: list[tuple[SimulatedStream, int]] = [(self, place)]
        while wanted:
            stream, until = wanted[-1]
            if stream.num_done >= until:
                wanted.pop()
                continue
            entry = stream.pending[0]
            if isinstance(entry, SimulatedEvent) and not entry.has_run:
                wanted.append((entry.stream, entry.place))
                continue
            stream.pending.popleft()
            stream.num_done += 1
            if not isinstance(entry, SimulatedEvent):
                entry()

    def run_all(self) -> None:
        """Do all that is put off."""
        self.run_until(self.num_enqueued)


@final
class SimulatedEvent:
    """A point in a stream's work.

    Args:
        stream: The stream.
        time_s: When the work before it is done.

    Attributes:
        place: How many entries of the stream come before it.
        known: What is done when it is.
    """

    __slots__ = ("_asks", "known", "place", "stream", "time_s")

    def __init__(self, stream: SimulatedStream, time_s: float) -> None:
        self.stream = stream
        self.place = stream.num_enqueued
        self.known = dict(stream.known)
        self.time_s = time_s
        self._asks = 0

    @property
    def has_run(self) -> bool:
        """Whether the work before it was done in this simulation."""
        return self.stream.num_done >= self.place

    def is_done(self) -> bool:
        """Return whether the asking thread's time is past it; asking does not count as waiting."""
        with self.stream.lock:
            self._asks += 1
            if self.time_s > self.stream.clock.now() and self._asks <= _ASKS:
                return False
            self.stream.run_until(self.place)
            return True


@final
class Timing:
    """How long things take. Copies in one direction share one engine; all other work has the device to itself.

    Args:
        clock: Virtual time of the device.
        copy_bytes_per_s: Speed of a copy between host and device.
        gather_bytes_per_s: Speed of work on device memory.
        latency_s: What every operation takes before its first byte.

    Attributes:
        timeline: The last operations: stream, what, begin, end.
    """

    def __init__(
        self, clock: VirtualClock, *, copy_bytes_per_s: float, gather_bytes_per_s: float, latency_s: float
    ) -> None:
        self._clock = clock
        self._rates = {"in": copy_bytes_per_s, "out": copy_bytes_per_s, "work": gather_bytes_per_s}
        self._latency_s = latency_s
        self._free_s = {"in": 0.0, "out": 0.0}
        self.timeline: deque[tuple[str, str, float, float]] = deque(maxlen=_TIMELINE_ENTRIES)

    def spend(self, stream: SimulatedStream, engine: Literal["in", "out", "work"], what: str, num_bytes: int) -> None:
        """Let a stream work on ``num_bytes``."""
        begin_s = max(stream.time_s, self._clock.now(), self._free_s.get(engine, 0.0))
        end_s = begin_s + self._latency_s + num_bytes / self._rates[engine]
        if engine in self._free_s:
            self._free_s[engine] = end_s
        self.timeline.append((stream.name, what, begin_s, end_s))
        self.reach(stream, end_s)

    def reach(self, stream: SimulatedStream, time_s: float) -> None:
        """Let a stream's later work begin at ``time_s`` or later."""
        stream.time_s = max(stream.time_s, time_s)
        if stream.runs_at_once:
            self._clock.reach(stream.time_s)

    def now(self, stream: SimulatedStream) -> float:
        """Return when work that is enqueued now can begin."""
        return max(stream.time_s, self._clock.now())


@contextlib.contextmanager
def as_enqueued() -> Iterator[None]:
    """Do put-off torch work without the modes of the thread that happens to need it."""
    with (
        torch.inference_mode(mode=False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.device("cpu"),
    ):
        yield
