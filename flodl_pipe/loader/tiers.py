"""Which tiers stand between the readers and a source, and which samples each may hold. Arithmetic only.

::

    ranks       0 ........................................................ N - 1
    in storage  | device pool -->      ...      <-- disk stage |   RAM cache   |
    by draws    | device pool | RAM cache | disk stage | ...

The device pool grows from the low end. In storage order, where no sample is worth more than another, the RAM cache has
the high end and the disk stage what lies below it, so that a pool that grows meets them as late as possible. Where some
samples are drawn more often than others, the heaviest come first, and the tiers follow each other. Under the lanes
order only the samples that this rank of the run owns have ranks: no tier holds another.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.errors import ConfigError
from flodl_pipe.loader.lane_order import num_own, own_lanes
from flodl_pipe.loader.resident import resident_bytes
from flodl_pipe.memory.disk import disk_grant, memory_warning, probe_disk
from flodl_pipe.sampling.lanes import LanesOrder
from flodl_pipe.sampling.mixture_order import MixtureOrder
from flodl_pipe.sampling.orders import Order
from flodl_pipe.sampling.steps import EpochSteps
from flodl_pipe.sampling.weighted import WeightedOrder
from flodl_pipe.sources.ordering import Mixed
from flodl_pipe.sources.protocol import BundledSource, RaggedSource, Source, is_dear
from flodl_pipe.sources.ragged_source import RAGGED_TIERS_OFF
from flodl_pipe.staging.disk_records import RecordLayout
from flodl_pipe.staging.disk_stage import rows_fitting as rows_on_disk
from flodl_pipe.staging.lane_ranking import LaneRanking
from flodl_pipe.staging.ram_cache import RankRange, rows_fitting, shared_bytes
from flodl_pipe.staging.ram_ragged import ragged_rows_fitting
from flodl_pipe.staging.ranking import ByParts, ByWeight, RankedPart, Ranking, StorageOrder
from flodl_pipe.staging.shared_room import Together
from flodl_pipe.units import format_bytes

__all__ = ["TierPlan", "TierRange", "disk_folder", "plan_tiers", "ranking_for"]

# Windows that share this much of their bytes are not worth a row each on disk.
_MOST_OVERLAP = 1.25
# What the disk stage knows of a row in memory: where it lies.
_PLACE_BYTES, _FAR_PLACE_BYTES, _FAR = 4, 8, 1 << 31
_WHOLE = "the RAM cache holds the whole set"
_WHOLE_PART = "the RAM cache holds all samples of this rank"


@final
@dataclass(frozen=True)
class TierRange:
    """What one tier may hold.

    Attributes:
        first_rank: First rank.
        num_rows: Samples; 0 where the tier is off.
        num_bytes: What they take; of what several ranks keep together, this rank's part.
        why: Reason for that many, or for none.
        is_whole: Whether that is every sample, or every one that this rank owns.
        warning: What to warn of: a disk that is memory.
        in_one: Whether it is kept in one piece, as a resident set is: read front to back, and there when it is whole.
    """

    first_rank: int
    num_rows: int
    num_bytes: int
    why: str
    is_whole: bool = False
    warning: str | None = None
    in_one: bool = False

    @classmethod
    def off(cls, why: str) -> "TierRange":
        """Return the range of a tier that is off."""
        return cls(0, 0, 0, why)


@final
@dataclass(frozen=True)
class TierPlan:
    """The tiers of the host.

    Attributes:
        ranking: Ranks of the samples.
        ram: The RAM cache.
        disk: The disk stage.
        table_bytes: Host memory for tables: ranks, and what the disk stage knows of its rows.
        room_bytes: What the RAM cache may take; None where it is off, however much that is.
    """

    ranking: Ranking
    ram: TierRange
    disk: TierRange
    table_bytes: int = 0
    room_bytes: int | None = None


def disk_folder(config: LoaderConfig) -> Path:
    """Return the folder of the disk stage."""
    return Path(config.disk_stage_dir or tempfile.gettempdir())


def ranking_for(source: Source, order: Order, steps: EpochSteps) -> Ranking:
    """Return which samples a tier should hold first under an order, on a rank with these steps."""
    own = own_lanes(order, steps)
    if own is not None and isinstance(order, LanesOrder):
        return LaneRanking(order.deal, own.first, own.num_lanes)
    if isinstance(order, WeightedOrder):
        return ByWeight(order.weights)
    ordering = source.ordering if isinstance(source, BundledSource) else None
    if isinstance(order, MixtureOrder) and isinstance(ordering, Mixed):
        parts, first = [], 0
        for part, weight in zip(ordering.parts, ordering.schedule[0].weights, strict=True):
            parts.append(RankedPart(first, part.num_samples, float(weight) / max(1, part.num_samples)))
            first += part.num_samples
        return ByParts(parts)
    return StorageOrder(len(source))


def once_only(order: Order, num_epochs: int | None) -> str | None:
    """Return why no sample will come twice in a run, or None where it may."""
    if num_epochs == 1 and order.num_repeats == 1:
        return "the run has one epoch, in which no sample comes twice"
    return None


def plan_tiers(
    source: Source,
    order: Order,
    steps: EpochSteps,
    config: LoaderConfig,
    *,
    mode: str,
    room_bytes: int,
    num_epochs: int | None,
    num_readers: int,
    skips: bool,
    on_device: bool = False,
    has_pool: bool = False,
    together: Together | None = None,
) -> TierPlan:
    """Decide which tiers of the host keep samples.

    Args:
        source: The samples.
        order: Their order.
        steps: How it is cut into steps, for this rank.
        config: Section ``loader``.
        mode: ``resident`` keeps all samples elsewhere.
        room_bytes: Host memory that is left for them.
        num_epochs: Epochs of the run, where they are known.
        num_readers: Readers; without any there is no background to fill in.
        skips: Whether samples that cannot be read are skipped.
        on_device: Whether batches are delivered to a device.
        has_pool: Whether some samples may stay there, which takes tables here: ranks, and a byte a sample.
        together: Memory of all ranks of this host, where they keep samples together.

    Raises:
        ConfigError: if a disk stage is asked for where no tier may keep samples.
    """
    num_samples = len(source)
    off = source.tiers_off if isinstance(source, BundledSource) else None
    if off is not None and config.disk_stage:
        raise ConfigError.at(
            "loader.disk_stage",
            f"{format_bytes(config.disk_stage)}, but {off}; set disk_stage=0, or use a source that gives samples one "
            "by one, by number",
        )
    if isinstance(source, RaggedSource) and off == RAGGED_TIERS_OFF:
        return _ragged_tiers(source, order, steps, config, once_only(order, num_epochs), room_bytes)
    if config.disk_stage:  # a folder that cannot hold one is an error, whether it will be needed or not
        disk_grant(config.disk_stage, probe_disk(disk_folder(config)))
    ranking = ranking_for(source, order, steps) if has_pool else StorageOrder(num_samples)
    # Where a share is too small for tables (ram_max_usage: 0) they are all that is held beyond the ring.
    tables = min(max(0, room_bytes), ranking.held_bytes + len(ranking)) if has_pool else 0
    room_bytes -= tables
    if mode == "resident" and not on_device and is_dear(source):
        why = f"the whole set, {format_bytes(resident_bytes(source))}, as the loop asks for it"
        ram = TierRange(0, num_samples, resident_bytes(source), why, is_whole=True)
        return TierPlan(ranking, ram, TierRange.off("the set is resident"), tables)
    if mode == "resident" and (not on_device or resident_bytes(source)):
        off = "the set is resident on the device" if on_device else "the set is resident"
    off = off or once_only(order, num_epochs)
    if off is not None:
        return TierPlan(ranking, TierRange.off(off), TierRange.off(off), tables)
    set_bytes = resident_bytes(source)
    # Read front to back by a thread; rows of a dataset in Python are dear, and kept as the loop asks for them. So are
    # those of a set that may have gaps. Rows that are kept one by one take a byte more each.
    in_one = not set_bytes or (num_readers > 0 and not skips and not is_dear(source))
    kept_bytes = set_bytes if in_one or is_dear(source) else set_bytes + num_samples + 1
    # Of its own samples alone a rank keeps rows: they lie all over the set.
    is_part = num_own(order, steps, num_samples) < num_samples
    if config.sample_cache and kept_bytes <= room_bytes and together is None and not (is_part and set_bytes):
        why = f"the whole set, {format_bytes(set_bytes)}" if set_bytes else "the source holds the whole set itself"
        ram = TierRange(0, num_samples, kept_bytes, why, is_whole=True, in_one=in_one)
        if not in_one and not num_readers and _is_read_ahead_only(source):
            ram = TierRange.off("loader.readers=0: there is no thread to fill it")
        can_share = set_bytes and (num_readers or not _is_read_ahead_only(source))
        return TierPlan(ranking, ram, TierRange.off(_WHOLE), tables, room_bytes if can_share else None)
    if not has_pool:
        ranking = ranking_for(source, order, steps)
        if ranking.held_bytes > max(0, room_bytes):
            off = f"{format_bytes(max(0, room_bytes))} of the host grant is left for it, not enough to tell its samples"
            return TierPlan(StorageOrder(num_samples), TierRange.off(off), TierRange.off(off))
        tables = ranking.held_bytes
        room_bytes -= tables
    # Tables of the disk stage come first: without them its rows could not be found.
    on_disk = min(len(ranking), rows_on_disk(source, config.disk_stage), max(0, room_bytes) // _places(1))
    room_bytes = max(0, room_bytes - _places(on_disk))
    cannot_fill = not num_readers and _is_read_ahead_only(source) and isinstance(ranking, StorageOrder)
    if not config.sample_cache:
        ram = TierRange.off("loader.sample_cache=false")
    elif not set_bytes:
        ram = TierRange.off("the source holds the whole set itself")
    elif together is not None:
        found = rows_fitting(source, ranking, together.room_bytes)
        why, is_whole = together.why(found, num_samples, set_bytes), found.num_ranks == num_samples
        ram = TierRange(found.first_rank, found.num_ranks, together.part(found.num_bytes), why, is_whole)
    else:
        found = RankRange(0, 0, 0) if cannot_fill else rows_fitting(source, ranking, room_bytes)
        why = (
            f"{format_bytes(room_bytes)} of the host grant is left for it, and the set takes {format_bytes(set_bytes)}"
        )
        if is_part:
            why += f", of which {len(ranking):,} of {num_samples:,} samples are this rank's own"
        is_whole = is_part and found.num_ranks == len(ranking)
        ram = TierRange(found.first_rank, found.num_ranks, found.num_bytes, why, is_whole)
    whole = _WHOLE_PART if is_part else _WHOLE
    disk = TierRange.off(whole) if ram.is_whole else _disk(source, ranking, config, ram, on_disk)
    can_share = config.sample_cache and set_bytes and not cannot_fill
    return TierPlan(ranking, ram, disk, tables + _places(disk.num_rows), room_bytes if can_share else None)


def _places(num_rows: int) -> int:
    return num_rows * (_PLACE_BYTES if num_rows < _FAR else _FAR_PLACE_BYTES)


def _ragged_tiers(
    source: RaggedSource, order: Order, steps: EpochSteps, config: LoaderConfig, off: str | None, room_bytes: int
) -> TierPlan:
    """Return what may be held of samples of different lengths: in the RAM cache only."""
    no_disk = TierRange.off("rows of different lengths are not kept on disk")
    if off is None and not config.sample_cache:
        off = "loader.sample_cache=false"
    if off is not None:
        return TierPlan(StorageOrder(len(source)), TierRange.off(off), no_disk)
    ranking = ranking_for(source, order, steps)
    found = ragged_rows_fitting(source, ranking, max(0, room_bytes - ranking.held_bytes))
    why = f"{format_bytes(max(0, room_bytes))} of the host grant is left for it; samples differ in length"
    # Taken in as they come until the grant is used up: samples may be longer than was reckoned with.
    num_bytes = max(0, room_bytes - ranking.held_bytes) if found.num_ranks < len(ranking) else 2 * found.num_bytes
    num_bytes = min(num_bytes, max(0, room_bytes - ranking.held_bytes))
    ram = TierRange(found.first_rank, found.num_ranks, num_bytes, why)
    return TierPlan(ranking, ram, no_disk, ranking.held_bytes)


def _is_read_ahead_only(source: Source) -> bool:
    """Return whether a RAM cache keeps runs of bytes, which only a thread can fill."""
    return shared_bytes(source, StorageOrder(len(source))) is not None


def _disk(source: Source, ranking: Ranking, config: LoaderConfig, ram: TierRange, fitting: int) -> TierRange:
    if not config.disk_stage:
        return TierRange.off("loader.disk_stage=0")
    extents = source.extents if isinstance(source, BundledSource) else None
    if extents is not None and extents.memory is not None:
        return TierRange.off("the source holds the whole set in memory itself")
    if extents is not None and len(source) * extents.row_bytes > _MOST_OVERLAP * extents.num_bytes:
        return TierRange.off("its samples share their bytes, and a disk stage holds each by itself")
    if not fitting:
        return TierRange.off("no host memory is left for its tables, 4 bytes a row; raise loader.ram_max_usage")
    begin, end = 0, len(ranking)
    if ranking.is_even:
        end = ram.first_rank if ram.num_rows else end
    else:
        begin = ram.num_rows
    num_rows = min(fitting, end - begin)
    first = end - num_rows if ranking.is_even else begin
    num_bytes = num_rows * RecordLayout(source.spec).record_bytes
    facts = probe_disk(disk_folder(config))
    grant = disk_grant(config.disk_stage, facts, set_bytes=num_bytes)
    return TierRange(first, num_rows, num_bytes, grant.reason, warning=memory_warning(facts, num_bytes))
