"""The device port: everything the data plane asks of an accelerator.

All work that is enqueued says which tensors and host arrays it reads and writes. Real devices ignore that; the
simulated one checks that every two operations on the same bytes, one of them a write, are ordered by streams, events
and waits. Nothing outside this package names a stream or an event of torch's.

::

    slot = device.host_slab(n)                  page-locked, where that exists
    rows = device.allocate(n, transfer)         device memory, for work on that stream
    device.copy_in(transfer, slot, rows)        returns at once
    done = device.record(transfer)
    ...                                         loop's thread
    device.wait(device.consumer(), done)        the loop's stream waits, the loop does not
    device.keep_for(device.consumer(), [rows])  memory is not given out again before that stream is through with it
    ...                                         transfer thread
    device.synchronize(done)                    now the slot may be written again
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, final

import torch

from flodl_pipe.arrays import ByteArray
from flodl_pipe.devices.clock import Clock

__all__ = ["Device", "DeviceMemory", "Event", "Stream"]

T = TypeVar("T")


@final
@dataclass(frozen=True)
class DeviceMemory:
    """A device's memory now.

    Attributes:
        total_bytes: All of it.
        free_bytes: What can still be allocated: what the driver says is free, and what this process's allocator keeps
            without using it.
        is_shared: Whether it is the host's own memory (an integrated device).
        process_bytes: What this process has allocated of it, for whatever purpose; 0 where nobody tells.
        process_peak_bytes: The most that it had allocated at one time.
    """

    total_bytes: int
    free_bytes: int
    is_shared: bool = False
    process_bytes: int = 0
    process_peak_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """What is in use, by anybody."""
        return self.total_bytes - self.free_bytes


class Stream(Protocol):
    """Work that is done in the order in which it was enqueued."""

    name: str


class Event(Protocol):
    """A point in a stream's work."""

    def is_done(self) -> bool:
        """Return whether the work before it is done; asking does not count as waiting."""
        ...


class Device(Protocol):
    """An accelerator, or something that behaves like one. Thread-safe, but for :meth:`close`."""

    name: str
    """As torch names it, for example ``cuda:0``; ``simulated``."""

    torch_device: torch.device
    """Where delivered tensors lie."""

    has_streams: bool
    """Whether work of other streams overlaps with the loop's; without, all of it is done in the loop's thread."""

    pins: bool
    """Whether :meth:`host_slab` gives page-locked memory."""

    clock: Clock
    """Virtual time of a simulated device; :data:`flodl_pipe.devices.clock.NO_CLOCK` of a real one."""

    def memory(self) -> DeviceMemory:
        """Return what the device has and what is free of it."""
        ...

    def stream(self, name: str) -> Stream:
        """Return a new stream."""
        ...

    def consumer(self) -> Stream:
        """Return the stream that the calling thread's torch work goes to: for the loop's thread, the model's."""
        ...

    def slab_bytes(self, num_bytes: int) -> int:
        """Return what a slab of ``num_bytes`` really takes: page-locked memory may be rounded up."""
        ...

    def host_slab(self, num_bytes: int) -> ByteArray:
        """Return host memory to copy from, uint8, shape ``(num_bytes,)``.

        It goes when the array is collected, and no copy of it is under way.

        Raises:
            StagingError: if the system refuses it.
        """
        ...

    def allocate(self, num_bytes: int, stream: Stream) -> torch.Tensor:
        """Return device memory, uint8, shape ``(num_bytes,)``, aligned to 256 bytes, for work on ``stream``.

        It may be memory that was freed and that ``stream`` alone worked on, and is free again when the tensor and all
        its views are collected.

        Raises:
            DeviceMemoryError: if the device has none left.
        """
        ...

    def copy_in(self, stream: Stream, source: ByteArray, target: torch.Tensor) -> None:
        """Enqueue a copy from host to device; both 1-D and contiguous, of equal size in bytes."""
        ...

    def copy_out(self, stream: Stream, source: torch.Tensor, target: ByteArray) -> None:
        """Enqueue a copy from device to host; both 1-D and contiguous, of equal size in bytes."""
        ...

    def enqueue(
        self,
        stream: Stream,
        work: Callable[[], object],
        *,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
    ) -> None:
        """Enqueue torch work on device tensors that are there already; it may run at any time until it is waited for.

        Args:
            stream: Where.
            work: The work; what it returns is dropped.
            reads: Tensors that it reads.
            writes: Tensors that it writes.
        """
        ...

    def compute(self, stream: Stream, work: Callable[[], T], *, reads: Sequence[torch.Tensor]) -> T:
        """Enqueue torch work that makes new tensors, and return them; their contents are there when ``stream`` is.

        Raises:
            DeviceMemoryError: if the device has no memory left for them.
        """
        ...

    def record(self, stream: Stream) -> Event:
        """Return an event after all work enqueued on ``stream`` so far."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work of ``stream`` wait for ``event``; returns at once."""
        ...

    def synchronize(self, event: Event) -> None:
        """Make the calling thread wait for ``event``."""
        ...

    def keep_for(self, stream: Stream, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the memory of tensors, once they are collected, until ``stream`` is through with its work up to then."""
        ...

    def use(self, stream: Stream, tensors: Sequence[torch.Tensor]) -> None:
        """Declare that somebody else works on tensors on ``stream``, from now on until they are collected.

        For the check of a simulated device; real ones do nothing.
        """
        ...

    def host_writes(self, array: ByteArray) -> None:
        """Declare that this thread is about to write host memory; as :meth:`use`."""
        ...

    def host_reads(self, array: ByteArray) -> None:
        """Declare that this thread is about to read host memory; as :meth:`use`."""
        ...

    def empty_cache(self) -> None:
        """Give memory that the process's allocator keeps without using it back to the device."""
        ...

    def close(self) -> None:
        """Let go of streams and host memory."""
        ...
