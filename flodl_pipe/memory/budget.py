"""The budget: probes and knobs in, byte grants with a reason each out. Pure arithmetic.

The host share is taken of what is available *plus what we already hold*: measured against the available part alone it
would shrink with every grant, and a second loader built later would get less than the same loader built first.
"""

from dataclasses import dataclass
from typing import final

from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.units import format_bytes

__all__ = ["Grant", "floor_bytes", "host_share"]

_MIN_FLOOR_BYTES = 256 << 20


@final
@dataclass(frozen=True)
class Grant:
    """Bytes that may be held, and why that many.

    Attributes:
        num_bytes: The allowance.
        reason: The arithmetic in words, for ``plan`` and for errors.
    """

    num_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{format_bytes(self.num_bytes)}: {self.reason}"


def host_share(memory: HostMemory, *, ram_max_usage: float, held_bytes: int) -> Grant:
    """Return what the data plane of this process may hold of host memory, over all loaders.

    Args:
        memory: Probe of the host.
        ram_max_usage: Fraction of the available memory, ``0 <= ram_max_usage <= 0.9``.
        held_bytes: What the ledger has granted already.
    """
    usable = memory.available_bytes + held_bytes
    held = f" + {format_bytes(held_bytes)} held" if held_bytes else ""
    return Grant(
        int(ram_max_usage * usable),
        f"ram_max_usage {ram_max_usage:g} of {format_bytes(memory.available_bytes)} available"
        f"{' (control group limit)' if memory.limited_by == 'cgroup' else ''}{held}",
    )


def floor_bytes(memory: HostMemory) -> int:
    """Return how much available memory we leave alone even inside a grant: 2 % of the total, at least 256 MiB.

    A grant is computed once; the model, the optimizer and other programs may take memory afterwards. Long fills look
    at the live figure and stop at this floor.
    """
    return max(_MIN_FLOOR_BYTES, memory.total_bytes // 50)
