"""Steps: positions of an epoch, cut into global batches, cut into shares.

A step takes the positions ``[position, position + G)``. What the last one does is the last-batch rule:

* ``drop_last=True``: a step that cannot be filled does not happen;
* ``False``: the last step is short, and every sample of the epoch appears exactly once. A rank whose share would be
  empty takes one row of weight zero, so that all ranks have the same number of steps;
* ``"pad"``: the last step is filled by repeating the epoch's head, marked invalid.

Positions beyond the epoch (``pad`` only) are written as ``num_picks + i`` and mean position ``i`` (modulo the epoch).
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, Protocol, final

import numpy as np

from flodl_pipe.arrays import BoolArray
from flodl_pipe.errors import ConfigError
from flodl_pipe.sampling.shares import cut

__all__ = ["DropLast", "EpochSteps", "RankStep", "Steps"]

DropLast = Literal[True, False, "pad"]


@final
class RankStep(NamedTuple):
    """One rank's part of one step.

    Attributes:
        start: First position of this rank's rows; at or beyond the epoch's end for padding.
        stop: One past the last.
        num_valid: Rows of this rank that count; the valid ones come first.
        weight: Factor for this rank's mean loss, so that an average over ranks is the mean over the global batch.
        next_position: Where the step after this one begins; what the cursor holds once this step was delivered.
    """

    start: int
    stop: int
    num_valid: int
    weight: float
    next_position: int

    @property
    def num_rows(self) -> int:
        """Rows of this rank, valid or not."""
        return self.stop - self.start

    def valid(self) -> BoolArray | None:
        """Return a mask of shape ``(num_rows,)``, or None when every row is valid."""
        if self.num_valid == self.num_rows:
            return None
        return np.arange(self.num_rows) < self.num_valid


class EpochSteps(Protocol):
    """How the epochs of an order are cut into steps, for one rank."""

    num_picks: int
    """Positions in an epoch."""

    global_batch: int
    """Rows of a step over all ranks, the largest where they differ."""

    drop_last: DropLast
    """The last-batch rule; False where a batch sampler has its own."""

    rank: int
    world_size: int

    @property
    def is_even(self) -> bool:
        """Whether all steps but the last have the same number of rows, at regular distances."""
        ...

    @property
    def batch_rows(self) -> int:
        """Rows of this rank in a full step."""
        ...

    @property
    def max_rows(self) -> int:
        """Most rows this rank ever gets in a step; a bound."""
        ...

    def of_epoch(self, epoch: int) -> "EpochSteps":
        """Return the steps of an epoch; the methods below are about one epoch."""
        ...

    def of_rank(self, rank: int) -> "EpochSteps":
        """Return the same steps as another rank has them."""
        ...

    def with_global_batch(self, global_batch: int) -> "EpochSteps":
        """Return the steps of the same epochs and rank with another global batch.

        Raises:
            ConfigError: if there are none.
        """
        ...

    def num_steps(self, position: int = 0) -> int:
        """Return how many steps are left in the epoch from ``position`` on."""
        ...

    def step(self, index: int, position: int = 0) -> RankStep:
        """Return this rank's part of the ``index``-th step counted from ``position``."""
        ...


