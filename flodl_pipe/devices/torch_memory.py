"""What torch's own allocators hold, asked in ways that every version from 2.6 on understands."""

from typing import Any

import torch

__all__ = ["allowed_bytes", "driver_memory", "empty_host_cache", "out_of_memory", "page_locked", "unused_bytes"]


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


def allowed_bytes(module: Any, device: torch.device, total_bytes: int) -> int:
    """Return how much more torch would give out, were the device empty otherwise.

    Less than the device has where ``set_per_process_memory_fraction`` was called; older versions do not tell.
    """
    tell = getattr(module, "get_per_process_memory_fraction", None)
    fraction = 1.0 if tell is None else tell(device)
    return int(fraction * total_bytes) - int(module.memory_stats(device).get("allocated_bytes.all.current", 0))


def unused_bytes(module: Any, device: torch.device) -> int:
    """Return the device memory that torch's allocator took from the driver and does not use.

    It counts inactive split blocks, which are free parts of segments that are partly in use: they are of use for
    smaller tensors only, and stay with the allocator whatever is emptied. It also counts memory of collected tensors
    that a stream still works on, which is free a moment later.

    Args:
        module: ``torch.cuda`` or ``torch.xpu``.
        device: Which device of that kind.
    """
    stats = module.memory_stats(device)  # empty before the first tensor
    unused = stats.get("reserved_bytes.all.current", 0) - stats.get("allocated_bytes.all.current", 0)
    return max(0, int(unused))


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
