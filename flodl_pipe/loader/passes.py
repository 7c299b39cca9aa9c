"""Which pass over the data comes next: the iteration rules as a small state machine, without any data.

* A fresh loader starts epoch 0; after a pass that finished, the next epoch follows. Finished means that the last batch
  was handed out: loops that count their steps (Lightning's) take it and never ask for one more.
* After a pass that was broken off, its epoch starts over, as people expect of a DataLoader.
* After a cursor was loaded, the pass continues at it, and once it has handed out a batch it counts as any other: broken
  off, its epoch starts over. A cursor that stands at the end of its epoch leads to the next one, unless the loop names
  that very epoch: then nothing is left of it.
"""

import logging
import operator
from collections.abc import Callable
from typing import Literal, final

from flodl_pipe.loader.identity import Spot

__all__ = ["Passes"]

_log = logging.getLogger("flodl_pipe")


@final
class Passes:
    """Where the stream stands, and where the next pass starts.

    Attributes:
        spot: Where it stands: in the epoch of the last pass, or the one that was loaded or set.
    """

    def __init__(self) -> None:
        self.spot = Spot(0, 0)
        self._next: Literal["loaded", "next epoch", "start over"] = "start over"
        self._epoch_was_named = False
        self._began_at = 0

    def load(self, spot: Spot) -> None:
        """Continue at a saved place."""
        self.spot = spot
        self._next, self._epoch_was_named = "loaded", False
        self._began_at = spot.position

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
        if self._next == "loaded" and epoch == self.spot.epoch:
            self._epoch_was_named = True
            return True
        self.spot, self._next, self._began_at = Spot(epoch, 0), "start over", 0
        return False

    def following(self, is_end: Callable[[Spot], bool]) -> Spot:
        """Return where the next pass starts.

        Args:
            is_end: Whether no step is left of an epoch from a place on.
        """
        spot = self.spot
        if self._next == "next epoch":
            return Spot(spot.epoch + 1, 0)
        if self._next == "start over":
            if spot.position and is_end(spot):
                return Spot(spot.epoch + 1, 0)
            if 0 < self._began_at < spot.position:
                _log.warning(
                    "the pass over epoch %d that resumed at position %d was broken off at %d: the epoch starts over "
                    "from its beginning; to go on where it was, load a state first",
                    *(spot.epoch, self._began_at, spot.position),
                )
            return Spot(spot.epoch, 0)
        if self._epoch_was_named or not is_end(spot):
            return spot
        return Spot(spot.epoch + 1, 0)

    def begin(self, spot: Spot) -> None:
        """Note that a pass begins there. A loaded cursor is kept until the first batch: an iterator may go unused."""
        if spot[:2] != self.spot[:2]:
            self._next = "start over"
        self.spot, self._began_at = spot, spot.position

    def step_done(self, spot: Spot) -> None:
        """Note that everything before ``spot`` was handed out."""
        self.spot = spot
        self._next, self._epoch_was_named = "start over", False

    def end(self) -> None:
        """Note that the pass was handed out whole."""
        self._next, self._epoch_was_named = "next epoch", False
