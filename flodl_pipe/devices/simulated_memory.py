"""Simulated device memory: a caching allocator over host memory.

A block that is let go returns to the list of the stream it was allocated for, and is handed out to that stream again
at once, with all that the stream is still going to do to it. Streams it is *kept for* are waited for: an event is
recorded on each when the block is let go, and the next owner's stream comes after them. As a real allocator would, it
prefers fresh memory to a block whose events are not done.

A tensor is :func:`torch.from_numpy` of a fresh array over the block; torch keeps that array alive through every view,
and a weak reference tells when the last of them has died. Its callback does nothing but put itself in a queue, which
is safe wherever the collector runs; the device empties the queue at the beginning of each of its calls.

New memory is filled with ``0xA5`` in the stream's order, so that whoever reads what was never written sees it.
"""

import queue
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import ByteArray
from flodl_pipe.devices.clock import VirtualClock
from flodl_pipe.devices.simulated_order import Known, Operation, RangeMap
from flodl_pipe.devices.simulated_stream import SimulatedEvent, SimulatedStream
from flodl_pipe.errors import DeviceMemoryError
from flodl_pipe.units import format_bytes

__all__ = ["Block", "SimulatedMemory"]

POISON = 0xA5
_ROUND_BYTES = 512
_ALIGN_BYTES = 256
# Above this, memory keeps what it holds: filling it would take as much of the host as the whole device has.
_POISON_BYTES = 64 * 2**20
# How many of the blocks let go first are looked at for one that is ready. With as many, none is added.
_LOOK_AT = 16
# More than this, and than what is in use, is not kept: it is the host's memory, and blocks are not cut to size.
_KEEP_BYTES = 64 * 2**20


@final
class Block:
    """Device memory that is handed out as a whole.

    Args:
        number: For people.
        size_bytes: Its size.
        stream: The stream whose work it is allocated for.
        host: What the host knows.

    Attributes:
        ranges: Who works on which bytes of it.
        lease: How often it was handed out.
        uses: Work of somebody else's on it that was declared: by stream and range, until it is let go.
        keepers: Streams it is kept for.
        events: Events of those, recorded when it was let go.
    """

    def __init__(self, number: int, size_bytes: int, stream: SimulatedStream, host: Known) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.stream = stream
        raw = np.empty(size_bytes + _ALIGN_BYTES, np.uint8)
        offset = -raw.ctypes.data % _ALIGN_BYTES
        self.memory: ByteArray = raw[offset : offset + size_bytes]
        self.address = self.memory.ctypes.data
        self.ranges = RangeMap(host)
        self.lease = 0
        self.uses: dict[tuple[SimulatedStream, int, int], Operation] = {}
        self.keepers: dict[SimulatedStream, None] = {}
        self.events: list[SimulatedEvent] = []

    def __str__(self) -> str:
        return f"device block {self.number} ({self.size_bytes:,} bytes)"

    @property
    def ready_s(self) -> float:
        """When its events are done; 0 without any."""
        return max((event.time_s for event in self.events), default=0.0)

    @property
    def has_run(self) -> bool:
        """Whether the work before its events was done."""
        return all(event.has_run for event in self.events)

    def poison(self) -> None:
        """Fill it, unless it is large."""
        if self.size_bytes <= _POISON_BYTES:
            self.memory.fill(POISON)


class _Taken:
    """Memory that somebody else has, for as long as this object lives."""

    __slots__ = ("__weakref__",)


class _Lease(weakref.ref[object]):
    """A weak reference that knows what to give back, and when by the clock of the thread that let it go."""

    __slots__ = ("holds", "time_s")
    holds: "Block | int"
    time_s: float


