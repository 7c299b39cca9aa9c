"""What torch's own allocators hold, asked in ways that every version from 2.6 on understands."""

from dataclasses import dataclass
from typing import Any, final

import torch

__all__ = [
    "AllocatorUse",
    "allocator_use",
    "allowed_fraction",
    "driver_memory",
    "empty_host_cache",
    "out_of_memory",
    "page_locked",
]


def driver_memory(module: Any, device: torch.device) -> tuple[int, int]:
    """Return a device's free and total memory as its driver tells them, in bytes.

    Drivers of many integrated Intel GPUs do not tell what is free. Then it is what this process left; what others use
    is not known.
    """
    try:
        free, total = module.mem_get_info(device)
    except RuntimeError as error:
        if "free memory" not in str(error) and "mem_get_info" not in str(error):
            raise
        total = module.get_device_properties(device).total_memory
        free = total - module.memory_reserved(device)
    return int(free), int(total)


@final
@dataclass(frozen=True)
class AllocatorUse:
    """What torch's allocator of device memory has, in bytes.

    Attributes:
        reserved_bytes: What it took from the driver.
        allocated_bytes: What of that is in use by tensors.
        peak_bytes: The most that was in use by tensors at one time, since it was last asked to start anew.
    """

    reserved_bytes: int
    allocated_bytes: int
    peak_bytes: int

    @property
    def unused_bytes(self) -> int:
        """What it has and does not use.

        It counts inactive split blocks, which are free parts of segments that are partly in use: they are of use for
        smaller tensors only, and stay with the allocator whatever is emptied. It also counts memory of collected
        tensors that a stream still works on, which is free a moment later.
        """
        return max(0, self.reserved_bytes - self.allocated_bytes)


def allocator_use(module: Any, device: torch.device) -> AllocatorUse:
    """Return what torch's allocator has of a device.

    Args:
        module: ``torch.cuda`` or ``torch.xpu``.
        device: Which device of that kind.
    """
    stats = module.memory_stats(device)  # empty before the first tensor

    def figure(name: str) -> int:
        return int(stats.get(name, 0))

    return AllocatorUse(
        figure("reserved_bytes.all.current"), figure("allocated_bytes.all.current"), figure("allocated_bytes.all.peak")
    )


def allowed_fraction(module: Any, device: torch.device) -> float:
    """Return which part of a device torch was told to use at most; older versions do not tell, and 1 is returned."""
    tell = getattr(module, "get_per_process_memory_fraction", None)
    return 1.0 if tell is None else float(tell(device))


def page_locked(num_bytes: int) -> torch.Tensor:
    """Return page-locked host memory, uint8, shape ``(num_bytes,)``."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def empty_host_cache() -> None:
    """Give page-locked memory that torch keeps without using it back to the system."""
    # Older versions have it under a private name, or (XPU) not at all.
    empty = getattr(torch.accelerator, "empty_host_cache", None) or getattr(torch._C, "_host_emptyCache", None)  # noqa: SLF001
    if empty is not None and torch.accelerator.is_available():
        empty()


def out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error says that a device has no memory left.

    torch's allocator says so by type; what asks the driver by itself (libraries that need room to work in, and MPS)
    says so in words.
    """
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in ("out of memory", "ALLOC_FAILED", "OUT_OF_DEVICE_MEMORY")
    )
