"""What the loaders of this process may hold of host memory, with what an integrated GPU may still take left out."""

import gc
import os
from typing import NamedTuple, final

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.loader import LoaderConfig
from flodl_pipe.devices.accelerator import AcceleratorDevice
from flodl_pipe.devices.aperture import Reserve, host_reserve, measure_aperture, num_sockets, written_memory
from flodl_pipe.devices.protocol import Device
from flodl_pipe.errors import DeviceMemoryError
from flodl_pipe.loader.targets import SharedDevice
from flodl_pipe.memory.budget import Grant, host_share, local_share
from flodl_pipe.memory.ledger import process_ledger
from flodl_pipe.memory.probe import HostMemory, probe_host

__all__ = ["HostBudget", "collect_gone_loaders", "device_reserve", "host_budget"]

# Whether a device's memory is the host's does not change, and finding out takes a second.
_measured: dict[str, bool] = {}


@final
class HostBudget(NamedTuple):
    """Host memory as one probe saw it.

    Attributes:
        memory: The probe.
        share: What all loaders of this process may hold.
        reserve: What is left to an integrated GPU; None without a device.
    """

    memory: HostMemory
    share: Grant
    reserve: Reserve | None


def host_budget(
    config: LoaderConfig, shared: SharedDevice | None, held_bytes: int, context: RunContext | None = None
) -> HostBudget:
    """Probe the host.

    Args:
        config: Section ``loader``.
        shared: The device that batches are delivered to; None for the CPU.
        held_bytes: What the ledger has granted already, and what sources hold.
        context: Tells the ranks of this host and their shares; where it does not, LOCAL_WORLD_SIZE tells their number.

    Raises:
        ConfigError: if an integrated GPU's part cannot be known.
    """
    memory = probe_host()
    reserve = None if shared is None else device_reserve(shared.device, memory, config.gpu_ram_share)
    share = host_share(
        memory,
        ram_max_usage=config.ram_max_usage,
        held_bytes=held_bytes,
        reserve_bytes=0 if reserve is None else reserve.num_bytes,
        share_of_host=float(context.share_of_host)
        if context is not None and context.co_hosted
        else local_share(os.environ),
    )
    return HostBudget(memory, share, reserve)


def collect_gone_loaders(
    config: LoaderConfig, shared: SharedDevice | None, context: RunContext, *, wanted_bytes: int
) -> None:
    """Have loaders that nobody can reach give back what they were granted, where that could be missed.

    A loader gives everything back when it is collected. One in a cycle, as an exception with its traceback makes one,
    is there until the garbage collector looks, and would make the budget of the next smaller. To look costs a tenth of
    a second or more in a process that has imported much, so it is done only where there is something to gain.

    Args:
        config: Section ``loader`` of the loader that is planned.
        shared: The device that it would deliver to; None for the CPU.
        context: Rank and world size.
        wanted_bytes: The most that it could make use of, of host memory.
    """
    ledger = process_ledger()
    if not ledger.accounts():
        return
    held_bytes = ledger.held_bytes
    free_bytes = host_budget(config, shared, held_bytes, context).share.num_bytes - held_bytes
    if free_bytes < wanted_bytes or (shared is not None and ledger.held(shared.account)):
        gc.collect()


def device_reserve(device: Device, memory: HostMemory, gpu_ram_share: float | None) -> Reserve:
    """Return what has to be left to a device of the host's memory; nothing for a discrete one.

    Raises:
        ConfigError: if it is integrated, there are several processor packages, and nobody states its share.
    """
    figures = device.memory()
    return host_reserve(
        figures,
        memory.total_bytes,
        gpu_ram_share=gpu_ram_share,
        shares_host_memory=figures.is_shared or _shares_memory(device),
        num_sockets=num_sockets(),
    )


def _shares_memory(device: Device) -> bool:
    """Find out, once, by allocating on a real device and watching the host's memory."""
    if not isinstance(device, AcceleratorDevice):
        return False
    if device.name not in _measured:
        try:
            _measured[device.name] = measure_aperture(written_memory(device), lambda: probe_host().available_bytes)
        except DeviceMemoryError:
            return False  # too full to try; the next loader may
        finally:
            device.empty_cache()
    return _measured[device.name]
