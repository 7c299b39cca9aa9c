"""The steps of an epoch whose end is found on the way."""

from functools import partial
from typing import final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import SourceError
from flodl_pipe.sampling.steps import DropLast, RankStep, Steps

__all__ = ["StreamSteps"]

_ENDLESS = 1 << 61


@final
class StreamSteps:
    """Steps from a place on, without end until :meth:`end_at`.

    Args:
        global_batch: Rows of a step over all ranks.
        drop_last: The last-batch rule; not ``"pad"``, as nobody keeps the epoch's head.
        epoch: Which epoch.
        position: Where step 0 begins.
        context: Rank, world size and shares.
        unit: Rows that are never cut apart.
    """

    def __init__(
        self,
        global_batch: int,
        drop_last: DropLast,
        *,
        epoch: int,
        position: int,
        context: RunContext,
        unit: int = 1,
    ) -> None:
        self.epoch = epoch
        self._position = position
        self._global_batch = global_batch
        # Endless first: its steps cannot be refused, whatever the epoch's length turns out to be.
        self._cut = partial(
            Steps,
            global_batch=global_batch,
            drop_last=drop_last,
            rank=context.rank,
            world_size=context.world_size,
            ratios=context.ratios,
            unit=unit,
        )
        self._steps = self._cut(_ENDLESS)
        self._num_steps = _ENDLESS

    @property
    def max_rows(self) -> int:
        """Most rows of a step on this rank."""
        return self._steps.max_rows

    @property
    def num_steps(self) -> int:
        """Steps of the pass; more than there can be while the end is not known."""
        return self._num_steps

    def step(self, step: int) -> RankStep:
        """Return what a step is, counted from where the pass begins."""
        return self._steps.step(step, self._position)

    def next_step(self, step: int) -> tuple[RankStep | None, int]:
        """Return a step and its positions over all ranks; None and 0 if the epoch has no such step."""
        if step >= self._num_steps:
            return None, 0
        found = self.step(step)
        begin = self._position + step * self._global_batch
        return found, found.next_position - begin

    def end_at(self, num_positions: int) -> None:
        """Note how many positions the epoch has.

        Raises:
            ConfigError: if they are too few for one step.
            SourceError: if there are none.
        """
        if not num_positions:
            raise SourceError("the stream has 0 rows, and a loader needs at least one")
        self._steps = self._cut(num_positions)
        self._num_steps = self._steps.num_steps(self._position)
