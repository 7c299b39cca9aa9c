"""Which pass over the data comes next: the iteration rules as a small state machine, without any data.

* A fresh loader starts epoch 0; after a pass that finished, the next epoch follows.
* After a pass that was broken off, its epoch starts over, as people expect of a DataLoader.
* After a cursor was loaded, the pass continues at it. A cursor that stands at the end of its epoch leads to the next
  one,
  unless the loop names that very epoch: then nothing is left of it.
"""

from collections.abc import Callable
from typing import Literal, final

__all__ = ["Passes"]


@final
class Passes:
    """Where the stream stands, and where the next pass starts.

    Attributes:
        epoch: Epoch of the last pass, or the one that was loaded or set.
        position: Positions of it that were handed out.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.position = 0
        self._next: Literal["loaded", "next epoch", "start over"] = "start over"
        self._epoch_was_named = False

    def load(self, epoch: int, position: int) -> None:
        """Continue at a saved place."""
        self.epoch, self.position = epoch, position
        self._next, self._epoch_was_named = "loaded", False

    def name_epoch(self, epoch: int) -> bool:
        """Make the next pass one over ``epoch``; return whether a loaded cursor in it was kept.

        Raises:
            ValueError: if ``epoch`` is negative.
        """
        if epoch < 0:
            raise ValueError(f"epochs are counted from 0, got {epoch}")
        if self._next == "loaded" and epoch == self.epoch:
            self._epoch_was_named = True
            return True
        self.epoch, self.position, self._next = epoch, 0, "start over"
        return False

    def following(self, steps_left: Callable[[int], int]) -> tuple[int, int]:
        """Return epoch and position at which the next pass starts.

        Args:
            steps_left: Steps of an epoch from a position on.
        """
        if self._next == "next epoch":
            return self.epoch + 1, 0
        if self._next == "start over":
            return self.epoch, 0
        if self._epoch_was_named or steps_left(self.position):
            return self.epoch, self.position
        return self.epoch + 1, 0

    def begin(self, epoch: int, position: int) -> None:
        """Note that a pass begins; until it ends, the next one would start its epoch over."""
        self.epoch, self.position = epoch, position
        self._next, self._epoch_was_named = "start over", False

    def step_done(self, position: int) -> None:
        """Note that everything before ``position`` was handed out."""
        self.position = position

    def end(self) -> None:
        """Note that the pass was handed out whole."""
        self._next = "next epoch"
