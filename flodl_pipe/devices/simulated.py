"""A simulated accelerator: device memory, streams and copies in host memory, with a check of every wait.

It does what the device port says, as badly as a real device may: copies are put off to the last moment, freed memory
is handed out at once, new memory holds rubbish. It refuses what a real device would only punish at times:
:class:`~flodl_pipe.devices.simulated_order.OrderError` names the two operations that nothing orders. It has a size, and
times of its own, so that it also shows what a pipeline would do on a card that is not here.

``simulated_core`` holds the state; ``simulated_stream`` puts work off, ``simulated_memory`` hands memory out,
``simulated_slabs`` the host's, and ``simulated_order`` checks.

What torch computes for :meth:`SimulatedDevice.compute` is moved into device memory afterwards; of what work returns,
tensors are found in whatever is a pytree. Memory that the work itself needs meanwhile is not counted. Work must not
wait for other threads: the device's lock is held.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, final

import numpy as np
import torch

from flodl_pipe.arrays import ByteArray
from flodl_pipe.devices.clock import Clock, VirtualClock
from flodl_pipe.devices.protocol import DeviceMemory, Event, Stream
from flodl_pipe.devices.simulated_core import SimulatedCore
from flodl_pipe.devices.simulated_order import Operation, OrderError, caller, join
from flodl_pipe.devices.simulated_slabs import HostSlabs
from flodl_pipe.devices.simulated_stream import SimulatedEvent, SimulatedStream, Timing, as_enqueued
from flodl_pipe.devices.simulated_tensors import in_device_memory, num_bytes

__all__ = ["SimulatedDevice"]

T = TypeVar("T")
_SLAB_BYTES = 4096


@final
class SimulatedDevice:
    """See the module; the methods of the port are documented in :class:`flodl_pipe.devices.protocol.Device`.

    Args:
        memory_bytes: Its memory.
        copy_bytes_per_s: Speed of a copy between host and device, in each direction.
        latency_s: What every operation takes before its first byte.
        gather_bytes_per_s: Speed of work on device memory, counting what is read and what is written. Of a gather from
            large tensors, or a scatter into them, as many bytes count as the smaller side has.
        name: Its name.

    Attributes:
        num_copies_in: Copies from the host.
        bytes_in: Their bytes.
        bytes_out: Bytes copied to the host.
    """

    def __init__(
        self,
        memory_bytes: int,
        *,
        copy_bytes_per_s: float = 12e9,
        latency_s: float = 1e-5,
        gather_bytes_per_s: float = 300e9,
        name: str = "simulated",
    ) -> None:
        self.name = name
        self.torch_device = torch.device("cpu")
        self.has_streams = True
        self.pins = True
        self.num_copies_in = self.bytes_in = self.bytes_out = 0
        self._virtual = VirtualClock()
        self.clock: Clock = self._virtual
        self._timing = Timing(
            self._virtual,
            copy_bytes_per_s=copy_bytes_per_s,
            gather_bytes_per_s=gather_bytes_per_s,
            latency_s=latency_s,
        )
        self._core = SimulatedCore(name, memory_bytes, self._virtual, self._timing)
        self._lock = self._core.lock
        self._slabs = HostSlabs()

    # Memory

    def memory(self) -> DeviceMemory:
        with self._lock:
            # Work that is put off holds its tensors, which a real device would have back by now.
            for stream in self._core.streams:
                stream.run_all()
            self._core.settle()
            memory = self._core.memory
            total, free = memory.total_bytes, memory.free_bytes
            # Nobody else has the device: what is in use is this process's.
            return DeviceMemory(total, free, process_bytes=total - free, process_peak_bytes=memory.peak_used_bytes)

    @property
    def allocated_bytes(self) -> int:
        """In use by tensors now, in blocks of 512 bytes."""
        with self._lock:
            self._core.settle()
            return self._core.memory.allocated_bytes

    @property
    def kept_bytes(self) -> int:
        """Free, but kept in blocks for the streams that they were allocated for."""
        with self._lock:
            self._core.settle()
            return self._core.memory.kept_bytes

    @property
    def peak_bytes(self) -> int:
        """Most that :attr:`allocated_bytes` was."""
        return self._core.memory.peak_bytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes of host slabs that are not collected yet."""
        with self._lock:
            return self._slabs.num_bytes

    def slab_bytes(self, num_bytes: int) -> int:
        return -(-num_bytes // _SLAB_BYTES) * _SLAB_BYTES

    def host_slab(self, num_bytes: int) -> ByteArray:
        with self._lock:
            return self._slabs.make(num_bytes)

    def allocate(self, num_bytes: int, stream: Stream) -> torch.Tensor:
        with self._lock:
            self._core.settle()
            return self._core.allocate(num_bytes, _own(stream), caller())

    def keep_for(self, stream: Stream, tensors: Sequence[torch.Tensor]) -> None:
        with self._lock:
            for tensor in tensors:
                if tensor.numel():
                    self._core.block(tensor).keepers[_own(stream)] = None

    def empty_cache(self) -> None:
        with self._lock:
            self._core.settle()
            self._core.memory.empty()

    # Work

    def copy_in(self, stream: Stream, source: ByteArray, target: torch.Tensor) -> None:
        with self._lock:
            inside = self._core.copy(_own(stream), source, target, caller(), is_out=False)
            self.num_copies_in += 1
            self.bytes_in += source.nbytes
            # The array is kept, the tensor is not: who lets go of a target early gets what a real device gives.
            _own(stream).put(lambda: np.copyto(inside, source.view(np.uint8)))

    def copy_out(self, stream: Stream, source: torch.Tensor, target: ByteArray) -> None:
        with self._lock:
            inside = self._core.copy(_own(stream), target, source, caller(), is_out=True)
            self.bytes_out += target.nbytes
            _own(stream).put(lambda: np.copyto(target.view(np.uint8), inside))

    def enqueue(
        self,
        stream: Stream,
        work: Callable[[], object],
        *,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
    ) -> None:
        with self._lock:
            core, own = self._core, _own(stream)
            core.settle()
            num_read, num_written = num_bytes(reads), num_bytes(writes)
            what = f"work that reads {num_read:,} and writes {num_written:,} bytes"
            places = [*core.places(reads, is_write=False), *core.places(writes, is_write=True)]
            core.order(Operation(what, own.name, caller()), own, places)
            core.spend(own, num_read, num_written)

            watch = core.watch(reads, writes)

            def run() -> None:
                with as_enqueued(), watch:
                    work()

            own.put(run)

    def compute(self, stream: Stream, work: Callable[[], T], *, reads: Sequence[torch.Tensor]) -> T:
        with self._lock:
            core, own, where = self._core, _own(stream), caller()
            core.settle()
            what = f"work that reads {num_bytes(reads):,} bytes"
            core.order(Operation(what, own.name, where), own, core.places(reads, is_write=False))
            own.run_all()
            with core.watch(reads, None) as watch:
                made = work()
            core.order(
                Operation(f"{what} and writes there", own.name, where), own, core.places(watch.written, is_write=True)
            )
            result, num_made = in_device_memory(made, core.holds, lambda data: core.result(data, own, where))
            core.spend(own, num_bytes(reads), num_made)
            return result

    # Order

    def stream(self, name: str) -> SimulatedStream:
        with self._lock:
            return self._core.new_stream(name)

    def consumer(self) -> SimulatedStream:
        return self._core.streams[0]

    def record(self, stream: Stream) -> SimulatedEvent:
        with self._lock:
            self._core.settle()
            own = _own(stream)
            join(own.known, self._core.host)
            return SimulatedEvent(own, self._timing.now(own))

    def wait(self, stream: Stream, event: Event) -> None:
        with self._lock:
            self._core.settle()
            own, awaited = _own(stream), _own_event(event)
            join(own.known, awaited.known)
            self._timing.reach(own, awaited.time_s)
            if not awaited.has_run:
                own.put(awaited)

    def synchronize(self, event: Event) -> None:
        with self._lock:
            self._core.settle()
            awaited = _own_event(event)
            awaited.stream.run_until(awaited.place)
            join(self._core.host, awaited.known)
            self._virtual.reach(awaited.time_s)

    def use(self, stream: Stream, tensors: Sequence[torch.Tensor]) -> None:
        with self._lock:
            core, own = self._core, _own(stream)
            core.settle()
            operation = Operation(f"use of {num_bytes(tensors):,} bytes", own.name, caller(), is_use=True)
            places = core.places(tensors, is_write=True)
            core.order(operation, own, places)
            for tensor, (place, _) in zip((tensor for tensor in tensors if tensor.numel()), places, strict=True):
                for begin, end in place[-1]:
                    core.block(tensor).uses[own, begin, end] = operation

    def host_writes(self, array: ByteArray) -> None:
        with self._lock:
            self._core.check_host(array, "write", caller(), is_write=True)

    def host_reads(self, array: ByteArray) -> None:
        with self._lock:
            self._core.check_host(array, "read", caller(), is_write=False)

    def close(self) -> None:
        with self._lock:
            for stream in self._core.streams:
                stream.run_all()
            del self._core.streams[1:]
            self._core.settle()
            self._core.memory.empty()

    # What only a simulated device has

    @property
    def faults(self) -> list[OrderError]:
        """The order errors so far."""
        return self._core.faults

    @property
    def bytes_computed(self) -> int:
        """Bytes that work on device memory read and wrote."""
        return self._core.bytes_computed

    def take(self, num_bytes: int) -> object:
        """Return an object for whose life ``num_bytes`` of the memory are gone: the model's, say.

        Raises:
            DeviceMemoryError: if there are not as many.
        """
        with self._lock:
            self._core.settle()
            return self._core.memory.take(num_bytes)

    def fail_next(self, count: int = 1, *, skip: int = 0, kind: Literal["allocation", "copy"] = "allocation") -> None:
        """Make allocations or copies fail: ``count`` of them, after ``skip`` that go well."""
        with self._lock:
            self._core.fail(kind, skip, count)

    def timeline(self) -> list[tuple[str, str, float, float]]:
        """Return the last 10,000 operations: stream, what, begin and end in virtual seconds."""
        with self._lock:
            return list(self._timing.timeline)


def _own(stream: Stream) -> SimulatedStream:
    assert isinstance(stream, SimulatedStream)
    return stream


def _own_event(event: Event) -> SimulatedEvent:
    assert isinstance(event, SimulatedEvent)
    return event
