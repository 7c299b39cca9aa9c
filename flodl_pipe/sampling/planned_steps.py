"""Steps whose shares follow a plan: the same global batches, cut into other parts as the plan says.

What makes up a step is decided below, by :class:`flodl_pipe.sampling.steps.Steps` or the batches of a batch sampler;
only who takes which rows of it changes. A step of the full global batch has the plan's rows; a smaller one (an epoch's
last) is cut in the plan's proportions.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import final

from flodl_pipe.sampling.share_plan import AutoShares, SharePlan, most_rows
from flodl_pipe.sampling.shares import cut
from flodl_pipe.sampling.steps import EpochSteps, RankStep, Steps

__all__ = ["PlannedSteps", "of_this_pass", "planned"]

_cut = lru_cache(maxsize=64)(cut)


@final
class PlannedSteps:
    """Steps of one rank under a plan; an :class:`flodl_pipe.sampling.steps.EpochSteps`.

    Until :meth:`begun`, all steps have the shares that hold now.

    Args:
        base: The steps under any shares.
        plan: The shares.
        auto: What made the plan, for another global batch.
        ratios: Shares that a plan begins with.
        begin: Tick of the pass's first step; None: no pass is meant.

    Attributes:
        plan: The shares.
    """

    def __init__(
        self,
        base: EpochSteps,
        plan: SharePlan,
        auto: AutoShares,
        ratios: Sequence[int | Fraction],
        begin: int | None = None,
    ) -> None:
        self.num_picks = base.num_picks
        self.global_batch = base.global_batch
        self.drop_last = base.drop_last
        self.rank = base.rank
        self.world_size = base.world_size
        self.plan = plan
        self._base = base
        self._of_first_rank = base.of_rank(0)
        self._auto = auto
        self._ratios = tuple(ratios)
        self._begin = begin

    @property
    def is_even(self) -> bool:
        """Steps have other sizes when the shares have changed."""
        return False

    @property
    def batch_rows(self) -> int:
        """Rows of this rank in a full step, as shares are now."""
        return self.plan.now[self.rank]

    @property
    def max_rows(self) -> int:
        """Most rows this rank ever gets in a step; a bound."""
        unit = self.plan.unit
        # Of a step that is no multiple of the unit, the last rank has the rest on top of a share that was rounded up.
        rest = 2 * unit - 1 if unit > 1 and self.rank == self.world_size - 1 else 0
        return self.plan.most[self.rank] + rest

    def begun(self) -> "PlannedSteps":
        """Return the steps of a pass whose first step is the next one to be handed out."""
        return PlannedSteps(self._base, self.plan, self._auto, self._ratios, self.plan.tick)

    def horizon(self) -> int:
        """Return the first step of the pass that must not be planned yet."""
        return self.plan.horizon - (self._begin or 0)

    def of_epoch(self, epoch: int) -> "PlannedSteps":
        """Return the steps of an epoch."""
        return PlannedSteps(self._base.of_epoch(epoch), self.plan, self._auto, self._ratios, self._begin)

    def of_rank(self, rank: int) -> "PlannedSteps":
        """Return the same steps as another rank has them."""
        return PlannedSteps(self._base.of_rank(rank), self.plan, self._auto, self._ratios, self._begin)

    def with_global_batch(self, global_batch: int) -> "PlannedSteps":
        """Return the steps of the same epochs and rank with another global batch, and a plan of their own.

        Raises:
            ConfigError: if there are none.
        """
        base = self._base.with_global_batch(global_batch)
        # Rows of a lane are whole in blocks of lanes, which steps of another size are not.
        unit = base.full_unit if isinstance(base, Steps) else self.plan.unit
        return planned(base, self._auto, self._ratios, unit)

    def num_steps(self, position: int = 0) -> int:
        """Return how many steps are left in the epoch from ``position`` on."""
        return self._base.num_steps(position)

    def step(self, index: int, position: int = 0) -> RankStep:
        """Return this rank's part of the ``index``-th step counted from ``position``.

        Raises:
            ValueError: in a pass, if the step's shares are not settled yet.
        """
        whole = self._of_first_rank.step(index, position)
        begin, end = whole.start, whole.next_position
        num_rows = self.global_batch if self.drop_last is not False else end - begin
        rows = self.plan.now if self._begin is None else self.plan.at(self._begin + index)
        if num_rows != self.global_batch:
            rows = _cut(num_rows, rows, minimum=1, unit=self.plan.unit)
        share = rows[self.rank]
        if not share:
            return RankStep(begin, begin + 1, 0, 0.0, end)
        start = begin + sum(rows[: self.rank])
        num_valid = min(max(0, self.num_picks - start), share)
        weight = num_valid * self.world_size / (end - begin)
        return RankStep(start, start + share, num_valid, weight, end)


def planned(base: EpochSteps, auto: AutoShares, ratios: Sequence[int | Fraction] | None, unit: int) -> PlannedSteps:
    """Return steps whose shares may change, and a plan that begins with these ratios.

    Args:
        base: The steps of an epoch, for one rank.
        auto: How shares change.
        ratios: How much each rank takes at first, exact; None: equal shares.
        unit: Rows that are never cut apart.

    Raises:
        ConfigError: if a first share is larger than the config's bound.
    """
    ratios = tuple(ratios or (1,) * base.world_size)
    first = cut(base.global_batch, ratios, minimum=1, unit=unit)
    most = most_rows(first, unit=unit, max_rows=auto.max_rows)
    plan = SharePlan(first, lead_steps=auto.every_steps, most=most, unit=unit)
    return PlannedSteps(base, plan, auto, ratios)


def of_this_pass(steps: EpochSteps) -> EpochSteps:
    """Return the steps of a pass that begins now: under a plan, those from the present tick on."""
    return steps.begun() if isinstance(steps, PlannedSteps) else steps
