"""The budget: probes and knobs in, byte grants with a reason each out. Pure arithmetic.

The host share is taken of what is available *plus what we already hold*: measured against the available part alone it
would shrink with every grant, and a second loader built later would get less than the same loader built first.

::

    ram_max_usage x (available + held - integrated GPU's reserve) x this rank's part of the host
      = share = source + ring + RAM cache (or resident set) + disk stage on a tmpfs

Devices are budgeted in :mod:`flodl_pipe.memory.device_budget`, disks in :mod:`flodl_pipe.memory.disk`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from flodl_pipe.errors import StagingError
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.units import format_bytes

__all__ = ["Grant", "floor_bytes", "host_share", "local_share", "may_grow", "require_batch", "split_host"]

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


def host_share(
    memory: HostMemory,
    *,
    ram_max_usage: float,
    held_bytes: int,
    reserve_bytes: int = 0,
    share_of_host: float = 1.0,
    co_held_bytes: int = 0,
) -> Grant:
    """Return what the data plane of this process may hold of host memory, over all loaders.

    Args:
        memory: Probe of the host.
        ram_max_usage: Fraction of the available memory, ``0 <= ram_max_usage <= 0.9``.
        held_bytes: What the ledger has granted already.
        reserve_bytes: What an integrated GPU may still take of the same memory without it being seen yet.
        share_of_host: This process's part among the ranks on this host, ``0 < share_of_host <= 1``; see
            :func:`local_share`.
        co_held_bytes: What the data planes of the other ranks on this host hold; 0 where that is not known, which errs
            on the side of taking less.
    """
    usable = max(0, memory.available_bytes + held_bytes + co_held_bytes - reserve_bytes)
    held = f" + {format_bytes(held_bytes)} held" if held_bytes else ""
    co_held = f" + {format_bytes(co_held_bytes)} held by other ranks" if co_held_bytes else ""
    reserve = f" - {format_bytes(reserve_bytes)} reserved for the integrated GPU" if reserve_bytes else ""
    part = f", of that {share_of_host:.3g} for this rank" if share_of_host != 1 else ""
    return Grant(
        int(ram_max_usage * usable * share_of_host),
        f"ram_max_usage {ram_max_usage:g} of {format_bytes(memory.available_bytes)} available"
        f"{' (control group limit)' if memory.limited_by == 'cgroup' else ''}{held}{co_held}{reserve}{part}",
    )


def local_share(environ: Mapping[str, str]) -> float:
    """Return this process's part of the host when nothing but the number of ranks on it is known.

    Args:
        environ: The environment; ``LOCAL_WORLD_SIZE`` is read, which torchrun sets.

    Raises:
        StagingError: if it is not a whole number of at least 1.

    >>> local_share({}), local_share({"LOCAL_WORLD_SIZE": "4"})
    (1.0, 0.25)
    """
    text = environ.get("LOCAL_WORLD_SIZE", "").strip()
    if not text:
        return 1.0
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise StagingError(
            f"LOCAL_WORLD_SIZE={text!r} in the environment: the number of ranks on this host must be a whole number of "
            "at least 1, for they divide its memory; start with torchrun, or unset it"
        )
    return 1.0 / int(text)


def split_host(share: Grant, ring_bytes: int, held_bytes: int, *, set_bytes: int | None = None) -> Grant:
    """Return what a loader's RAM cache may hold: what its ring and everybody else's grants leave of the share.

    Args:
        share: What the data plane of this process may hold.
        ring_bytes: What this loader's ring takes.
        held_bytes: What the ledger has granted already, without this loader's ring and cache.
        set_bytes: Bytes of the rows that the cache could hold; None where that is not known.
    """
    room_bytes = max(0, share.num_bytes - held_bytes - ring_bytes)
    others = f" and {format_bytes(held_bytes)} held already" if held_bytes else ""
    room = (
        f"{format_bytes(room_bytes)} of the host grant of {format_bytes(share.num_bytes)} is left beside "
        f"{format_bytes(ring_bytes)} for the ring{others} ({share.reason})"
    )
    if set_bytes is not None and set_bytes <= room_bytes:
        return Grant(set_bytes, f"all rows; {room}")
    return Grant(room_bytes, room)


def require_batch(memory: HostMemory, batch_bytes: int, *, num_rows: int | None = None) -> None:
    """Refuse a batch that this host cannot hold.

    Args:
        memory: Probe of the host.
        batch_bytes: What one batch takes.
        num_rows: Rows of it, for the message.

    Raises:
        StagingError: if it is more than the control group's limit, or than what is available.
    """
    if batch_bytes <= memory.available_bytes:
        return
    rows = f" of {num_rows:,} rows" if num_rows is not None else ""
    needs = f"one batch{rows} takes {format_bytes(batch_bytes)}, but "
    if memory.limited_by == "cgroup":
        limit = memory.total_bytes if memory.cgroup_limit_bytes is None else memory.cgroup_limit_bytes
        raise StagingError(
            f"{needs}the control group's memory limit is {format_bytes(limit)}, and "
            f"{format_bytes(memory.available_bytes)} of it is available; lower loader.batch_size, or raise the limit "
            "(docker: --memory, Slurm: --mem, systemd: MemoryMax)"
        )
    raise StagingError(f"{needs}{format_bytes(memory.available_bytes)} of memory is available; lower loader.batch_size")


def may_grow(memory: HostMemory, slab_bytes: int) -> bool:
    """Return whether one more slab leaves the live floor (:func:`floor_bytes`) alone.

    Asked before each slab of a grant is really taken.
    """
    return memory.available_bytes - slab_bytes >= floor_bytes(memory)


def floor_bytes(memory: HostMemory) -> int:
    """Return how much available memory we leave alone even inside a grant: 2 % of the total, at least 256 MiB.

    A grant is computed once; the model, the optimizer and other programs may take memory afterwards. Long fills look
    at the live figure and stop at this floor.
    """
    return max(_MIN_FLOOR_BYTES, memory.total_bytes // 50)
