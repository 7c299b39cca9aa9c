"""Steps that were uploaded, or are being so, and that the loop did not take yet: how many, how many bytes, since when.

On a virtual clock a step cannot be uploaded before the step whose place it takes was taken; see
:mod:`flodl_pipe.devices.clock`.
"""

from collections import deque
from typing import NamedTuple, final

__all__ = ["InFlight", "Room"]

_TIMES_KEPT = 1024


@final
class Room(NamedTuple):
    """What may be in flight.

    Attributes:
        depth: Steps, at least 1.
        num_bytes: Bytes of all of them.
        step_bytes: Bytes of the next.
    """

    depth: int
    num_bytes: int
    step_bytes: int


@final
class InFlight:
    """Steps of one pass on their way; used under its lock, but for looks at the numbers.

    Attributes:
        num_steps: Steps that were claimed and not taken.
        num_bytes: Device memory of those that are ready.
    """

    def __init__(self) -> None:
        self.num_steps = self.num_bytes = 0
        self._num_claimed = self._num_taken = 0
        self._taken_s: deque[float] = deque(maxlen=_TIMES_KEPT)

    def has_room(self, room: Room) -> bool:
        """Return whether one more step may be uploaded: one always, for a loop cannot be fed with less."""
        if not self.num_steps:
            return True
        return self.num_steps < room.depth and self.num_bytes + room.step_bytes <= room.num_bytes

    def claim(self, depth: int) -> float:
        """Count a step that is going to be uploaded; return since when there has been room for it."""
        place = self._num_claimed - depth
        self.num_steps += 1
        self._num_claimed += 1
        kept = place - (self._num_taken - len(self._taken_s))
        return self._taken_s[kept] if 0 <= kept < len(self._taken_s) else 0.0

    def withdraw(self) -> None:
        """Take back a claim."""
        self.num_steps -= 1
        self._num_claimed -= 1

    def ready(self, num_bytes: int) -> None:
        """Note that a step is on the device."""
        self.num_bytes += num_bytes

    def take(self, num_bytes: int, time_s: float) -> None:
        """Note that the loop took a step."""
        self.num_steps -= 1
        self.num_bytes -= num_bytes
        self._num_taken += 1
        self._taken_s.append(time_s)

    def end(self) -> None:
        """Forget what is in flight."""
        self.num_steps = self.num_bytes = 0
