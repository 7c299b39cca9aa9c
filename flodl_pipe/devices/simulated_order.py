"""Happens-before checking: every two operations on the same bytes, one of them a write, must be ordered.

The actors are the streams and the host, which is one actor however many threads it has: threads order their work by
locks, and those are not looked at. Each stream has a *vector clock*: how many operations of every stream are known to
be done before its next one. An operation takes over what the host knows when it is enqueued, a wait what the event's
stream knew when it was recorded, a synchronisation makes the host know it. So nothing depends on when the work is
really done, and a missing wait is found in the first run, not in the unlucky one.

For every byte the last write is remembered, and the last read of each stream since, in maps of ranges: one for each
block of device memory, one for the host's addresses. What the host knows to be done is ordered before everything that
is still to come, so it is forgotten; that also is why accesses by the host itself are checked but never remembered.
"""

import sys
import weakref
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from flodl_pipe.errors import LoaderError

__all__ = ["Access", "Known", "Operation", "OrderError", "Place", "RangeMap", "caller", "check", "join", "note"]

Known = dict[int, int]
"""A vector clock: how many operations of each stream, by its number, are done before what comes now."""

_PACKAGE = str(Path(__file__).parent)
_SWEEP_FROM = 64


class OrderError(LoaderError):
    """Two operations work on the same bytes, one of them writes, and nothing orders them: a wait is missing."""


def join(known: Known, other: Mapping[int, int]) -> None:
    """Add to a vector clock what another one knows."""
    for actor, tick in other.items():
        if tick > known.get(actor, 0):
            known[actor] = tick


def caller() -> str:
    """Return ``file:line`` of the nearest caller outside of this package."""
    frame = sys._getframe(1)  # noqa: SLF001  # inspect.stack() reads source files, which costs milliseconds
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@final
class Operation:
    """Something that was done to memory, as an error names it.

    Args:
        what: In words, for example ``copy_in of 4,096 bytes``.
        stream: Name of the stream; None for the host.
        where: ``file:line`` that asked for it.
        is_use: Whether it is work of somebody else's that was declared, or the end of it.
    """

    __slots__ = ("is_use", "stream", "what", "where")

    def __init__(self, what: str, stream: str | None, where: str, *, is_use: bool = False) -> None:
        self.what = what
        self.stream = stream
        self.where = where
        self.is_use = is_use

    def __str__(self) -> str:
        if self.stream is None:
            return f"{self.what} by the host at {self.where}"
        verb = "declared" if self.is_use else "enqueued"
        return f"{self.what} on stream {self.stream}, {verb} at {self.where}"


@final
class Access:
    """A stream's operation on some bytes.

    Args:
        operation: What was done.
        actor: Number of the stream.
        tick: Which operation of the stream it is, from 1 on.
        lease: How often the block had been handed out then; 0 for host memory.
        owner: What the host memory belongs to: when that is gone, other memory may lie at the address.
    """

    __slots__ = ("actor", "lease", "operation", "owner", "tick")

    def __init__(
        self, operation: Operation, actor: int, tick: int, lease: int, owner: "weakref.ref[object] | None" = None
    ) -> None:
        self.operation = operation
        self.actor = actor
        self.tick = tick
        self.lease = lease
        self.owner = owner

    def matters(self, host: Known) -> bool:
        """Return whether anything to come may conflict with it."""
        return self.tick > host.get(self.actor, 0) and (self.owner is None or self.owner() is not None)


_State = tuple[Access | None, tuple[Access, ...]]
_NOTHING: _State = (None, ())


