"""Shares follow speeds: every so many steps the ranks tell each other how long they took, and agree on new shares.

The exchange happens as the loop asks for the first batch after a window of steps, in the loop's own thread, so it
stands at the same place of the run on every rank and cannot cross the model's own collectives. Each rank works out the
same shares from the same numbers; that they did is compared at the next exchange, before a step is cut by them.
"""

import logging
import math
from collections.abc import Sequence
from typing import Protocol, final
from zlib import crc32

from flodl_pipe.cluster.balance import Balancer
from flodl_pipe.cluster.clock import StepClock
from flodl_pipe.errors import ClusterError
from flodl_pipe.loader.identity import Spot
from flodl_pipe.sampling.share_plan import SharePlan, rows_of, text_of

__all__ = ["Balancing", "Exchange"]

_log = logging.getLogger("flodl_pipe")

_EXACT = 1 << 53  # whole numbers below are float64


class Exchange(Protocol):
    """How ranks tell each other numbers; :class:`flodl_pipe.cluster.world.World`."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        ...

    def gather_floats(self, values: Sequence[float], what: str) -> list[tuple[float, ...]]:
        """Return what every rank gave, by rank."""
        ...

    def name(self, rank: int) -> str:
        """Return host and local rank."""
        ...


@final
class Balancing:
    """Keeps a plan of shares in step with the ranks' speeds. For the loop's thread.

    Args:
        plan: The shares.
        world: The ranks.
        clock: Times of this rank.
    """

    def __init__(self, plan: SharePlan, world: Exchange, clock: StepClock) -> None:
        self.plan = plan
        self._world = world
        self._clock = clock
        self._names = tuple(world.name(rank) for rank in range(world.world_size))
        self._balancer = Balancer(plan.most, unit=plan.unit)
        self._exchanged_at = 0
        self._told_missing = False
        self._text: tuple[tuple[int, ...], str] = (), ""

    def text(self, tick: int) -> str:
        """Return the shares of a step, as a cursor holds them."""
        rows = self.plan.at(max(0, tick))
        if self._text[0] is not rows:
            self._text = rows, text_of(rows, self._names)
        return self._text[1]

    def resume(self, text: str) -> None:
        """Begin with the shares that a cursor holds, if they are of these ranks; and count steps anew.

        Args:
            text: What :meth:`text` gave, perhaps in another run; empty where shares were fixed.
        """
        rows = rows_of(text, self._names)
        if text and rows is None:
            _log.info(
                "balance=auto: the saved shares (%s) are of other ranks than %s, and are left aside",
                *(text, ", ".join(self._names)),
            )
        self.follow(self.plan, rows)

    def follow(self, plan: SharePlan, rows: Sequence[int] | None = None) -> None:
        """Go on with another plan, or the same from its begin.

        Args:
            plan: The plan.
            rows: Shares that it begins with, in proportion; None: as they are now.
        """
        plan.restart(plan.like(rows or self.plan.now))
        self.plan, self._exchanged_at = plan, 0
        self._balancer = Balancer(plan.most, unit=plan.unit, row_s=self._balancer.row_s)

    def before_step(self, spot: Spot) -> None:
        """Exchange times and announce new shares, if it is time.

        Args:
            spot: Where the stream stands.

        Raises:
            ClusterError: if ranks are missing, stand at another place, or have other shares.
        """
        plan, tick = self.plan, self.plan.tick
        if tick % plan.lead_steps or tick == self._exchanged_at:
            return
        seconds, num_rows = self._clock.window()
        place = (tick, spot.epoch % _EXACT, spot.position % _EXACT, crc32(repr(plan.announced).encode()))
        gathered = self._world.gather_floats(
            (*map(float, place), seconds, float(num_rows)),
            f"the speeds of the ranks after {tick} steps (cluster.balance=auto), which all tell after as many batches",
        )
        self._exchanged_at = tick
        self._require_same([values[:4] for values in gathered])
        times = [values[4] for values in gathered]
        counts = [int(values[5]) for values in gathered]
        silent = [
            name
            for name, time_s, count in zip(self._names, times, counts, strict=True)
            if not count or time_s <= 0.0 or not math.isfinite(time_s)
        ]
        if silent:
            self._tell_missing(silent)
            return
        before = plan.announced
        rows = self._balancer.update(times, counts, before)
        if rows == before:
            return
        plan.announce(tick + plan.lead_steps, rows)
        _log.info(
            "balance=auto: from step %d on rows are shared %s (before: %s); a step is expected to take %.3g s instead "
            "of %.3g s",
            tick + plan.lead_steps,
            text_of(rows, self._names),
            text_of(before, self._names),
            self._balancer.predicted_s(rows),
            self._balancer.predicted_s(before),
        )

    def _require_same(self, places: Sequence[tuple[float, ...]]) -> None:
        if len(set(places)) == 1:
            return
        told = "\n".join(
            f"  {name}: {tick:.0f} batches handed out, epoch {epoch:.0f}, position {position:.0f}, shares {sums:.0f}"
            for name, (tick, epoch, position, sums) in zip(self._names, places, strict=True)
        )
        raise ClusterError(
            "cluster.balance=auto: ranks stand at different places of the stream, and each step is shared out among "
            "all; let every rank take the same batches from its loader, also those that are only looked at, or set "
            f"cluster.balance=fixed\n{told}"
        )

    def _tell_missing(self, silent: Sequence[str]) -> None:
        if self._told_missing:
            return
        self._told_missing = True
        _log.warning(
            "cluster.balance=auto: %s did not say how long steps take, so shares stay as they are (%s); call "
            "flodl_pipe.attach(ddp_model, loader) before the loop, or loader.compute_done() in each step before ranks "
            "wait for each other",
            *(", ".join(silent), text_of(self.plan.announced, self._names)),
        )
