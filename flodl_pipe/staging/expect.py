"""What a pipeline will move, epoch by epoch, before it runs. Pure arithmetic, for ``plan``.

Each tier's part is the expectation of :mod:`flodl_pipe.staging.expected_tier`; ranges do not overlap, so they add up,
and what no tier has is read from the source::

    rows of an epoch = found in the pool + in the RAM cache + in the disk stage + read from the source
    over the link    = all but those found in the pool

Bytes that are read only to fill a tier ahead are counted apart: they are read twice.
"""

from dataclasses import dataclass
from typing import Literal, final

from flodl_pipe.staging.expected_tier import ExpectedTier, TierPlan, Workload

__all__ = [
    "EpochWork",
    "Tiers",
    "expect_epochs",
    "expected_bottleneck",
    "tiers_by_bytes",
    "tiers_by_rows",
]

_NO_TIER = TierPlan()
# A load time this close to the step is no bottleneck that anybody would see.
_NOTICEABLE = 1.02


@final
@dataclass(frozen=True)
class Tiers:
    """The tiers of a pipeline; their ranges do not overlap."""

    pool: TierPlan = _NO_TIER
    ram: TierPlan = _NO_TIER
    disk: TierPlan = _NO_TIER


@final
@dataclass(frozen=True)
class EpochWork:
    """Expected work of one epoch; rows and bytes are expectations, hence no whole numbers.

    Attributes:
        epoch: Which.
        num_rows: Rows of its batches: the four that follow together.
        pool_rows: Of them, found in the sample pool.
        ram_rows: In the RAM cache.
        disk_rows: In the disk stage.
        source_rows: In none.
        source_bytes: Read from the source for batches.
        fill_bytes: Read from the source only to fill tiers ahead.
        disk_read_bytes: Read from the disk stage.
        disk_written_bytes: Written to it.
        link_bytes: Copied to the device, fills of the pool included; 0 without one.
        pool_admitted_rows: Rows taken in by the sample pool.
        ram_admitted_rows: By the RAM cache.
        disk_admitted_rows: By the disk stage.
    """

    epoch: int
    num_rows: int
    pool_rows: float
    ram_rows: float
    disk_rows: float
    source_rows: float
    source_bytes: float
    fill_bytes: float
    disk_read_bytes: float
    disk_written_bytes: float
    link_bytes: float
    pool_admitted_rows: float
    ram_admitted_rows: float
    disk_admitted_rows: float

    @property
    def pool_hit_rate(self) -> float:
        """Part of the rows that the sample pool had."""
        return self.pool_rows / self.num_rows

    @property
    def ram_hit_rate(self) -> float:
        """Part of all rows that the RAM cache had."""
        return self.ram_rows / self.num_rows

    @property
    def disk_hit_rate(self) -> float:
        """Part of all rows that the disk stage had."""
        return self.disk_rows / self.num_rows

    @property
    def hit_rate(self) -> float:
        """Part of the rows that were not read from the source."""
        return 1 - self.source_rows / self.num_rows


def tiers_by_rows(num_samples: int, *, pool: int = 0, ram: int = 0, disk: int = 0) -> Tiers:
    """Return tiers that are filled by offers: the pool from the low end, the RAM cache from the high one, disk between.

    Each gets at most what those before it leave, in the order pool, RAM, disk.

    >>> tiers = tiers_by_rows(10, pool=4, ram=3, disk=9)
    >>> [(tier.first_rank, tier.num_rows) for tier in (tiers.pool, tiers.ram, tiers.disk)]
    [(0, 4), (7, 3), (4, 3)]
    """
    pool = min(pool, num_samples)
    ram = min(ram, num_samples - pool)
    disk = min(disk, num_samples - pool - ram)
    return Tiers(TierPlan(0, pool), TierPlan(num_samples - ram, ram), TierPlan(pool, disk))


def tiers_by_bytes(num_samples: int, row_bytes: int, *, pool: int = 0, ram: int = 0, disk: int = 0) -> Tiers:
    """Return :func:`tiers_by_rows` for tiers of so many bytes, of whole rows."""
    unit = max(1, row_bytes)
    return tiers_by_rows(num_samples, pool=pool // unit, ram=ram // unit, disk=disk // unit)


def expect_epochs(work: Workload, tiers: Tiers, num_epochs: int, *, on_device: bool) -> list[EpochWork]:
    """Return the expected work of epochs ``0 .. num_epochs - 1``, tiers being empty at the start.

    Args:
        work: What is asked for.
        tiers: What is kept.
        num_epochs: How many epochs.
        on_device: Whether rows that the pool does not hold are copied to a device.

    Raises:
        ValueError: if ranges overlap or are not all of ``[0, N)``, or probabilities do not fit the samples.
    """
    plans = (tiers.pool, tiers.ram, tiers.disk)
    _require_apart(plans, work.num_samples)
    ranges = [ExpectedTier(work, plan) for plan in plans]
    found = []
    for epoch in range(num_epochs):
        (pool, pool_in, pool_fill), (ram, ram_in, ram_fill), (disk, disk_in, disk_fill) = (
            one.epoch(epoch) for one in ranges
        )
        source = max(0.0, work.epoch_rows - pool - ram - disk)
        link_bytes = (work.epoch_rows - pool) * work.row_bytes + pool_fill if on_device else 0.0
        found.append(
            EpochWork(
                epoch=epoch,
                num_rows=work.epoch_rows,
                pool_rows=pool,
                ram_rows=ram,
                disk_rows=disk,
                source_rows=source,
                source_bytes=source * work.row_bytes,
                fill_bytes=pool_fill + ram_fill + disk_fill,
                disk_read_bytes=disk * work.row_bytes,
                disk_written_bytes=disk_in * work.row_bytes,
                link_bytes=link_bytes,
                pool_admitted_rows=pool_in,
                ram_admitted_rows=ram_in,
                disk_admitted_rows=disk_in,
            )
        )
    return found


def expected_bottleneck(
    read_s_per_step: float, copy_s_per_step: float, step_s: float | None
) -> tuple[Literal["reading", "copying", "training"], str]:
    """Return which stage sets the pace, and in words by how much. Stages overlap, so the slowest decides.

    Args:
        read_s_per_step: Reading a step's rows, all readers together.
        copy_s_per_step: Copying them to the device; 0 without one.
        step_s: A training step; None where it is not known.
    """
    loading: Literal["reading", "copying"] = "copying" if copy_s_per_step > read_s_per_step else "reading"
    load_s = max(read_s_per_step, copy_s_per_step)
    times = f"reading {_ms(read_s_per_step)}, copying {_ms(copy_s_per_step)}"
    if step_s is None:
        return loading, f"{loading} limits the loop to {_ms(load_s)} a step ({times}; the step's own time is not known)"
    times = f"{times}, training {_ms(step_s)} a step"
    if load_s <= step_s * _NOTICEABLE:
        return "training", f"the loop runs at the speed of the step ({times})"
    return loading, (
        f"{loading} takes {load_s / step_s:.1f} x as long as training: the loop waits {_ms(load_s - step_s)} a step "
        f"({times})"
    )


def _require_apart(plans: tuple[TierPlan, ...], num_samples: int) -> None:
    end = 0
    for plan in sorted((plan for plan in plans if plan.num_rows), key=lambda plan: plan.first_rank):
        if plan.first_rank < end or plan.first_rank + plan.num_rows > num_samples:
            raise ValueError(f"ranges of tiers must lie apart in 0 .. {num_samples - 1}, got {plans}")
        end = plan.first_rank + plan.num_rows


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
