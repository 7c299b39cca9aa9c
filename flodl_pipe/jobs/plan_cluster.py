"""The plan of a described cluster: who takes what of each step, what hosts keep and read, and who waits for whom.

Arithmetic only, on what the config says of hosts and devices: the time it takes grows with the number of ranks, and not
with the number of samples. Nothing is known of a host beyond that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.job import PlanJob
from flodl_pipe.config.root import Config
from flodl_pipe.errors import ConfigError
from flodl_pipe.jobs.plan_cluster_data import ClusterData, data_of
from flodl_pipe.jobs.plan_cluster_grids import Sharing, idle_grid, pace_grid, rate_grid, tier_grid, volume_grid
from flodl_pipe.jobs.plan_cluster_held import held_by_cluster, kept_rows
from flodl_pipe.jobs.plan_cluster_hosts import Places
from flodl_pipe.jobs.plan_cluster_rows import cluster_rows, note_rows, rank_rows, reading_rows
from flodl_pipe.jobs.plan_cluster_shares import Pace, best_shares, epoch_rows, equal_shares, first_shares
from flodl_pipe.jobs.plan_cluster_tiers import WAYS, HostFinds, Way, host_finds
from flodl_pipe.loader.outline import Outline
from flodl_pipe.loader.stream_outline import StreamOutline
from flodl_pipe.reports.tables import Grid, Section
from flodl_pipe.sampling.share_plan import most_rows
from flodl_pipe.sampling.shares import cut

__all__ = ["cluster_sections", "unused_keys"]

_KEYS = ("host_ram", "device_memory", "read_bytes_per_s", "samples_per_s", "step_overhead_s")


def unused_keys(config: Config) -> tuple[tuple[str, str], ...]:
    """Return the keys of the job that are about described hosts, where there are none.

    Raises:
        ConfigError: if samples are stated: without data and without hosts there is nothing to plan.
    """
    job = config.job
    if not isinstance(job, PlanJob) or config.cluster.hosts:
        return ()
    if job.num_samples is not None:
        raise ConfigError.at(
            "job.num_samples",
            f"{job.num_samples:,} samples that are not there are planned for described hosts, and cluster.hosts is "
            "empty; describe the hosts, or leave job.num_samples at null to plan for this machine",
        )
    default = PlanJob()
    return tuple(
        (f"job.{key}", f"{value}, no effect: cluster.hosts describes no host")
        for key in _KEYS
        if (value := getattr(job, key)) != getattr(default, key)
    )


@final
@dataclass(frozen=True)
class _Shares:
    """How steps are shared.

    Attributes:
        rows: Rows of each rank in a full step, as a run of the config shares them in the end.
        cut_last: Cuts a short step.
        why: Where they come from, in words.
        sharings: Several ways to share, with their times; empty where speeds are not stated.
        is_bound: Whether a bound keeps a rank from the rows that its speed would give it.
    """

    rows: tuple[int, ...]
    cut_last: Callable[[int], tuple[int, ...]]
    why: str
    sharings: tuple[Sharing, ...]

    is_bound: bool = False

    @property
    def configured(self) -> Sharing | None:
        """The way that a run of the config shares."""
        return next((one for one in self.sharings if one.is_configured), None)


def cluster_sections(config: Config, found: Outline | StreamOutline | None) -> tuple[Section | Grid, ...]:
    """Return the plan of the described hosts, section by section; nothing where none is described.

    Args:
        config: The config.
        found: What a loader of this machine would be made of; None where ``job.num_samples`` stands in for the source.

    Raises:
        ConfigError: if a run would be refused, or a list of the job is not one of the hosts or ranks.
    """
    places = Places.of(config.cluster)
    if places is None:
        return ()
    job = config.job if isinstance(config.job, PlanJob) else PlanJob()
    ratios = places.ratios
    data = data_of(config, found, RunContext(world_size=places.num_ranks, ratios=ratios))
    speeds = places.each_rank("samples_per_s", job.samples_per_s)
    can_read = places.each_host("read_bytes_per_s", job.read_bytes_per_s)
    held = held_by_cluster(config, job, places)
    shares = _shares(config, data, ratios, speeds, job.step_overhead_s)
    epoch = None if data.steps is None else epoch_rows(data.steps, shares.rows, shares.cut_last)
    last = () if epoch is None else epoch.last
    groups = places.alike(shares.rows, last)
    kinds = places.alike(shares.rows, last, held.pool, by_host=[held.ram, *([] if can_read is None else [can_read])])
    by_way: dict[Way, list[HostFinds]] = {}
    if epoch is not None and not data.tiers_off and held.is_something:
        by_way = {
            way: [host_finds(way, data, epoch, kind.ranks, ratios, held.of(kind)) for kind in kinds] for way in WAYS
        }
    here: Way = "lanes" if data.is_lanes else "shared" if config.cluster.share_host_cache else "own"
    configured = shares.configured
    step_s = configured.pace.step_s if configured is not None else job.step_time_s or None
    pace_parts: tuple[Section | Grid, ...] = (Section("Step", (("speeds", "not stated (job.samples_per_s)"),)),)
    if speeds is not None:
        kinds_of_speed = places.alike(speeds, *(one.pace.rows for one in shares.sharings))
        pace_parts = (
            pace_grid(shares.sharings, None if epoch is None else epoch.num_steps),
            idle_grid(shares.sharings, speeds, kinds_of_speed),
        )
    finds = by_way.get(here)
    reading: tuple[Section | Grid, ...] = ()
    if not data.is_in_memory:
        limits = reading_rows(finds, kinds, shares.rows, data.row_bytes, step_s, can_read)
        reading = (
            rate_grid(by_way, kinds, data, shares.rows, step_s, can_read),
            Section("Reading by the cluster", limits),
        )
    noted = note_rows(config, job, data, finds, is_bound=shares.is_bound)
    return (
        Section("Cluster", cluster_rows(config, places, data, shares.why)),
        Section("Ranks", rank_rows(places, groups, shares.rows, epoch)),
        *(() if epoch is None else (volume_grid(epoch, groups, data.row_bytes),)),
        Section("Kept by the cluster", kept_rows(data, held, places)),
        *(tier_grid(way, found_here, kinds, data.row_bytes, here=way == here) for way, found_here in by_way.items()),
        *pace_parts,
        *reading,
        *((Section("Notes on the cluster", noted),) if noted else ()),
    )


def _shares(
    config: Config,
    data: ClusterData,
    ratios: tuple[Fraction, ...],
    speeds: Sequence[float] | None,
    overhead_s: float,
) -> _Shares:
    cluster, unit = config.cluster, data.full_unit
    first = first_shares(data.global_batch, ratios, unit)
    is_auto = cluster.balance == "auto"
    is_equal = len(set(ratios)) == 1
    if cluster.partition_ratios is not None:
        why = "by cluster.partition_ratios"
    else:
        why = "equal" if is_equal and all(host.ratios is None for host in cluster.hosts) else "by ratios of hosts"
    if is_auto:
        most_rows(first, unit=unit, max_rows=cluster.max_rows)  # refuses a first share that is larger
        why += " at first, then as measured (cluster.balance=auto)"
    cut_last = partial(cut, ratios=ratios, unit=data.unit)
    if speeds is None:
        return _Shares(first, cut_last, why, ())
    best, is_bound = best_shares(speeds, first, unit=unit, max_rows=cluster.max_rows if is_auto else None)
    equal = equal_shares(data.global_batch, len(ratios), unit)
    ways = [("equal", "equal", equal, is_equal and not is_auto)]
    if not is_equal:
        ways.append(("ratios", "ratios", first, not is_auto))
    ways.append(("balance=auto", "auto", best, is_auto))
    sharings = tuple(Sharing(name, short, Pace(rows, speeds, overhead_s), here) for name, short, rows, here in ways)
    if not is_auto:
        return _Shares(first, cut_last, why, sharings)
    why += "; here as they end with job.samples_per_s"
    return _Shares(best, partial(cut, ratios=best, minimum=1, unit=unit), why, sharings, is_bound=is_bound)
