"""How long this rank takes by itself: from the loop asking for a batch to its last gradient, without other ranks.

::

    next()  ...wait for data...  forward  backward  last gradient bucket ready | all-reduce  optimizer  next()
    |<------------------------ counted ------------------------------------->|  not counted

Where several batches are taken before gradients are exchanged (accumulation), all of that counts.

On an accelerator the host runs ahead of the device, so both moments are events in the stream that computes. They are
read only once both have passed: the host never waits for the device.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, final

import torch

__all__ = ["StepClock", "Window", "clock_for"]

# The first steps of a run compile, tune and allocate.
_WARM_UP = 2
_MOST_PENDING = 4096


class Mark(Protocol):
    """A moment of the rank's work."""

    def has_passed(self) -> bool:
        """Return whether the work before it is done."""
        ...

    def seconds_since(self, earlier: "Mark") -> float:
        """Return the time from an earlier moment of the same kind; both must have passed."""
        ...


class Window(NamedTuple):
    """What was measured since the last look.

    Attributes:
        seconds: Time this rank took by itself.
        num_rows: Rows it worked on in that time; 0 where nothing was measured.
    """

    seconds: float
    num_rows: int


@final
class StepClock:
    """Times of steps. For the loop's thread, and the one that runs backward while the loop waits for it.

    Args:
        mark: Takes the present moment.
    """

    def __init__(self, mark: Callable[[], Mark]) -> None:
        self._mark = mark
        self._asked: Mark | None = None
        self._num_rows = 0
        self._to_skip = _WARM_UP
        self._done: deque[tuple[Mark, Mark, int]] = deque(maxlen=_MOST_PENDING)

    def asked(self) -> None:
        """Note that the loop asks for a batch."""
        if self._asked is None:
            self._asked = self._mark()

    def given(self, num_rows: int) -> None:
        """Note that it got one, of so many rows."""
        self._num_rows += num_rows

    def computed(self) -> None:
        """Note that the gradients of everything given so far are there, on this rank."""
        asked, num_rows = self._asked, self._num_rows
        self._asked, self._num_rows = None, 0
        if asked is None or not num_rows:
            return  # a second model's, or without a batch
        if self._to_skip:
            self._to_skip -= 1
            return
        self._done.append((asked, self._mark(), num_rows))

    def break_off(self) -> None:
        """Note that the pass ended: what the loop does now, validation say, is no part of a step."""
        self._asked, self._num_rows = None, 0

    def window(self) -> Window:
        """Return what was measured since the last call, of steps that are done. It does not wait."""
        seconds, num_rows = 0.0, 0
        while self._done and self._done[0][1].has_passed():
            asked, computed, count = self._done.popleft()
            seconds += computed.seconds_since(asked)
            num_rows += count
        return Window(seconds, num_rows)


@final
class _HostMark:
    """A moment on the host's clock."""

    __slots__ = ("at_s",)

    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def has_passed(self) -> bool:
        return True

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _HostMark)
        return self.at_s - earlier.at_s


@final
class _StreamMark:
    """A moment in the stream that computes."""

    __slots__ = ("event",)

    def __init__(self, device: torch.device) -> None:
        self.event = torch.Event(device, enable_timing=True)
        self.event.record(torch.accelerator.current_stream(device))

    def has_passed(self) -> bool:
        return self.event.query()

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _StreamMark)
        return earlier.event.elapsed_time(self.event) / 1e3  # milliseconds


def clock_for(device: torch.device) -> StepClock:
    """Return the clock for batches that are trained on a device: its own time on an accelerator, else the host's."""
    if device.type in ("cuda", "xpu"):
        return StepClock(lambda: _StreamMark(device))
    return StepClock(_HostMark)
