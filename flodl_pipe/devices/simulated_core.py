"""The state of a simulated device, and the steps that its operations have in common; used under the device's lock."""

import threading
from collections.abc import Sequence
from typing import Literal, final

import numpy as np
import torch

from flodl_pipe.arrays import ByteArray
from flodl_pipe.devices.clock import VirtualClock
from flodl_pipe.devices.simulated_memory import Block, SimulatedMemory
from flodl_pipe.devices.simulated_order import Known, Operation, OrderError, Place, RangeMap, check, join, note
from flodl_pipe.devices.simulated_stream import SimulatedEvent, SimulatedStream, Timing
from flodl_pipe.devices.simulated_tensors import array_owner, array_spans, num_bytes, tensor_spans
from flodl_pipe.devices.simulated_work import WorkWatch
from flodl_pipe.errors import LoaderError, StagingError

__all__ = ["SimulatedCore"]

Places = Sequence[tuple[Place, bool]]


@final
class SimulatedCore:
    """Memory, streams, times and checks of one device.

    Args:
        name: Name of the device.
        memory_bytes: Its memory.
        clock: Its virtual time.
        timing: How long things take.

    Attributes:
        faults: The order errors so far.
        host: What the host knows to be done.
        lock: The device's.
        memory: Its memory.
        streams: All of its streams, the consumer's first.
        bytes_computed: Bytes that work on device memory read and wrote.
    """

    def __init__(self, name: str, memory_bytes: int, clock: VirtualClock, timing: Timing) -> None:
        self.faults: list[OrderError] = []
        self.host: Known = {}
        self.lock = threading.RLock()
        self.memory = SimulatedMemory(memory_bytes, clock, self.host, name)
        self.bytes_computed = 0
        self._name = name
        self._clock = clock
        self._timing = timing
        self.streams = [SimulatedStream("consumer", 1, clock, self.lock, runs_at_once=True)]
        self._num_streams = 1
        self._host_ranges = RangeMap(self.host)
        # How many go well before the injected faults, and how many faults.
        self._failing = {"allocation": (0, 0), "copy": (0, 0)}

    def new_stream(self, name: str) -> SimulatedStream:
        """Return a new stream."""
        self._num_streams += 1
        stream = SimulatedStream(name, self._num_streams, self._clock, self.lock)
        self.streams.append(stream)
        return stream

    def fail(self, kind: Literal["allocation", "copy"], skip: int, count: int) -> None:
        """Make ``count`` allocations or copies fail after ``skip`` that go well."""
        self._failing[kind] = (skip, count)

    def settle(self) -> None:
        """Take back the memory that was let go since, as of now."""
        for block, time_s in self.memory.ended():
            for (stream, begin, end), use in block.uses.items():
                # Whoever used it may have worked on it up to this moment.
                place = block.ranges, str(block), block.lease, None, [(begin, end)]
                self._note(use, stream, [(place, True)])
            for stream in block.keepers:
                if stream is not block.stream:
                    block.events.append(SimulatedEvent(stream, max(stream.time_s, time_s)))
            block.uses, block.keepers = {}, {}
            self.memory.keep(block)

    def order(self, operation: Operation, stream: SimulatedStream, places: Places) -> None:
        """Enqueue an operation as far as its order goes.

        Raises:
            OrderError: if it is not ordered after other work on the same bytes; it is not enqueued then.
        """
        join(stream.known, self.host)
        self._check(operation, stream.known, places)
        self._note(operation, stream, places)

    def check_host(self, array: ByteArray, what: str, where: str, *, is_write: bool) -> None:
        """Check that the host may now read or write an array.

        Raises:
            OrderError: if a stream may still work on it.
        """
        operation = Operation(f"{what} of {array.nbytes:,} bytes", None, where)
        self._check(operation, self.host, [(self.host_place(array), is_write)])

    def copy(
        self, stream: SimulatedStream, host: ByteArray, tensor: torch.Tensor, where: str, *, is_out: bool
    ) -> ByteArray:
        """Check and time a copy between host and device; return the device's side of it, which holds no tensor.

        Raises:
            LoaderError: if the operands are not of equal size, contiguous and 1-D, or an operand is elsewhere.
            StagingError: if a fault was injected.
        """
        self.settle()
        size, what = host.nbytes, "copy_out" if is_out else "copy_in"
        if not (host.ndim == tensor.ndim == 1 and host.flags.c_contiguous and tensor.is_contiguous()):
            raise LoaderError(
                f"{what}: host {host.shape} and device {tuple(tensor.shape)} must be 1-D and contiguous; copy a view"
            )
        if size != num_bytes([tensor]):
            raise LoaderError(f"{what}: {size:,} bytes on the host, {num_bytes([tensor]):,} on the device; cut a view")
        if self._fails("copy"):
            raise StagingError(f"{what} of {size:,} bytes on {self._name} failed, as a test asked for")
        operation = Operation(f"{what} of {size:,} bytes", stream.name, where)
        self.order(operation, stream, [(self.host_place(host), is_out), *self.places([tensor], is_write=not is_out)])
        self._timing.spend(stream, "out" if is_out else "in", what, size)
        if not size:
            return np.empty(0, np.uint8)
        block = self.block(tensor)
        begin = tensor.data_ptr() - block.address
        return block.memory[begin : begin + size]

    def spend(self, stream: SimulatedStream, num_read: int, num_written: int) -> None:
        """Time work on device memory: of a gather or a scatter, the smaller side says how much is moved."""
        moved = 2 * min(num_read, num_written) if num_read and num_written else num_read + num_written
        self.bytes_computed += moved
        self._timing.spend(stream, "work", "work", moved)

    def allocate(self, size: int, stream: SimulatedStream, where: str) -> torch.Tensor:
        """Return device memory for a stream's work; see the port.

        Raises:
            DeviceMemoryError: if there is none left, or a fault was injected.
        """
        begin_s = self._timing.now(stream)
        block = None
        if not self._fails("allocation"):
            block = self.memory.find(size, stream, begin_s)
            if block is None:  # memory may hang on work that was only put off
                for other in self.streams:
                    other.run_all()
                self.settle()
                block = self.memory.find(size, stream, begin_s)
        if block is None:
            raise self.memory.error(size)
        join(stream.known, self.host)
        for event in block.events:
            join(stream.known, event.known)
            self._timing.reach(stream, event.time_s)
        tensor = self.memory.lease(block, size)
        if block.ranges.is_ordered(stream.known):
            # Else another stream may still work on it, and this one may still be told to wait for that.
            block.ranges = RangeMap(self.host)
            if stream.is_idle or block.lease == 1:
                block.poison()
            else:
                stream.put(block.poison)
        # No write: what other streams still do is for the next operation to conflict with. Against writes of other
        # streams that do not wait for this one it counts.
        place = block.ranges, str(block), block.lease, None, [(0, block.size_bytes)]
        self._note(Operation(f"allocate of {size:,} bytes", stream.name, where), stream, [(place, False)])
        return tensor

    def result(self, data: ByteArray, stream: SimulatedStream, where: str) -> torch.Tensor:
        """Return device memory that holds ``data`` when the stream's work so far is done; it is a write of the stream.

        Raises:
            DeviceMemoryError: if there is none left, or a fault was injected.
        """
        tensor = self.allocate(len(data), stream, where)
        operation = Operation(f"work that makes {len(data):,} bytes", stream.name, where)
        self.order(operation, stream, self.places([tensor], is_write=True))
        target = self.block(tensor).memory[: len(data)]
        stream.put(lambda: np.copyto(target, data))
        return tensor

    def block(self, tensor: torch.Tensor) -> Block:
        """Return the block that a tensor lies in.

        Raises:
            LoaderError: if it is not memory of this device.
        """
        block = self._found(tensor)
        if block is None:
            raise LoaderError(
                f"a tensor of shape {tuple(tensor.shape)} and {tensor.dtype} is host memory, not memory of "
                f"{self._name}; allocate it there and copy it in, or make it by compute()"
            )
        return block

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is memory of this device."""
        return self._found(tensor) is not None

    def watch(self, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor] | None) -> WorkWatch:
        """Return what holds work to its declaration."""
        read = [self.block(tensor) for tensor in reads if tensor.numel()]
        written = None if writes is None else [self.block(tensor) for tensor in writes if tensor.numel()]
        return WorkWatch(self._found, read, written)

    def places(self, tensors: Sequence[torch.Tensor], *, is_write: bool) -> Places:
        """Return what an operation touches."""
        places = []
        for tensor in tensors:
            if tensor.numel():
                block = self.block(tensor)
                spans = tensor_spans(tensor, tensor.untyped_storage().data_ptr() - block.address)
                places.append(((block.ranges, str(block), block.lease, None, spans), is_write))
        return places

    def host_place(self, array: ByteArray) -> Place:
        """Return a host array as what an operation touches."""
        spans = array_spans(array)
        name = f"host memory at {spans[0][0]:#x} ({array.nbytes:,} bytes)" if spans else "no memory"
        return self._host_ranges, name, 0, array_owner(array), spans

    def _found(self, tensor: torch.Tensor) -> Block | None:
        return self.memory.block_at(tensor.untyped_storage().data_ptr())

    def _check(self, operation: Operation, known: Known, places: Places) -> None:
        try:
            check(operation, known, places)
        except OrderError as error:
            self.faults.append(error)
            raise

    def _note(self, operation: Operation, stream: SimulatedStream, places: Places) -> None:
        tick = stream.known.get(stream.actor, 0) + 1
        stream.known[stream.actor] = tick
        note(operation, stream.actor, tick, places)

    def _fails(self, kind: Literal["allocation", "copy"]) -> bool:
        skip, count = self._failing[kind]
        if count and not skip:
            self._failing[kind] = (0, count - 1)
            return True
        self._failing[kind] = (max(skip - 1, 0), count)
        return False
