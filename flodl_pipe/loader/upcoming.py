"""The order of the next epoch, made before the loop asks for it.

A shuffle of up to 65,536 items sorts as many hashes before its first pick, in about a millisecond, and a loop with a
short epoch would wait for that at the start of each. A reader that has nothing left to claim has the time: it makes the
next epoch's order and plans its first steps. At most that one is kept, until it is taken or another is made.
"""

import contextlib
import threading
from typing import final

from flodl_pipe.loader.lookahead import Draw, Lookahead
from flodl_pipe.sampling.orders import Order
from flodl_pipe.sampling.planned_steps import PlannedSteps
from flodl_pipe.sampling.steps import EpochSteps

__all__ = ["Upcoming"]


@final
class Upcoming:
    """Lookaheads of one loader, made ahead where it could be known which comes. Thread-safe.

    Args:
        steps: The steps of an epoch, for this rank.
        group_steps: Steps that are gathered together.
        draw: Draws what fused transforms need; see :class:`Lookahead`.
    """

    def __init__(self, steps: EpochSteps, *, group_steps: int, draw: Draw | None = None) -> None:
        self._steps = steps
        self._draw = draw
        self._group_steps = group_steps
        self._lock = threading.Lock()
        self._made: tuple[Order, Lookahead] | None = None

    def take(self, order: Order, epoch: int, position: int) -> Lookahead:
        """Return picks from a place in an epoch on. No two callers are given the same object.

        Args:
            order: The family of orders.
            epoch: Which epoch.
            position: Where step 0 begins.
        """
        with self._lock:
            made, self._made = self._made, None
        if made is not None and made[0] is order and (made[1].epoch, made[1].position) == (epoch, position):
            return made[1]
        return self._make(order, epoch, position)

    def prepare(self, order: Order, epoch: int) -> None:
        """Make an epoch's order now, from its start, for the next :meth:`take`."""
        if isinstance(self._steps, PlannedSteps):
            return  # its shares are those of the step at which it begins, which is not known yet
        with self._lock:
            if self._made is not None:
                return  # another reader was quicker
            # What is wrong with the next epoch (a mixture whose part has run out) is said to the loop that begins it.
            with contextlib.suppress(Exception):
                ahead = self._make(order, epoch, 0)
                ahead.rows(0, 1)
                self._made = order, ahead

    def _make(self, order: Order, epoch: int, position: int) -> Lookahead:
        return Lookahead(
            self._steps, order, epoch=epoch, position=position, group_steps=self._group_steps, draw=self._draw
        )
