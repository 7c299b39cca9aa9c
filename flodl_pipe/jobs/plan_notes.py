"""What a config asks for that has no effect where it would run, or another one than asked."""

import os

from flodl_pipe.config.loader import LoaderConfig, SimulatedConfig
from flodl_pipe.config.root import Config
from flodl_pipe.loader.device_plan import POOL_VARIABLE, DevicePlan
from flodl_pipe.loader.outline import Outline
from flodl_pipe.units import format_bytes

__all__ = ["device_notes", "notes"]

Rows = tuple[tuple[str, str], ...]


def notes(config: Config, found: Outline) -> Rows:
    """Return the notes of a source with an index."""
    loader, plan = config.loader, found.plan
    rows = [*device_notes(loader, found.device)]
    rows += [(f"cluster.{key}", what) for key, what in config.cluster.notes()]
    if loader.global_batch_size is not None:
        rows.append(("loader.batch_size", f"{loader.batch_size}, no effect: loader.global_batch_size decides"))
    if loader.prefetch != "auto" and not plan.num_readers:
        rows.append(("loader.prefetch", f"{loader.prefetch}, no effect: without readers nothing is read ahead"))
    if loader.disk_stage and not found.tiers.disk.num_rows:
        rows.append(("loader.disk_stage", f"{format_bytes(loader.disk_stage)}, no effect: {found.tiers.disk.why}"))
    if loader.disk_stage_dir and not loader.disk_stage:
        rows.append(("loader.disk_stage_dir", f"{loader.disk_stage_dir}, no effect: loader.disk_stage=0"))
    if not loader.sample_cache and found.device is None and plan.mode == "resident":
        rows.append(("loader.sample_cache", "false, no effect: the set is resident (loader.mode=streaming reads it)"))
    if loader.reader_kind == "process" and not plan.num_readers:
        rows.append(("loader.reader_kind", "process, no effect: loader.readers=0 reads in the training loop"))
    elif loader.reader_kind == "thread" and loader.reader_start != "forkserver":
        rows.append(("loader.reader_start", f"{loader.reader_start}, no effect: loader.reader_kind=thread"))
    if not config.sampling.shuffle:
        rows.append(("sampling.seed", f"{config.sampling.seed}, no effect on the order: sampling.shuffle=false"))
    rows += [(f"sampling.{key}", text) for key, text in config.sampling.notes()]
    rows += [(f"source.{key}", text) for key, text in config.source.notes()]
    return tuple(rows)


def device_notes(loader: LoaderConfig, device: DevicePlan | None) -> list[tuple[str, str]]:
    """Return the notes on keys that are about a device."""
    switch = os.environ.get(POOL_VARIABLE)
    rows: list[tuple[str, str]] = []
    if device is None:
        on_cpu = "no effect on a CPU"
        rows.append(("loader.vram_max_usage", f"{loader.vram_max_usage:g}, checked; {on_cpu}"))
        if not loader.vram_pool:
            rows.append(("loader.vram_pool", f"false, {on_cpu}"))
        if loader.activation_reserve is not None:
            rows.append(("loader.activation_reserve", f"{format_bytes(loader.activation_reserve)}, {on_cpu}"))
        if loader.gpu_ram_share is not None:
            rows.append(("loader.gpu_ram_share", f"{loader.gpu_ram_share:g}, {on_cpu}"))
        if switch:
            rows.append((POOL_VARIABLE, f"{switch} in the environment, {on_cpu}"))
    else:
        name = device.shared.device.name
        if loader.gpu_ram_share is not None and not device.shared.device.memory().is_shared:
            why = f"no effect: {name} has memory of its own"
            rows.append(("loader.gpu_ram_share", f"{loader.gpu_ram_share:g}, {why}"))
        if not loader.vram_pool and loader.mode == "resident":
            rows.append(("loader.vram_pool", "false, no effect: loader.mode=resident keeps every sample there"))
    if loader.device != "simulated" and loader.simulated != SimulatedConfig():
        rows.append(("loader.simulated", f"no effect: loader.device={loader.device}"))
    return rows
