"""What the tiers of a described cluster's ranks find, and what is left to read, under three ways to keep samples.

::

    own       uniform order, each rank a RAM cache of its own: it asks for any of the N samples, in the end finds K/N
    shared    uniform order, the ranks of a host keep one RAM cache: K is all that the host has room for
    lanes     each rank asks for its own part of the samples only, r N of them, and finds min(1, K/(r N))

Ranges lie apart as in a run: the pool has the low end, the RAM cache the high end, the disk stage what lies between.
Each is worked out for one rank or host of a kind, by :class:`flodl_pipe.staging.expected_tier.ExpectedTier`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple, final

from flodl_pipe.jobs.plan_cluster_data import ClusterData
from flodl_pipe.jobs.plan_cluster_shares import EpochRows
from flodl_pipe.staging.expected_tier import ExpectedTier, TierPlan, Workload

__all__ = ["WAYS", "Capacity", "HostFinds", "Way", "host_finds"]

Way = Literal["own", "shared", "lanes"]
"""How samples are kept."""

WAYS: tuple[Way, ...] = ("own", "shared", "lanes")

_BATCHES = 512  # that stand for an epoch's


@final
class Capacity(NamedTuple):
    """Bytes that may hold samples.

    Attributes:
        ram: Of a host, of all its ranks together.
        pool: Of each device of it.
        disk: Of each rank's disk stage.
    """

    ram: int
    pool: tuple[int, ...]
    disk: int


@final
class _Finds(NamedTuple):
    """Rows that a tier finds in the first epoch, the second one, and once it is full; rows read only to fill it."""

    first: float
    second: float
    end: float
    filled: float


@final
@dataclass
class HostFinds:
    """What the ranks of a host find together; rows of an epoch.

    Attributes:
        rows: That they ask for.
        first: Of them, found in the first epoch.
        second: In the second one.
        pool: Found in the sample pools, once all are full.
        ram: In the RAM cache.
        disk: In the disk stages.
        filled: Rows that are read in the first epoch only to fill tiers ahead.
    """

    rows: int = 0
    first: float = 0.0
    second: float = 0.0
    pool: float = 0.0
    ram: float = 0.0
    disk: float = 0.0
    filled: float = 0.0

    @property
    def end(self) -> float:
        """Found once all tiers are full."""
        return self.pool + self.ram + self.disk

    @property
    def read_first(self) -> float:
        """Rows read from the source in the first epoch, whatever is read ahead: each sample asked for or kept once."""
        return self.rows - self.first + self.filled

    @property
    def read_end(self) -> float:
        """Rows read from the source in an epoch, once all tiers are full."""
        return max(0.0, self.rows - self.end)


def host_finds(
    way: Way,
    data: ClusterData,
    epoch: EpochRows,
    ranks: Sequence[int],
    ratios: Sequence[Fraction],
    capacity: Capacity,
) -> HostFinds:
    """Return what the ranks of one host find.

    Args:
        way: How samples are kept.
        data: The data; its samples and what a row takes are known.
        epoch: Rows of an epoch.
        ranks: The host's ranks.
        ratios: Shares of all ranks, which also divide the host's memory.
        capacity: What may be held there.
    """
    found = HostFinds()
    num_samples, of_host = data.num_samples or 1, sum((ratios[rank] for rank in ranks), Fraction(0))
    together = _at_most(sum(epoch.of(rank) for rank in ranks), num_samples * data.repeats)
    full = sum(epoch.full)
    fills_of_host = 0.0
    for rank, pool_bytes in zip(ranks, capacity.pool, strict=True):
        rows = epoch.of(rank)
        samples = num_samples
        if way == "lanes":
            samples = max(-(-num_samples * epoch.full[rank] // full), -(-rows // data.repeats))
        asked = _at_most(rows, samples * data.repeats)
        ram_bytes = capacity.ram if way == "shared" else int(capacity.ram * ratios[rank] / of_host)
        kept = max(data.kept_bytes, data.row_bytes) if way == "lanes" else data.kept_bytes
        pool = min(samples, pool_bytes // max(1, data.row_bytes))
        whole = min(samples, int(ram_bytes / kept))
        ram = min(samples - pool, whole)
        disk = min(samples - pool - ram, capacity.disk // data.record_bytes)
        # A pool that will hold everything is filled ahead, a part of it by what is uploaded anyway.
        in_pool = _finds(samples, asked, pool, data.repeats, ahead=data.ahead and pool == samples)
        by = together if way == "shared" else asked
        in_ram = _finds(samples, by, ram, data.repeats, ahead=data.ahead)
        on_disk = _finds(samples, asked, disk, data.repeats, ahead=False)
        part = asked / by
        found.rows += rows
        found.first += in_pool.first + in_ram.first * part + on_disk.first
        found.second += in_pool.second + in_ram.second * part + on_disk.second
        found.pool += in_pool.end
        found.ram += in_ram.end * part
        found.disk += on_disk.end
        found.filled += in_pool.filled
        if way == "shared":
            fills_of_host = max(fills_of_host, in_ram.filled)
        else:
            found.filled += in_ram.filled
    found.filled += fills_of_host
    return found


def _at_most(rows: int, most: int) -> int:
    """Return rows of an epoch that are picks of it: one that repeats an epoch's head is counted elsewhere."""
    return max(1, min(rows, most))


@lru_cache(maxsize=8192)
def _finds(num_samples: int, rows: int, num_held: int, repeats: int, *, ahead: bool) -> _Finds:
    if not num_held:
        return _Finds(0.0, 0.0, 0.0, 0.0)
    end = rows * num_held / num_samples
    if repeats == 1:  # nothing comes twice in an epoch: what was asked for, or read ahead, is found from the second on
        asked = rows / num_samples
        return _Finds(0.0, end if ahead else end * asked, end, num_held * (1 - asked) if ahead else 0.0)
    work = Workload(num_samples, 1, "permutation", rows, -(-rows // _BATCHES), repeats=repeats)
    tier = ExpectedTier(work, TierPlan(0, num_held))
    first, taken, _ = tier.epoch(0)
    return _Finds(first, end if ahead else tier.epoch(1)[0], end, num_held - taken if ahead else 0.0)
