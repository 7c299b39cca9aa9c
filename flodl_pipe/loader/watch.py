"""What goes on between a loader and its loop on several ranks: batches that were handed out, times, shares."""

from typing import final

import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.cluster.clock import StepClock, clock_for
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ClusterError, ConfigError
from flodl_pipe.loader.balancing import Balancing
from flodl_pipe.loader.delivered import Delivered
from flodl_pipe.loader.identity import Spot, StreamIdentity
from flodl_pipe.loader.weighing import Weighing
from flodl_pipe.sampling.planned_steps import PlannedSteps
from flodl_pipe.sampling.steps import EpochSteps

__all__ = ["Watch"]


@final
class Watch:
    """Told by the iterator of every step. For the loop's thread.

    Args:
        context: Rank, world size, and how ranks talk.
        steps: How epochs are cut; None for a stream.
        device: Where batches are delivered.

    Attributes:
        delivered: The last batches, for who looks for one of them; None while nobody does.
        clock: Times of this rank.
        weighing: Who weighs gradients.

    Raises:
        ClusterError: if shares are to follow speeds, and the ranks do not talk to each other.
        ConfigError: if shares are to follow speeds, and the source is a stream.
    """

    def __init__(self, context: RunContext, steps: EpochSteps | None, device: torch.device) -> None:
        self.delivered: Delivered | None = None
        self.clock: StepClock = clock_for(device)
        self.weighing = Weighing(matters=context.world is not None)
        self._balancing: Balancing | None = None
        if steps is None and context.shares is not None and context.world_size > 1:
            raise ConfigError.at(
                "cluster.balance",
                "auto is not for streams, whose lanes are read far ahead of what ranks could agree on; use "
                "cluster.balance=fixed, with cluster.partition_ratios where ranks differ in speed",
            )
        if not isinstance(steps, PlannedSteps):
            return
        if context.world is None:
            raise ClusterError(
                "cluster.balance=auto: this loader was built with a context by hand, whose ranks do not talk to each "
                "other; build it with flodl_pipe.load() under torchrun, or set cluster.balance=fixed"
            )
        self._balancing = Balancing(steps.plan, context.world, self.clock)

    def follow(self, steps: EpochSteps | None) -> None:
        """Go on with the steps of a rebuilt engine."""
        if self._balancing is not None and isinstance(steps, PlannedSteps):
            self._balancing.follow(steps.plan)

    def resume(self, shares: str) -> None:
        """Begin with the shares of a loaded cursor."""
        if self._balancing is not None:
            self._balancing.resume(shares)

    def stream(self, stream: StreamIdentity, *, coming: bool = False) -> StreamIdentity:
        """Return a stream with the shares of the step that was handed out last, or of the coming one, for a cursor."""
        if self._balancing is None:
            return stream
        return stream.with_shares(self._balancing.text(self._balancing.plan.tick - 1 + coming))

    def asked(self, spot: Spot) -> None:
        """Note that the loop asks for a batch, at a place of the stream.

        Raises:
            ClusterError: if it is time for an exchange, and ranks are missing or stand elsewhere.
        """
        self.weighing.asked()
        if self._balancing is not None:
            self._balancing.before_step(spot)
        self.clock.asked()

    def given(self, batch: Batch, num_rows: int) -> None:
        """Note that a batch of so many rows is handed out."""
        self.clock.given(num_rows)
        self.weighing.given(batch)
        if self._balancing is not None:
            self._balancing.plan.advance()
        if self.delivered is not None:
            self.delivered.note(batch, num_rows)

    def ended(self) -> None:
        """Note that the pass ended."""
        self.clock.break_off()
