"""Devices of this process: each exists once, however many loaders deliver to it.

Loaders for training and validation share a device and its memory, so they must see one account of it; a simulated
device is shared by all loaders that describe the same one.
"""

import os
import threading
import weakref
from typing import Protocol, final

from flodl_pipe.config.loader import LoaderConfig, SimulatedConfig
from flodl_pipe.devices.choose import find_device
from flodl_pipe.devices.protocol import Device, DeviceMemory
from flodl_pipe.devices.simulated import SimulatedDevice

__all__ = ["Holder", "SharedDevice", "target_device"]


class Holder(Protocol):
    """Something that holds memory of a device."""

    @property
    def device_bytes(self) -> int:
        """Bytes that it holds now."""
        ...


@final
class SharedDevice:
    """A device, and who holds memory of it.

    Args:
        device: The device.
        account: The ledger's account of its memory; several simulated devices have one name.

    Attributes:
        device: The device.
        account: The same.
    """

    def __init__(self, device: Device, account: str) -> None:
        self.device = device
        self.account = account
        # Reentrant: collecting garbage inside may close another loader of the device.
        self._lock = threading.RLock()
        self._holders: list[weakref.ref[Holder]] = []
        self._peak_bytes = self._others_peak_bytes = 0

    def add(self, holder: Holder) -> None:
        """Count what a holder holds from now on, as long as it exists."""
        with self._lock:
            self._holders = [other for other in self._holders if other() is not None]
            self._holders.append(weakref.ref(holder))

    def remove(self, holder: Holder) -> None:
        """Stop counting what a holder holds; call it before that is given back."""
        self.observe()
        with self._lock:
            self._holders = [other for other in self._holders if other() not in (None, holder)]

    def held_bytes(self) -> int:
        """Return what all holders together hold now."""
        with self._lock:
            holders = [other() for other in self._holders]
        return sum(holder.device_bytes for holder in holders if holder is not None)

    def observe(self) -> DeviceMemory:
        """Probe the device, and note how much this process has had in use for other things than its loaders.

        Its peak alone would count what loaders held at that time, and go on doing so when they are gone. So what they
        hold is taken off as soon as a new peak is seen: they only grow, so it was at most a step less at the peak.
        """
        memory, held_bytes = self.device.memory(), self.held_bytes()
        with self._lock:
            if memory.process_peak_bytes > self._peak_bytes:
                self._peak_bytes = memory.process_peak_bytes
                self._others_peak_bytes = max(self._others_peak_bytes, memory.process_peak_bytes - held_bytes)
        return memory

    @property
    def others_peak_bytes(self) -> int:
        """The most that this process was seen to have in use for other things than its loaders; 0 if nobody tells."""
        return self._others_peak_bytes


_shared: dict[object, SharedDevice] = {}
_lock = threading.Lock()


def target_device(config: LoaderConfig) -> SharedDevice | None:
    """Return the device that a section asks for; None for the CPU.

    Raises:
        ConfigError: if there is no such device.
    """
    made: list[SimulatedDevice] = []

    def simulate() -> Device:
        wanted = config.simulated
        made.append(
            SimulatedDevice(
                wanted.memory_bytes, copy_bytes_per_s=float(wanted.copy_bytes_per_s), latency_s=wanted.latency_s
            )
        )
        return made[0]

    with _lock:
        if config.device == "simulated" and config.simulated in _shared:
            return _shared[config.simulated]
        device = find_device(config.device, simulated=simulate)
        if device is None:
            return None
        if not made:
            return _shared.setdefault(device.name, SharedDevice(device, device.name))
        others = sum(isinstance(key, SimulatedConfig) for key in _shared)
        account = f"{device.name} ({others + 1})" if others else device.name
        return _shared.setdefault(config.simulated, SharedDevice(device, account))


def _start_anew_in_child() -> None:
    # Threads that held the lock, and streams, did not follow the fork.
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_start_anew_in_child)
