"""Host memory of a simulated device, counted while it is there: what page-locked memory would be."""

import weakref
from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray
from flodl_pipe.devices.simulated_memory import POISON
from flodl_pipe.errors import StagingError

__all__ = ["HostSlabs"]

_SWEEP_FROM = 64


@final
class HostSlabs:
    """Slabs of one device; used under the device's lock. They hold rubbish at first."""

    def __init__(self) -> None:
        # References without callbacks: a slab may be collected anywhere, also inside of a method here.
        self._slabs: list[weakref.ref[ByteArray]] = []
        self._sweep_at = _SWEEP_FROM

    @property
    def num_bytes(self) -> int:
        """Bytes of the slabs that are not collected yet."""
        return sum(0 if slab is None else slab.nbytes for slab in [reference() for reference in self._slabs])

    def make(self, num_bytes: int) -> ByteArray:
        """Return a new slab, uint8, shape ``(num_bytes,)``.

        Raises:
            StagingError: if the system refuses it.
        """
        try:
            slab = np.full(num_bytes, POISON, np.uint8)
        except MemoryError as error:
            raise StagingError(
                f"the system refuses {num_bytes:,} bytes of host memory ({error}); lower loader.prefetch or "
                "loader.batch_size"
            ) from error
        self._slabs.append(weakref.ref(slab))
        if len(self._slabs) >= self._sweep_at:
            self._slabs = [reference for reference in self._slabs if reference() is not None]
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._slabs))
        return slab
