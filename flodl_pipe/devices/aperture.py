"""Integrated GPUs: device memory that is a part of the host's, so that what one takes the other lacks.

The driver lets such a GPU take host memory up to a limit, its aperture. What it has taken already is missing from the
host's available memory; what it may still take, the unrealised headroom, is not, and has to be left alone by whoever
shares out host memory, or the same bytes are promised twice. A part that the firmware carved out at start is different:
the host never sees it, so it is a discrete GPU's memory for our purposes. Hence the test is not what the GPU is called,
but whether the host's available memory moves when something is allocated on the device.

All functions take their figures as arguments, and are proven with figures that were made up: no machine of this kind
was at hand.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from flodl_pipe.devices.protocol import Device, DeviceMemory
from flodl_pipe.errors import ConfigError
from flodl_pipe.units import format_bytes

__all__ = ["PROBE_BYTES", "Reserve", "host_reserve", "measure_aperture", "num_sockets", "written_memory"]

PROBE_BYTES = 256 << 20
"""How much :func:`measure_aperture` allocates at a time by default; it takes three times that, for a moment."""

_NUM_TRIES = 3


@final
@dataclass(frozen=True)
class Reserve:
    """Host memory that is left to devices.

    Attributes:
        num_bytes: To be subtracted from what is available, before any share of it is taken; it may be more than that.
        reason: The arithmetic in words.
    """

    num_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{format_bytes(self.num_bytes)}: {self.reason}"


def measure_aperture(
    allocate: Callable[[int], object], host_available: Callable[[], int], num_bytes: int = PROBE_BYTES
) -> bool:
    """Return whether a device's memory is the host's, by allocating there and watching the host's available memory.

    Other programs take and free memory meanwhile. So there are three tries, and each must cost the host at least half
    of what was allocated. The first allocation of all is not looked at: it may start the driver, which takes host
    memory of its own. Everything is held to the end: freed in between, a caching allocator would give the same memory
    out again, which costs the host nothing.

    Args:
        allocate: Allocates so many bytes on the device, really in use when it returns, and returns what holds them;
            :func:`written_memory` makes it.
        host_available: Returns the host's available memory, in bytes.
        num_bytes: Bytes of a try.

    Raises:
        DeviceMemoryError: by ``allocate``, where there is too little for the tries.
    """
    held = [allocate(1)]
    for _ in range(_NUM_TRIES):
        before = host_available()
        held.append(allocate(num_bytes))
        if before - host_available() < num_bytes / 2:
            return False
    return True


def written_memory(device: Device) -> Callable[[int], torch.Tensor]:
    """Return what allocates new memory on a device and writes to it: untouched pages may not be there yet."""
    stream = device.stream("aperture")

    def allocate(num_bytes: int) -> torch.Tensor:
        device.empty_cache()  # or memory that the process holds already is given out again
        tensor = device.allocate(num_bytes, stream)
        device.enqueue(stream, lambda: tensor.fill_(1), reads=[], writes=[tensor])
        device.synchronize(device.record(stream))
        return tensor

    return allocate


def host_reserve(
    device: DeviceMemory,
    mem_total_bytes: int,
    *,
    gpu_ram_share: float | None,
    shares_host_memory: bool,
    num_sockets: int,
    num_devices: int = 1,
) -> Reserve:
    """Return how much of the host's available memory has to be left to its devices.

    Args:
        device: The memory of this process's device.
        mem_total_bytes: The host's memory (``MemTotal``).
        gpu_ram_share: Part of it that all devices together may take, where the user says so; may be more than 1, for
            hosts whose total says less than a device can address.
        shares_host_memory: Whether the device's memory is the host's: it says so, or :func:`measure_aperture` saw it.
        num_sockets: Processor packages, of :func:`num_sockets`; not NUMA nodes.
        num_devices: Devices of this host that share its memory. What the others use is not known here, so each is
            taken to want as much as this one may still take.

    Raises:
        ConfigError: if the host has several packages and nothing was stated: each has memory and an aperture of its
            own, the kernel tells what is available for all of them in one figure, and any guess from one device's
            aperture is wrong by a factor.
    """
    if not shares_host_memory:
        ignored = "" if gpu_ram_share is None else f"; gpu_ram_share {gpu_ram_share:g} has no effect"
        return Reserve(0, f"a discrete device has memory of its own{ignored}")
    if gpu_ram_share is not None:
        stated = int(gpu_ram_share * mem_total_bytes)
        return Reserve(
            max(0, stated - device.used_bytes),
            f"gpu_ram_share {gpu_ram_share:g} of {format_bytes(mem_total_bytes)} host memory, less "
            f"{format_bytes(device.used_bytes)} in use on the device",
        )
    if num_sockets > 1:
        raise ConfigError.at(
            "loader.gpu_ram_share",
            f"must be set on this host: its GPU has no memory of its own and there are {num_sockets} processor "
            "packages, each with memory and a GPU aperture of its own, while the system tells available memory for all "
            "of them in one figure; set it to the part of the host's "
            f"{format_bytes(mem_total_bytes)} that all GPUs together may take, for example loader.gpu_ram_share=0.5",
        )
    each = "" if num_devices == 1 else f", for each of {num_devices} devices"
    return Reserve(
        num_devices * device.free_bytes,
        f"what an integrated device may still take of the host's memory: {format_bytes(device.total_bytes)} less "
        f"{format_bytes(device.used_bytes)} in use{each}; gpu_ram_share states it otherwise",
    )


def num_sockets(cpu_root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the number of processor packages; 1 where the system does not tell.

    One package that is divided into several NUMA nodes (NPS, sub-NUMA clustering) is one.
    """
    packages = set()
    for file in cpu_root.glob("cpu[0-9]*/topology/physical_package_id"):
        try:
            packages.add(file.read_text().strip())
        except OSError:
            continue  # a processor that was just switched off
    return max(1, len(packages))