@final
class RangeMap:
    """The last write and the last reads of every byte of a piece of memory.

    Args:
        host: What the host knows; shared, and only read here.
    """

    def __init__(self, host: Known) -> None:
        self._host = host
        # Range i is [starts[i], starts[i + 1]), the last one without an end.
        self._starts = [0]
        self._states: list[_State] = [_NOTHING]
        self._sweep_at = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self._starts)

    def conflict(self, begin: int, end: int, known: Known, *, is_write: bool) -> tuple[int, int, Access] | None:
        """Return the first range that somebody works on unordered, and forget that work: it is told once.

        Args:
            begin: First byte.
            end: Byte after the last.
            known: What is done before the new operation.
            is_write: Whether the new operation writes; a read conflicts with writes only.
        """
        index = bisect_right(self._starts, begin) - 1
        found = None
        while index < len(self._starts) and self._starts[index] < end:
            write, reads = self._states[index]
            for access in (write, *(reads if is_write else ())):
                if access is not None and access.tick > known.get(access.actor, 0) and access.matters(self._host):
                    low = max(begin, self._starts[index])
                    high = min(end, self._starts[index + 1]) if index + 1 < len(self._starts) else end
                    found = found or (low, high, access)
                    if is_write:
                        self._states[index] = _NOTHING
                    else:
                        self._states[index] = (None, reads)
            index += 1
        return found

    def is_ordered(self, known: Known) -> bool:
        """Return whether all work on the memory is done before what comes after ``known``."""
        return not any(
            access is not None and access.tick > known.get(access.actor, 0) and access.matters(self._host)
            for write, reads in self._states
            for access in (write, *reads)
        )

    def note(self, begin: int, end: int, access: Access, *, is_write: bool) -> None:
        """Remember an operation on a range; see :meth:`conflict`."""
        first, last = self._split(begin), self._split(end)
        if is_write:
            self._starts[first:last] = [begin]
            self._states[first:last] = [(access, ())]
        else:
            for index in range(first, last):
                write, reads = self._kept(self._states[index])
                self._states[index] = (write, (*(read for read in reads if read.actor != access.actor), access))
        if len(self._starts) > self._sweep_at:
            self._sweep()

    def _split(self, at: int) -> int:
        """Make a range begin at a byte and return its number."""
        index = bisect_right(self._starts, at) - 1
        if self._starts[index] == at:
            return index
        self._starts.insert(index + 1, at)
        self._states.insert(index + 1, self._states[index])
        return index + 1

    def _kept(self, state: _State) -> _State:
        write, reads = state
        return (
            write if write is not None and write.matters(self._host) else None,
            tuple(read for read in reads if read.matters(self._host)),
        )

    def _sweep(self) -> None:
        """Forget what cannot conflict any more and join neighbours that are alike."""
        starts: list[int] = []
        states: list[_State] = []
        for start, state in zip(self._starts, self._states, strict=True):
            kept = self._kept(state)
            if not states or kept != states[-1]:
                starts.append(start)
                states.append(kept)
        self._starts, self._states = starts, states
        self._sweep_at = max(_SWEEP_FROM, 2 * len(starts))


def _remedy(new: Operation, old: Access, lease: int) -> str:
    """Return which wait is missing."""
    stream = old.operation.stream
    if old.lease != lease:
        return (
            f"the memory was handed out again while stream {stream} may still work on it; call "
            f"device.keep_for({stream}, tensors) before they are let go"
        )
    if new.stream is None:
        return f"the host does not wait; record an event on stream {stream} and device.synchronize(event) first"
    return (
        f"stream {new.stream} does not wait; record an event on stream {stream} and "
        f"device.wait({new.stream}, event) first"
    )


Place = tuple[RangeMap, str, int, "weakref.ref[object] | None", Sequence[tuple[int, int]]]
"""Memory that an operation touches: its map, its name, its lease number, its owner, and the ranges."""


def check(new: Operation, known: Known, places: Sequence[tuple[Place, bool]]) -> None:
    """Check an operation against all that came before it.

    Args:
        new: The operation.
        known: What is done before it.
        places: What it touches, each with whether it writes there.

    Raises:
        OrderError: if it is not ordered after work on the same bytes.
    """
    for (ranges, name, lease, _, spans), is_write in places:
        for begin, end in spans:
            found = ranges.conflict(begin, end, known, is_write=is_write)
            if found is not None:
                low, high, old = found
                raise OrderError(
                    f"{new} is not ordered after {old.operation}: both work on {high - low:,} bytes of {name}, and "
                    f"one of them writes; {_remedy(new, old, lease)}"
                )


def note(new: Operation, actor: int, tick: int, places: Sequence[tuple[Place, bool]]) -> None:
    """Remember an operation of a stream; see :func:`check`."""
    for (ranges, _, lease, owner, spans), is_write in places:
        access = Access(new, actor, tick, lease, owner)
        for begin, end in spans:
            ranges.note(begin, end, access, is_write=is_write)