@final
class Steps:
    """The steps of an epoch, for one rank.

    Args:
        num_picks: Positions in an epoch.
        global_batch: Rows of a step over all ranks, ``G``.
        drop_last: The last-batch rule.
        rank: This process, ``0 <= rank < world_size``.
        world_size: Number of ranks.
        ratios: How much each rank takes, exact; None: equal shares. Every rank has at least one row of a full step.
        unit: Rows that are never cut apart: two where a transform looks at pairs.
        full_unit: Rows of a full step that are not cut apart either, a multiple of ``unit``: those of lanes. None: as
            in other steps.

    Raises:
        ConfigError: if an epoch would have no step, or the global batch is smaller than the number of ranks.
    """

    def __init__(
        self,
        num_picks: int,
        global_batch: int,
        drop_last: DropLast,
        *,
        rank: int = 0,
        world_size: int = 1,
        ratios: Sequence[int | Fraction] | None = None,
        unit: int = 1,
        full_unit: int | None = None,
    ) -> None:
        if global_batch < world_size * unit and world_size > 1:
            least = "one row" if unit == 1 else f"{unit} rows, since a transform looks at so many together"
            raise ConfigError.at(
                "loader.global_batch_size",
                f"the global batch of {global_batch} is smaller than the {world_size} ranks, and each rank needs at "
                f"least {least}; set loader.global_batch_size to {world_size * unit} or more",
            )
        if drop_last is True and num_picks < global_batch:
            raise ConfigError.at(
                "loader.batch_size",
                f"the global batch of {global_batch} is larger than the epoch of {num_picks} samples, and "
                "sampling.drop_last=true drops a batch that is not full: an epoch would have no batch; use a "
                "batch of at most the epoch, or sampling.drop_last=false",
            )
        self.num_picks = num_picks
        self.global_batch = global_batch
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self._ratios = tuple(ratios or (1,) * world_size)
        self._unit = unit
        self.full_unit = full_unit or unit
        self._full = self._cut(global_batch)
        self._full_weight = self._full[1] * world_size / global_batch

    def with_global_batch(self, global_batch: int) -> "Steps":
        """Return the steps of the same epoch and rank with another global batch.

        Raises:
            ConfigError: as the class.
        """
        return Steps(
            self.num_picks,
            global_batch,
            self.drop_last,
            rank=self.rank,
            world_size=self.world_size,
            ratios=self._ratios,
            unit=self._unit,
            full_unit=self.full_unit if global_batch == self.global_batch else None,
        )

    def of_epoch(self, epoch: int) -> "Steps":  # noqa: ARG002 - every epoch is cut alike
        """Return the steps of an epoch: these."""
        return self

    @property
    def is_even(self) -> bool:
        """Whether all steps but the last have the same number of rows, at regular distances."""
        return True

    def of_rank(self, rank: int) -> "Steps":
        """Return the same steps as another rank has them."""
        return Steps(
            self.num_picks,
            self.global_batch,
            self.drop_last,
            rank=rank,
            world_size=self.world_size,
            ratios=self._ratios,
            unit=self._unit,
            full_unit=self.full_unit,
        )

    @property
    def batch_rows(self) -> int:
        """Rows of this rank in a full step; in the only step, where an epoch has no full one."""
        if self.drop_last is False and self.num_picks < self.global_batch:
            return max(1, self._cut(self.num_picks)[1])
        return self._full[1]

    @property
    def max_rows(self) -> int:
        """Most rows this rank ever gets in a step, from whatever position steps are counted; a bound."""
        if self.drop_last is not False:
            return self._full[1]
        # A short step may give a rank one row more than a full one does, but never more than its part, rounded up:
        # shares by largest remainder do not grow steadily with what is shared.
        largest = min(self.global_batch, self.num_picks)
        part = largest // self._unit * Fraction(self._ratios[self.rank]) / sum(self._ratios, Fraction(0))
        rest = self._unit - 1 if self.rank == self.world_size - 1 else 0
        return max(self.batch_rows, math.ceil(part) * self._unit + rest)

    def num_steps(self, position: int = 0) -> int:
        """Return how many steps are left in the epoch from ``position`` on."""
        rest = max(0, self.num_picks - position)
        return rest // self.global_batch if self.drop_last is True else -(-rest // self.global_batch)

    def step(self, index: int, position: int = 0) -> RankStep:
        """Return this rank's part of the ``index``-th step counted from ``position``."""
        begin = position + index * self.global_batch
        end = begin + self.global_batch
        first, num_rows = self._full
        if end <= self.num_picks:  # every step but an epoch's last
            start = begin + first
            return RankStep(start, start + num_rows, num_rows, self._full_weight, end)
        if self.drop_last is False:
            end = min(end, self.num_picks)
        first, num_rows = self._cut(end - begin)
        valid_in_step = min(end, self.num_picks) - begin
        next_position = min(end, self.num_picks)
        if not num_rows:
            return RankStep(begin, begin + 1, 0, 0.0, next_position)
        start = begin + first
        num_valid = min(max(0, self.num_picks - start), num_rows)
        weight = num_valid * self.world_size / valid_in_step
        return RankStep(start, start + num_rows, num_valid, weight, next_position)

    def _cut(self, num_rows: int) -> tuple[int, int]:
        """Return (first row, number of rows) of this rank in a step of ``num_rows``."""
        # A share of nothing is for short steps; the global batch has been compared with the number of ranks.
        is_full = num_rows == self.global_batch
        unit = self.full_unit if is_full else self._unit
        shares = cut(num_rows, self._ratios, minimum=1 if is_full else 0, unit=unit)
        return sum(shares[: self.rank]), shares[self.rank]
