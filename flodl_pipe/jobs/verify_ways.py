"""The ways to serve of ``job=verify``: what of section ``loader`` each of them is.

::

    resident     CPU: the whole set in memory
    streaming    CPU: nothing is kept
    cached       CPU: streaming, what was read stays in the RAM cache
    disk         CPU: streaming, half of the set in the disk stage
    device       simulated device: the whole set there
    device pool  simulated device: half of the set stays there once it was uploaded, the rest is uploaded each time
    uploaded     simulated device: everything is uploaded each time, from the RAM cache where there is one

Each rank has a simulated device of its own, as it would have a real one. What is on it lies in this host's memory.
"""

from dataclasses import dataclass
from typing import Any, final

from flodl_pipe.config.loader import SimulatedConfig
from flodl_pipe.config.root import Config
from flodl_pipe.errors import ConfigError, FlodlPipeError, StagingError, TransformError
from flodl_pipe.jobs.verify_combinations import Setting
from flodl_pipe.loader.outline import Outline
from flodl_pipe.memory.depth import DEPTH_AT_BUILD
from flodl_pipe.memory.device_budget import slab_rows
from flodl_pipe.pipeline import outline
from flodl_pipe.sources.protocol import BundledSource
from flodl_pipe.sources.stream_protocol import Stream
from flodl_pipe.units import format_bytes

__all__ = ["REFUSALS", "Sizes", "Subject", "idle_tier", "in_short", "sizes_of"]

REFUSALS = (ConfigError, StagingError, TransformError)
"""What says that a config cannot be served in some way."""

_PLENTY_BYTES = 16 << 30
_SMALLEST_BYTES = 1 << 20
# A disk stage of verify is gone after seconds: more of it would be written than is ever read back.
_MOST_DISK_BYTES = 64 << 20
_COPY_BYTES_PER_S = 12_000_000_000


