"""What the data plane gives up when a device is out of memory, rung by rung.

The data plane is the last to take device memory and the first to yield: the model cannot do with less, we can, at the
price of speed only. The stream of samples is the same on every rung.

::

    depth 8 -> 4 -> 2 -> 1        steps in flight, halved: given back within a few steps
    pool  P -> P/2 -> ... -> 0    slabs of the sample pool, halved: every row given up is a copy an epoch
    latch                         the pool stays off
    nothing left                  the caller raises
"""

import threading
from dataclasses import dataclass
from typing import Literal, final

from flodl_pipe.units import format_bytes

__all__ = ["Ladder", "Rung"]


@final
@dataclass(frozen=True)
class Rung:
    """What to do after a device ran out of memory.

    Attributes:
        action: ``depth``: use :attr:`depth`. ``pool``: shrink the pool to :attr:`pool_bytes`. ``latch``: switch it off
            for good; retry, for giving back is not immediate. ``nothing``: there is nothing left to give up.
        depth: Steps in flight from now on, at most.
        pool_bytes: What the pool may hold from now on, at most.
        words: What happened and what was done, to log; with ``nothing``, for the error.
    """

    action: Literal["depth", "pool", "latch", "nothing"]
    depth: int
    pool_bytes: int
    words: str


@final
class Ladder:
    """Ceilings that only come down, until :meth:`reset`. All methods may be called from several threads."""

    def __init__(self, *, slab_bytes: int) -> None:
        """Start with no ceiling.

        Args:
            slab_bytes: Bytes of a slab of the pool: it shrinks by whole ones.
        """
        self._lock = threading.RLock()
        self._slab_bytes = max(1, slab_bytes)
        self._max_depth: int | None = None
        self._max_pool_bytes: int | None = None
        self._is_latched = False

    @property
    def is_latched(self) -> bool:
        """Whether the pool was switched off."""
        return self._is_latched

    def cap_depth(self, depth: int) -> int:
        """Return a depth that was not too much so far."""
        with self._lock:
            return depth if self._max_depth is None else min(depth, self._max_depth)

    def cap_pool(self, pool_bytes: int) -> int:
        """Return a size of the pool that was not too much so far."""
        with self._lock:
            if self._is_latched:
                return 0
            return pool_bytes if self._max_pool_bytes is None else min(pool_bytes, self._max_pool_bytes)

    def give_way(self, *, depth: int, pool_bytes: int, what: str = "a batch") -> Rung:
        """Return what to give up now.

        Args:
            depth: Steps in flight at present, at least 1. Of two threads that meet the same shortage the second goes
                one rung further, whatever it thinks the present is.
            pool_bytes: What the pool holds at present.
            what: What there was no memory for.
        """
        with self._lock:
            depth, pool_bytes = self.cap_depth(depth), self.cap_pool(pool_bytes)
            short = f"the device has no memory left for {what}"
            if depth > 1:
                self._max_depth = depth // 2
                words = f"{short}: {self._max_depth} instead of {depth} steps are kept in flight from now on"
                return Rung("depth", self._max_depth, pool_bytes, words)
            if pool_bytes > 0:
                self._max_pool_bytes = pool_bytes // 2 // self._slab_bytes * self._slab_bytes
                words = (
                    f"{short}, with 1 step in flight: the sample pool shrinks from {format_bytes(pool_bytes)} to "
                    f"{format_bytes(self._max_pool_bytes)}, and the samples it gives up are copied in every epoch"
                )
                return Rung("pool", depth, self._max_pool_bytes, words)
            if not self._is_latched:
                self._is_latched = True
                words = (
                    f"{short}, with 1 step in flight and nothing in the sample pool: the pool stays off until "
                    "auto_resize() or set_prefetch_depth() is called or the loader is built anew"
                )
                return Rung("latch", depth, 0, words)
            words = (
                f"{short}, and the data plane holds nothing more that it could give up (1 step in flight, no sample "
                "pool); lower loader.batch_size, or free memory on the device"
            )
            return Rung("nothing", depth, 0, words)

    def reset(self) -> None:
        """Forget all ceilings: the user asked for a new size."""
        with self._lock:
            self._max_depth = self._max_pool_bytes = None
            self._is_latched = False
