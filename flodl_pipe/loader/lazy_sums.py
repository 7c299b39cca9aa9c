"""Sums of row hashes that a device is still computing."""

from typing import final

import numpy as np

from flodl_pipe.arrays import ByteArray, WordArray
from flodl_pipe.devices.protocol import Device, Event

__all__ = ["LazySums"]


@final
class LazySums:
    """The sum of a step's row hashes, on its way from a device.

    Args:
        device: The device.
        done: After its copy to the host.
        memory: Where it is copied to, 16 bytes.
    """

    def __init__(self, device: Device, done: Event, memory: ByteArray) -> None:
        self._device = device
        self._done = done
        self._memory = memory

    def is_done(self) -> bool:
        """Return whether :meth:`resolve` would not wait."""
        return self._done.is_done()

    def resolve(self) -> WordArray:
        """Wait for it, and return it: uint64, shape ``(2,)``."""
        self._device.synchronize(self._done)
        self._device.host_reads(self._memory)
        return self._memory.view(np.uint64).copy()
