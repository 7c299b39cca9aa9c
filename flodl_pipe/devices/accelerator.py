"""Real accelerators with streams: CUDA (ROCm among them) and XPU, through torch's module of their kind.

``torch.cuda`` and ``torch.xpu`` have the same names for what is needed here, so one class serves both. Streams and
events are the module's own classes, not the generic ``torch.Stream`` and ``torch.Event``, for three reasons: a generic
event spins while it is waited for (its ``blocking`` has no effect), a generic stream is no context manager before torch
2.7, and events of a module refuse generic streams in many versions. Nothing newer than torch 2.6 is needed.

A copy is asynchronous because its host memory is page-locked, which the driver knows by address, whatever tensor or
array that memory is seen through. Beyond that, torch's allocator of page-locked memory does not give a block out again
while a copy of it is under way, but only if it sees the tensor that owns the block. Hence copies are made through that
tensor: it is the base of a slab's array.

Every call names its stream or its device, so any thread may make it, whatever its own current device is. Tests with a
made-up module prove which calls are made, in which order, on which stream; the rest is in ``tests/gpu``.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, final

import numpy as np
import torch

from flodl_pipe.arrays import ByteArray
from flodl_pipe.devices.clock import NO_CLOCK, Clock
from flodl_pipe.devices.protocol import DeviceMemory, Event, Stream
from flodl_pipe.devices.torch_memory import (
    allocator_use,
    allowed_fraction,
    driver_memory,
    empty_host_cache,
    out_of_memory,
    page_locked,
)
from flodl_pipe.errors import DeviceMemoryError, StagingError
from flodl_pipe.units import format_bytes

__all__ = ["AcceleratorDevice"]

T = TypeVar("T")


@final
class AcceleratorDevice:
    """A CUDA or XPU device.

    Args:
        torch_device: The device, with its index.
        module: What ``torch.get_device_module`` gives for it; ``torch.cuda`` or ``torch.xpu``.
        empty_pinned: Makes page-locked memory, uint8, of so many bytes.
    """

    has_streams = True
    pins = True

    def __init__(
        self,
        torch_device: torch.device,
        module: Any = None,
        *,
        empty_pinned: Callable[[int], torch.Tensor] = page_locked,
    ) -> None:
        self.torch_device = torch_device
        self.name = str(torch_device)
        self.clock: Clock = NO_CLOCK
        self._module = torch.get_device_module(torch_device) if module is None else module
        self._empty_pinned = empty_pinned
        self._event_options = _event_options(self._module)
        self._is_shared = _is_integrated(self._module, torch_device)

    def memory(self) -> DeviceMemory:
        """Return what the device has and what is free of it.

        Free is what the driver says is free, and what torch's allocator keeps without using it. Of the latter, some
        is in pieces between blocks in use: smaller tensors find room there, but no tensor larger than the largest
        piece does, and it cannot go back to the driver. So the figure is what fits in total, not in one piece.

        Where torch was told to use a part of the device only (``set_per_process_memory_fraction``), the rest is not
        free, as far as this version of torch tells.
        """
        free, total = driver_memory(self._module, self.torch_device)
        ours = allocator_use(self._module, self.torch_device)
        allowed = int(allowed_fraction(self._module, self.torch_device) * total) - ours.allocated_bytes
        return DeviceMemory(
            total,
            max(0, min(total, free + ours.unused_bytes, allowed)),
            self._is_shared,
            process_bytes=ours.allocated_bytes,
            process_peak_bytes=ours.peak_bytes,
        )

    def stream(self, name: str) -> Stream:
        """Return a new stream; torch hands out the same 32 in turn, in one process."""
        return _Stream(name, self._module.Stream(device=self.torch_device))

    def consumer(self) -> Stream:
        """Return the calling thread's current stream of this device."""
        return _Stream("consumer", self._module.current_stream(self.torch_device))

    def slab_bytes(self, num_bytes: int) -> int:
        """Return the power of two that torch's allocator of page-locked memory takes for ``num_bytes``.

        It takes less where ``PYTORCH_ALLOC_CONF`` sets ``pinned_max_round_threshold_mb``, which not all versions know:
        what is returned is never too little.
        """
        return 1 << (num_bytes - 1).bit_length() if num_bytes > 0 else 0

    def host_slab(self, num_bytes: int) -> ByteArray:
        """Return page-locked memory, uint8, shape ``(num_bytes,)``.

        When the array and its views are collected, torch keeps the memory for the next slab; :meth:`close` gives it
        back to the system.

        Raises:
            StagingError: if the system refuses it.
        """
        try:
            with self._on_device():
                slab: ByteArray = self._empty_pinned(num_bytes).numpy()
        except (RuntimeError, MemoryError) as error:
            raise StagingError(
                f"{format_bytes(self.slab_bytes(num_bytes))} of page-locked host memory for copies to {self.name} were "
                f"refused ({_first_line(error)}); lower loader.prefetch or loader.batch_size, or raise the limit on "
                "locked memory (ulimit -l, or the container's) and free host memory"
            ) from None
        return slab

    def allocate(self, num_bytes: int, stream: Stream) -> torch.Tensor:
        """Return device memory, uint8, shape ``(num_bytes,)``, aligned to 512 bytes, for work on ``stream``.

        Raises:
            DeviceMemoryError: if the device has none left.
        """

        def work() -> torch.Tensor:
            with torch.inference_mode(mode=False):  # a tensor made in there could never be trained on outside
                return torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device)

        return self._run(stream, work, f"another {format_bytes(num_bytes)}")

    def copy_in(self, stream: Stream, source: ByteArray, target: torch.Tensor) -> None:
        """Enqueue a copy from host to device; from pageable memory it returns when ``source`` was read."""
        # A read-only array cannot be seen as a tensor.
        host = _host_tensor(source if source.flags.writeable else source.copy())
        self._copy(stream, host, target.view(torch.uint8))

    def copy_out(self, stream: Stream, source: torch.Tensor, target: ByteArray) -> None:
        """Enqueue a copy from device to host; to pageable memory it returns when that is done."""
        self._copy(stream, source.view(torch.uint8), _host_tensor(target))

    def enqueue(
        self,
        stream: Stream,
        work: Callable[[], object],
        *,
        reads: Sequence[torch.Tensor],  # noqa: ARG002
        writes: Sequence[torch.Tensor],  # noqa: ARG002
    ) -> None:
        """Enqueue torch work on device tensors that are there already.

        Raises:
            DeviceMemoryError: if the device has no memory left for what the work needs on its way.
        """
        self._run(stream, work, "work on a batch")

    def compute(self, stream: Stream, work: Callable[[], T], *, reads: Sequence[torch.Tensor]) -> T:  # noqa: ARG002
        """Enqueue torch work that makes new tensors, and return them.

        Raises:
            DeviceMemoryError: if the device has no memory left for them.
        """
        return self._run(stream, work, "the tensors of a batch")

    def record(self, stream: Stream) -> Event:
        """Return an event after all work enqueued on ``stream`` so far."""
        event = self._module.Event(**self._event_options)
        event.record(_torch_stream(stream))
        return _Event(event)

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work of ``stream`` wait for ``event``; returns at once."""
        _torch_stream(stream).wait_event(_torch_event(event))

    def synchronize(self, event: Event) -> None:
        """Make the calling thread wait for ``event``: asleep on CUDA, and without holding Python's lock."""
        _torch_event(event).synchronize()

    def keep_for(self, stream: Stream, tensors: Sequence[torch.Tensor]) -> None:
        """Keep the memory of tensors, once they are collected, until ``stream`` is through with its work up to then."""
        for tensor in tensors:
            tensor.record_stream(_torch_stream(stream))

    def use(self, stream: Stream, tensors: Sequence[torch.Tensor]) -> None:
        """Do nothing: only a simulated device checks."""

    def host_writes(self, array: ByteArray) -> None:
        """Do nothing: only a simulated device checks."""

    def host_reads(self, array: ByteArray) -> None:
        """Do nothing: only a simulated device checks."""

    def empty_cache(self) -> None:
        """Give the device memory that torch keeps without using it back to the driver."""
        with self._on_device():
            self._module.empty_cache()

    def close(self) -> None:
        """Give page-locked memory of slabs that were collected back to the system.

        torch keeps it for the whole process; blocks of others that are not in use go too, and cost their owner a new
        allocation, nothing else.
        """
        empty_host_cache()

    def _on_device(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._module.device(self.torch_device)
        return context

    def _copy(self, stream: Stream, source: torch.Tensor, target: torch.Tensor) -> None:
        assert source.shape == target.shape, f"copy of {tuple(source.shape)} to {tuple(target.shape)} bytes"
        with self._module.stream(_torch_stream(stream)):
            target.copy_(source, non_blocking=True)

    def _run(self, stream: Stream, work: Callable[[], T], what: str) -> T:
        """Do torch work on ``stream``; the module's context sets the thread's device too."""
        try:
            with self._module.stream(_torch_stream(stream)):
                return work()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            reason = _first_line(error)
        # Raised out here: an error raised in there would hold the first one, and that one every tensor that the work
        # had made already, while its catcher tries to go on with less.
        memory = self.memory()
        raise DeviceMemoryError(
            f"{self.name} has no room for {what}: {format_bytes(memory.free_bytes)} of "
            f"{format_bytes(memory.total_bytes)} are free in total ({reason}); lower loader.prefetch, "
            "loader.vram_max_usage or loader.batch_size, set loader.activation_reserve to what a step needs beside the "
            "model, or loader.vram_pool=false"
        )


@final
class _Stream:
    """One of torch's streams, under the port's name."""

    def __init__(self, name: str, torch_stream: Any) -> None:
        self.name = name
        self.torch_stream = torch_stream


@final
class _Event:
    """One of torch's events."""

    def __init__(self, torch_event: Any) -> None:
        self.torch_event = torch_event

    def is_done(self) -> bool:
        return bool(self.torch_event.query())


def _torch_stream(stream: Stream) -> Any:
    assert isinstance(stream, _Stream), f"{stream!r} is a stream of another device"
    return stream.torch_stream


def _torch_event(event: Event) -> Any:
    assert isinstance(event, _Event), f"{event!r} is an event of another device"
    return event.torch_event


def _event_options(module: Any) -> dict[str, bool]:
    """Return how events are made: so that waiting for them sleeps, where the kind of device can; XPU's cannot."""
    try:
        module.Event(blocking=True)
    except TypeError:
        return {}
    return {"blocking": True}


def _is_integrated(module: Any, device: torch.device) -> bool:
    """Return whether the device says that it has no memory of its own; older versions of torch do not tell."""
    properties = module.get_device_properties(device)
    return bool(getattr(properties, "is_integrated", False) or getattr(properties, "is_integrated_gpu", False))


def _host_tensor(array: ByteArray) -> torch.Tensor:
    """Return an array's memory as a tensor: a part of the one that owns it, where one does."""
    owner: Any = array.base
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, torch.Tensor):
        return torch.from_numpy(array)
    return owner.narrow(0, array.ctypes.data - owner.data_ptr(), len(array))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
