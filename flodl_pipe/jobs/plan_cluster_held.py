"""What the hosts and devices of a described cluster may hold, by what the job says of them, and in words."""

from dataclasses import dataclass
from typing import final

from flodl_pipe.config.job import PlanJob
from flodl_pipe.config.root import Config
from flodl_pipe.jobs.plan_cluster_data import ClusterData
from flodl_pipe.jobs.plan_cluster_hosts import Alike, Places
from flodl_pipe.jobs.plan_cluster_tiers import Capacity
from flodl_pipe.units import format_bytes

__all__ = ["Held", "held_by_cluster", "kept_rows"]

Rows = tuple[tuple[str, str], ...]


@final
@dataclass(frozen=True)
class Held:
    """Bytes that may hold samples.

    Attributes:
        ram: Of each host.
        pool: Of each rank's device.
        disk: Of each rank's disk stage.
        ram_why: Where the first comes from, in words.
        pool_why: The second.
    """

    ram: tuple[int, ...]
    pool: tuple[int, ...]
    disk: int
    ram_why: str
    pool_why: str

    @property
    def is_something(self) -> bool:
        """Whether anything is held at all."""
        return bool(self.disk or any(self.ram) or any(self.pool))

    def of(self, kind: Alike) -> Capacity:
        """Return what each of some alike hosts may hold."""
        return Capacity(self.ram[kind.first_host], tuple(self.pool[rank] for rank in kind.ranks), self.disk)


def held_by_cluster(config: Config, job: PlanJob, places: Places) -> Held:
    """Return what hosts and devices may hold, as the job and the loader's knobs say.

    Raises:
        ConfigError: if a list is not one of the hosts or ranks.
    """
    loader = config.loader
    free = places.each_host("host_ram", job.host_ram)
    if free is None:
        ram, ram_why = (0,) * places.num_hosts, "not stated (job.host_ram): none"
    elif not loader.sample_cache:
        ram, ram_why = (0,) * places.num_hosts, "off: loader.sample_cache=false"
    else:
        ram = tuple(int(num_bytes * loader.ram_max_usage) for num_bytes in free)
        ram_why = f"{_range(ram)} a host: loader.ram_max_usage={loader.ram_max_usage:g} of {_range(free)} free"
    on_device = places.each_rank("device_memory", job.device_memory)
    if on_device is None:
        pool, pool_why = (0,) * places.num_ranks, "not stated (job.device_memory): none"
    elif not loader.vram_pool:
        pool, pool_why = (0,) * places.num_ranks, "off: loader.vram_pool=false"
    else:
        pool = tuple(int(num_bytes * loader.vram_max_usage) for num_bytes in on_device)
        pool_why = (
            f"{_range(pool)} a device: loader.vram_max_usage={loader.vram_max_usage:g} of {_range(on_device)} free"
        )
    return Held(ram, pool, loader.disk_stage, ram_why, pool_why)


def kept_rows(data: ClusterData, held: Held, places: Places) -> Rows:
    """Return what is held, and what it would take to hold everything."""
    if data.tiers_off:
        return (("all", f"not told: {data.tiers_off}"),)
    disk = f"{format_bytes(held.disk)} a rank" if held.disk else "off: loader.disk_stage=0"
    num_samples, ratios = data.num_samples or 0, places.ratios
    whole, total = num_samples * data.kept_bytes, sum(ratios)
    most = max(sum(ratios[rank] for rank in places.ranks(host)) for host in range(places.num_hosts)) / total
    own = num_samples * max(data.kept_bytes, data.row_bytes) * float(most)
    everything = (
        f"{format_bytes(whole)} on each host with the uniform order (on each rank without a shared cache); with lanes "
        f"{format_bytes(own)} on the host that takes most"
    )
    how = "read ahead, front to back, in the first epoch" if data.ahead else "kept as they are read"
    return (
        ("sample pool", held.pool_why),
        ("RAM cache", held.ram_why),
        ("disk stage", disk),
        ("to keep all", everything),
        ("samples are", how),
    )


def _range(sizes: tuple[int, ...]) -> str:
    low, high = format_bytes(min(sizes)), format_bytes(max(sizes))
    return low if low == high else f"{low} .. {high}"