@final
class SimulatedMemory:
    """Blocks in use and blocks kept; used under the device's lock, but for the ends of leases.

    Args:
        total_bytes: All there is.
        clock: Virtual time of the device.
        host: What the host knows.
        name: Name of the device.

    Attributes:
        allocated_bytes: In use by tensors.
        taken_bytes: In use by others.
        kept_bytes: Free, but kept in blocks.
        peak_bytes: Most that ``allocated_bytes`` was.
        peak_used_bytes: Most that was in use by anybody.
    """

    def __init__(self, total_bytes: int, clock: VirtualClock, host: Known, name: str) -> None:
        self.total_bytes = total_bytes
        self.allocated_bytes = 0
        self.taken_bytes = 0
        self.kept_bytes = 0
        self.peak_bytes = 0
        self.peak_used_bytes = 0
        self._clock = clock
        self._host = host
        self._name = name
        self._num_blocks = 0
        self._by_address: dict[int, Block] = {}
        self._addresses: list[int] = []  # in order
        self._kept: dict[tuple[SimulatedStream, int], deque[Block]] = {}
        # The reference must live as long as the lease, or it would not be called.
        self._leases: dict[int, _Lease] = {}
        self._ended: queue.SimpleQueue[_Lease] = queue.SimpleQueue()

    @property
    def free_bytes(self) -> int:
        """What can still be allocated."""
        return self.total_bytes - self.allocated_bytes - self.taken_bytes

    def block_at(self, address: int) -> Block | None:
        """Return the block in use that an address belongs to."""
        found = self._by_address.get(address)
        if found is None:  # a tensor that went through NumPy or DLPack may begin in the middle
            place = bisect_right(self._addresses, address) - 1
            before = self._by_address[self._addresses[place]] if place >= 0 else None
            found = before if before is not None and address < before.address + before.size_bytes else None
        return found

    def ended(self) -> Iterator[tuple[Block, float]]:
        """Yield the blocks that were let go, with when, for the caller to :meth:`keep`."""
        while not self._ended.empty():
            lease = self._ended.get()
            del self._leases[id(lease)]
            if isinstance(lease.holds, Block):
                block = lease.holds
                self.allocated_bytes -= block.size_bytes
                self.kept_bytes += block.size_bytes
                del self._by_address[block.address]
                del self._addresses[bisect_right(self._addresses, block.address) - 1]
                yield block, lease.time_s
            else:
                self.taken_bytes -= lease.holds

    def keep(self, block: Block) -> None:
        """Take back a block that was let go."""
        self._kept.setdefault((block.stream, block.size_bytes), deque()).append(block)

    def find(self, num_bytes: int, stream: SimulatedStream, begin_s: float) -> Block | None:
        """Return a block for a stream, not yet leased; None when there is no memory.

        Args:
            num_bytes: Bytes wanted.
            stream: Whose work it is for.
            begin_s: When that begins, in virtual time.

        Raises:
            DeviceMemoryError: if the host has no memory to simulate it.
        """
        size = max(-(-num_bytes // _ROUND_BYTES), 1) * _ROUND_BYTES
        kept = self._kept.get((stream, size), deque())
        for index in range(min(len(kept), _LOOK_AT)):
            if kept[index].has_run and kept[index].ready_s <= begin_s:
                return self._unkeep(kept, index)
        is_short = self.free_bytes - self.kept_bytes < size
        if is_short or len(kept) >= _LOOK_AT:
            for index in range(len(kept)):  # to wait for one is better than to give everything back
                if kept[index].has_run:
                    return self._unkeep(kept, index)
        if is_short or self.kept_bytes + size > max(_KEEP_BYTES, self.allocated_bytes):
            self.empty()
            if self.free_bytes - self.kept_bytes < size:
                return None
        self._num_blocks += 1
        try:
            return Block(self._num_blocks, size, stream, self._host)
        except MemoryError as error:
            raise DeviceMemoryError(
                f"the host has no {format_bytes(size)} to simulate memory of {self._name} with ({error}); lower "
                "loader.simulated.memory_bytes"
            ) from error

    def lease(self, block: Block, num_bytes: int) -> torch.Tensor:
        """Return a tensor over the first bytes of a block, which is in use until the tensor is collected."""
        block.lease += 1
        block.events = []
        self.allocated_bytes += block.size_bytes
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        self.peak_used_bytes = max(self.peak_used_bytes, self.total_bytes - self.free_bytes)
        self._by_address[block.address] = block
        insort(self._addresses, block.address)
        array: ByteArray = np.ndarray((num_bytes,), np.uint8, block.memory)
        self._watch(array, block)
        with torch.inference_mode(mode=False):
            return torch.from_numpy(array)

    def take(self, num_bytes: int) -> object:
        """Return an object for whose life ``num_bytes`` are gone.

        Raises:
            DeviceMemoryError: if there are not as many.
        """
        if self.free_bytes - self.kept_bytes < num_bytes:
            self.empty()
        if self.free_bytes - self.kept_bytes < num_bytes:
            raise self.error(num_bytes)
        self.taken_bytes += num_bytes
        self.peak_used_bytes = max(self.peak_used_bytes, self.total_bytes - self.free_bytes)
        taken = _Taken()
        self._watch(taken, num_bytes)
        return taken

    def empty(self) -> None:
        """Give back the blocks that are kept and that nobody is still going to work on."""
        for key, blocks in list(self._kept.items()):
            waiting = deque(block for block in blocks if not block.has_run)
            self.kept_bytes -= key[1] * (len(blocks) - len(waiting))
            if waiting:
                self._kept[key] = waiting
            else:
                del self._kept[key]

    def error(self, num_bytes: int) -> DeviceMemoryError:
        """Return the error for memory that is not there."""
        return DeviceMemoryError(
            f"{self._name} has no {format_bytes(num_bytes)} left: of {format_bytes(self.total_bytes)}, "
            f"{format_bytes(self.allocated_bytes)} are in use by tensors and {format_bytes(self.taken_bytes)} by "
            "others; lower loader.vram_max_usage, loader.prefetch or loader.batch_size, or raise "
            "loader.simulated.memory_bytes"
        )

    def _unkeep(self, kept: deque[Block], index: int) -> Block:
        block = kept[index]
        del kept[index]
        if not kept:
            del self._kept[block.stream, block.size_bytes]
        self.kept_bytes -= block.size_bytes
        return block

    def _watch(self, held: object, holds: "Block | int") -> None:
        # Nothing of self in the callback but what needs no lock.
        ended, clock = self._ended, self._clock

        def end(reference: weakref.ref[object]) -> None:
            assert isinstance(reference, _Lease)
            reference.time_s = clock.now()
            ended.put(reference)

        lease = _Lease(held, end)
        lease.holds = holds
        self._leases[id(lease)] = lease