@final
@dataclass(frozen=True)
class Sizes:
    """What one rank alone would move to a device and hold there.

    Attributes:
        set_bytes: All samples, as they are kept there.
        row_bytes: A row of them.
        step_bytes: A step in flight.
        work_bytes: What is kept free for work on one.
        max_rows: Its rows, at most.
        num_steps: Steps of an epoch.
        host_bytes: What of host memory may be held.
    """

    set_bytes: int = 0
    row_bytes: int = 0
    step_bytes: int = 0
    work_bytes: int = 0
    max_rows: int = 1
    num_steps: int = 1
    host_bytes: int = 0

    @property
    def pool_bytes(self) -> int:
        """About half of the set in whole slabs, the unit that a pool grows by; a set of one slab is held whole."""
        slab = self.slab_bytes
        return min(self.set_bytes, max(1, self.set_bytes // 2 // slab) * slab)

    @property
    def slab_bytes(self) -> int:
        """A slab of the pool."""
        row_bytes = max(1, self.row_bytes)
        return slab_rows(row_bytes, max(1, self.set_bytes // row_bytes)) * row_bytes


@final
@dataclass(frozen=True)
class Subject:
    """The stream that is looked at, and how it can be served.

    Attributes:
        config: The config.
        global_batch: Rows of a step over all ranks, whatever their number.
        sizes: What would be on a device.
    """

    config: Config
    global_batch: int
    sizes: Sizes = Sizes()

    def at(self, setting: Setting, rank: int) -> Config:
        """Return the config of a rank.

        Raises:
            ConfigError: if several ranks cannot have one stream together.
        """
        config, changes = self.config, {**self._way(setting, rank)}
        changes["readers"] = setting.readers
        changes["check_purity"] = False  # checked beforehand, once
        if config.sampling.batch_sampler is None:  # which decides by itself, and excludes a size
            if config.loader.batch_size is not None:
                changes["global_batch_size"] = self.global_batch
            elif setting.world_size > 1:
                raise ConfigError.at(
                    "loader.batch_size",
                    "null gives every rank one sample a step, so that several have other steps than one; set a size "
                    "to compare them",
                )
        return config.model_copy(update={"loader": config.loader.model_copy(update=changes)})

    def too_large(self, setting: Setting) -> str | None:
        """Return why the devices of all ranks do not fit into this host's memory, which simulates them; or None."""
        kept = {"device": self.sizes.set_bytes, "device pool": self.sizes.pool_bytes}.get(setting.way, 0)
        if kept * setting.world_size <= self.sizes.host_bytes:
            return None
        return (
            f"simulated devices that keep {format_bytes(kept)} for each of {setting.world_size} ranks take host "
            f"memory, and {format_bytes(self.sizes.host_bytes)} may be held"
        )

    def _way(self, setting: Setting, rank: int) -> dict[str, Any]:
        way = setting.way
        changes: dict[str, Any] = {
            "device": "simulated" if setting.is_on_device else "cpu",
            "mode": setting.mode,
            "sample_cache": way in ("cached", "uploaded"),
            "disk_stage": 0,
            "vram_pool": way in ("device", "device pool"),
        }
        if way == "disk":
            changes["disk_stage"] = max(1, min(_MOST_DISK_BYTES, self.sizes.set_bytes // 2))
        if setting.is_on_device:
            changes |= {"activation_reserve": 0, "vram_max_usage": 0.9}
            memory_bytes = max(_PLENTY_BYTES, 4 * self.sizes.set_bytes)
            if way == "device pool":
                # Half of the memory is left to batches that the loop holds, and to what the allocator rounds up.
                changes["vram_max_usage"] = 0.5
                memory_bytes = max(_SMALLEST_BYTES, 2 * self._budget_bytes(setting, rank))
            # Loaders share a device that they describe alike; each rank has its own.
            changes["simulated"] = SimulatedConfig(memory_bytes=memory_bytes, copy_bytes_per_s=_COPY_BYTES_PER_S + rank)
        return changes

    def _budget_bytes(self, setting: Setting, rank: int) -> int:
        """Return what a rank has to hold on its device for the pool to have its part."""
        sizes, prefetch = self.sizes, self.config.loader.prefetch
        rows = -(-sizes.max_rows * setting.ratios[rank] // sum(setting.ratios))
        depth = min(DEPTH_AT_BUILD if prefetch == "auto" else prefetch, sizes.num_steps)
        steps_bytes = -(-(depth * sizes.step_bytes + sizes.work_bytes) * rows // sizes.max_rows)
        # Half a slab more, for the rows above are reckoned.
        return sizes.pool_bytes + steps_bytes + sizes.slab_bytes // 2


def sizes_of(config: Config) -> Sizes:
    """Return what one rank would move to a device and hold there; nothing where it cannot deliver to one."""
    section = {"device": "simulated", "mode": "streaming", "vram_pool": True, "activation_reserve": 0, "disk_stage": 0}
    simulated = SimulatedConfig(memory_bytes=1 << 50)
    try:
        found = outline(_with_loader(config, **section, simulated=simulated))
    except REFUSALS:
        return Sizes()  # each way says by itself why it is refused
    try:
        assert found.device is not None
        return Sizes(
            set_bytes=found.device.set_bytes,
            row_bytes=found.host_making.spec.row_bytes,
            step_bytes=found.device.step_bytes,
            work_bytes=found.device.work_bytes,
            max_rows=found.layout.max_rows,
            num_steps=found.steps.num_steps() if isinstance(found, Outline) else DEPTH_AT_BUILD,
            host_bytes=found.plan.share.num_bytes,
        )
    finally:
        if isinstance(found.source, BundledSource | Stream):
            found.source.close()


def idle_tier(subject: Subject, setting: Setting) -> str | None:
    """Return why a way would keep no sample where it is named for keeping some; None for any other.

    Raises:
        FlodlPipeError: one of :data:`REFUSALS`, if the way is refused.
    """
    if setting.way not in ("cached", "disk", "device pool"):
        return None
    found = outline(subject.at(setting, 0))
    try:
        if not isinstance(found, Outline):
            return f"{setting.way}: a stream has no index, so no memory tier can hold its samples"
        if setting.way == "device pool":
            off = None if found.device is None else found.device.pool_off
        else:
            tier = found.tiers.ram if setting.way == "cached" else found.tiers.disk
            off = None if tier.num_rows else tier.why
        return None if off is None else f"{setting.way}: {off}"
    finally:
        if isinstance(found.source, BundledSource | Stream):
            found.source.close()


def in_short(error: FlodlPipeError) -> str:
    """Return an error's message without the frame that a config error has."""
    if isinstance(error, ConfigError):
        return "; ".join(
            f"{problem.key}: {problem.message}" if problem.key else problem.message for problem in error.problems
        )
    return str(error)


def _with_loader(config: Config, **changes: object) -> Config:
    return config.model_copy(update={"loader": config.loader.model_copy(update=changes)})
