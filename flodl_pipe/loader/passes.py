"""Which pass over the data comes next: the iteration rules as a small state machine, without any data.

* A fresh loader starts epoch 0; after a pass that finished, the next epoch follows.
* After a pass that was broken off, its epoch starts over, as people expect of a DataLoader.
* After a cursor was loaded, the pass continues at it, and once it has handed out a batch it counts as any other: broken
  off, its epoch starts over. A cursor that stands at the end of its epoch leads to the next
  one,
  unless the loop names that very epoch: then nothing is left of it.
"""

import logging
import operator
from collections.abc import Callable
from typing import Literal, final

__all__ = ["Passes"]

_log = logging.getLogger("flodl_pipe")


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
        self._began_at = 0

    def load(self, epoch: int, position: int) -> None:
        """Continue at a saved place."""
        self.epoch, self.position = epoch, position
        self._next, self._epoch_was_named = "loaded", False
        self._began_at = position

    def name_epoch(self, epoch: int) -> bool:
        """Make the next pass one over ``epoch``; return whether a loaded cursor in it was kept.

        Args:
            epoch: Anything that is an integer, NumPy's and torch's too.

        Raises:
            ValueError: if it is none, negative, or does not fit 64 bits; nothing has changed then.
        """
        try:
            epoch = int(operator.index(epoch))
        except TypeError:
            raise ValueError(f"epochs are integers counted from 0, got {epoch!r}") from None
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epochs are counted from 0 to 2**64 - 1, got {epoch}")
        if self._next == "loaded" and epoch == self.epoch:
            self._epoch_was_named = True
            return True
        self.epoch, self.position, self._next, self._began_at = epoch, 0, "start over", 0
        return False

    def following(self, steps_left: Callable[[int], int]) -> tuple[int, int]:
        """Return epoch and position at which the next pass starts.

        Args:
            steps_left: Steps of an epoch from a position on.
        """
        if self._next == "next epoch":
            return self.epoch + 1, 0
        if self._next == "start over":
            if 0 < self._began_at < self.position:
                _log.warning(
                    "the pass over epoch %d that resumed at position %d was broken off at %d: the epoch starts over "
                    "from its beginning; to go on where it was, load a state first",
                    *(self.epoch, self._began_at, self.position),
                )
            return self.epoch, 0
        if self._epoch_was_named or steps_left(self.position):
            return self.epoch, self.position
        return self.epoch + 1, 0

    def begin(self, epoch: int, position: int) -> None:
        """Note that a pass begins there. A loaded cursor is kept until the first batch: an iterator may go unused."""
        if (epoch, position) != (self.epoch, self.position):
            self._next = "start over"
        self.epoch, self.position, self._began_at = epoch, position, position

    def step_done(self, position: int) -> None:
        """Note that everything before ``position`` was handed out."""
        self.position = position
        self._next, self._epoch_was_named = "start over", False

    def end(self) -> None:
        """Note that the pass was handed out whole."""
        self._next, self._epoch_was_named = "next epoch", False
