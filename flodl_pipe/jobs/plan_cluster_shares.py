"""How a described cluster's ranks share steps, how long each is busy, and how long it waits for the slowest.

A step is over when the slowest rank is done with its rows::

    rank is busy for   overhead + rows / speed
    step takes         the longest of those
    idle               1 - busy / step
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple, final

from flodl_pipe.cluster.layout import exact
from flodl_pipe.sampling.share_plan import fit, most_rows
from flodl_pipe.sampling.shares import cut
from flodl_pipe.sampling.steps import EpochSteps

__all__ = ["EpochRows", "Pace", "best_shares", "epoch_rows", "equal_shares", "first_shares"]


def first_shares(global_batch: int, ratios: Sequence[Fraction], unit: int) -> tuple[int, ...]:
    """Return rows of a full step of each rank, as :class:`flodl_pipe.sampling.steps.Steps` cuts it."""
    return cut(global_batch, ratios, minimum=1, unit=unit)


def equal_shares(global_batch: int, num_ranks: int, unit: int) -> tuple[int, ...]:
    """Return rows of a full step of each of equal ranks."""
    return cut(global_batch, (1,) * num_ranks, minimum=1, unit=unit)


def best_shares(
    speeds: Sequence[float], first: Sequence[int], *, unit: int, max_rows: int | None
) -> tuple[tuple[int, ...], bool]:
    """Return the shares that ``balance: auto`` comes to, and whether its bounds keep it from the proportions of speed.

    Args:
        speeds: Samples a second of each rank, in any unit.
        first: Rows of a full step that each has at first.
        unit: Rows that are never cut apart.
        max_rows: ``cluster.max_rows``.

    Raises:
        ConfigError: if a first share is larger than that.

    >>> best_shares((1.0, 1.0, 2.0), (32, 32, 32), unit=1, max_rows=None)
    ((24, 24, 48), False)
    """
    global_batch, weights = sum(first), [exact(speed) for speed in speeds]
    most = most_rows(first, unit=unit, max_rows=max_rows)
    total = sum(weights, Fraction(0))
    is_bound = any(global_batch * weight > bound * total for weight, bound in zip(weights, most, strict=True))
    return fit(weights, global_batch, least=(unit,) * len(first), most=most, unit=unit), is_bound


@final
class EpochRows(NamedTuple):
    """Rows of an epoch.

    Attributes:
        num_steps: Its steps.
        full: Rows of each rank in a full step.
        last: In the last one, where that is another.
    """

    num_steps: int
    full: tuple[int, ...]
    last: tuple[int, ...]

    def of(self, rank: int) -> int:
        """Return the rows that a rank has in an epoch, those that count and those that do not."""
        return (self.num_steps - 1) * self.full[rank] + self.last[rank]


def epoch_rows(steps: EpochSteps, full: tuple[int, ...], cut_last: Callable[[int], tuple[int, ...]]) -> EpochRows:
    """Return the rows of each rank in an epoch.

    Args:
        steps: Steps of any rank.
        full: Rows of a full step of each rank.
        cut_last: Cuts a short step.
    """
    count = steps.num_steps()
    rest = steps.num_picks - (count - 1) * steps.global_batch
    if steps.drop_last is not False or rest >= steps.global_batch:
        return EpochRows(count, full, full)
    # A rank that would have nothing takes one row that does not count.
    return EpochRows(count, full, tuple(max(1, rows) for rows in cut_last(rest)))


@final
class Pace:
    """How long ranks are busy in a step.

    Args:
        rows: Rows of each rank.
        speeds: Samples a second of each rank.
        overhead_s: What a step takes however few rows it has.

    >>> pace = Pace((32, 32, 32), (1.0, 1.0, 2.0), 0.0)
    >>> pace.step_s, pace.idle(2), round(pace.mean_idle, 3)
    (32.0, 0.5, 0.167)
    """

    def __init__(self, rows: tuple[int, ...], speeds: Sequence[float], overhead_s: float) -> None:
        self.rows = rows
        self._busy_s = [overhead_s + share / speed for share, speed in zip(rows, speeds, strict=True)]
        self.step_s = max(self._busy_s)

    def idle(self, rank: int) -> float:
        """Return which part of a step a rank waits for the others."""
        return 1 - self._busy_s[rank] / self.step_s

    @property
    def mean_idle(self) -> float:
        """Which part of a step the ranks wait, on average."""
        return 1 - sum(self._busy_s) / len(self._busy_s) / self.step_s

    @property
    def most_idle(self) -> float:
        """Which part of a step the rank waits that waits longest."""
        return 1 - min(self._busy_s) / self.step_s
