"""Apple's GPU: memory shared with the host, one queue of work, no streams that torch would name.

Everything happens on the one queue of the process, in the loop's thread, and copies are done when the call returns.
So waits have nothing to wait for, and page-locked memory would gain nothing: none is made, and torch is not asked
for any (it would warn each time).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

import numpy as np
import torch

from flodl_pipe.arrays import ByteArray
from flodl_pipe.devices.clock import NO_CLOCK, Clock
from flodl_pipe.devices.protocol import DeviceMemory, Event, Stream
from flodl_pipe.devices.torch_memory import out_of_memory
from flodl_pipe.errors import DeviceMemoryError, StagingError
from flodl_pipe.units import format_bytes

__all__ = ["MpsDevice"]

T = TypeVar("T")


@final
class MpsDevice:
    """The device ``mps``.

    Args:
        torch_device: The device; another one for tests.
        module: ``torch.mps``, or what stands in for it.
    """

    has_streams = False
    pins = False

    def __init__(self, torch_device: torch.device | None = None, module: Any = torch.mps) -> None:
        self.torch_device = torch.device("mps") if torch_device is None else torch_device
        self.name = "mps"
        self.clock: Clock = NO_CLOCK
        self._module = module
        self._peak_bytes = 0

    def memory(self) -> DeviceMemory:
        """Return what Metal recommends this process to use at most, and what of it torch does not use.

        torch keeps no peak here: it is the most that was in use when somebody asked.

        What other programs use of the same memory is not told here; the host's own figure shows it.
        """
        total, used = int(self._module.recommended_max_memory()), int(self._module.current_allocated_memory())
        self._peak_bytes = max(self._peak_bytes, used)
        return DeviceMemory(
            total,
            max(0, total - used),
            is_shared=True,
            process_bytes=used,
            process_peak_bytes=self._peak_bytes,
        )

    def stream(self, name: str) -> Stream:
        """Return a name for the one queue there is."""
        return _Queue(name)

    def consumer(self) -> Stream:
        """Return a name for the one queue there is."""
        return _Queue("consumer")

    def slab_bytes(self, num_bytes: int) -> int:
        """Return ``num_bytes``."""
        return num_bytes

    def host_slab(self, num_bytes: int) -> ByteArray:
        """Return ordinary host memory, uint8, shape ``(num_bytes,)``.

        Raises:
            StagingError: if the system refuses it.
        """
        try:
            return np.empty(num_bytes, np.uint8)
        except MemoryError:
            raise StagingError(
                f"{format_bytes(num_bytes)} of host memory were refused; lower loader.prefetch or loader.batch_size"
            ) from None

    def allocate(self, num_bytes: int, stream: Stream) -> torch.Tensor:  # noqa: ARG002
        """Return device memory, uint8, shape ``(num_bytes,)``.

        Raises:
            DeviceMemoryError: if the device has none left.
        """

        def work() -> torch.Tensor:
            with torch.inference_mode(mode=False):  # a tensor made in there could never be trained on outside
                return torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device)

        return self._run(work)

    def copy_in(self, stream: Stream, source: ByteArray, target: torch.Tensor) -> None:  # noqa: ARG002
        """Copy from host to device."""
        assert source.nbytes == target.nbytes, f"copy of {source.nbytes} to {target.nbytes} bytes"
        # A read-only array cannot be seen as a tensor.
        host = source if source.flags.writeable else source.copy()
        target.view(torch.uint8).copy_(torch.from_numpy(host))

    def copy_out(self, stream: Stream, source: torch.Tensor, target: ByteArray) -> None:  # noqa: ARG002
        """Copy from device to host."""
        assert source.nbytes == target.nbytes, f"copy of {source.nbytes} to {target.nbytes} bytes"
        torch.from_numpy(target).copy_(source.view(torch.uint8))

    def enqueue(
        self,
        stream: Stream,  # noqa: ARG002
        work: Callable[[], object],
        *,
        reads: Sequence[torch.Tensor],  # noqa: ARG002
        writes: Sequence[torch.Tensor],  # noqa: ARG002
    ) -> None:
        """Enqueue torch work on device tensors that are there already."""
        self._run(work)

    def compute(self, stream: Stream, work: Callable[[], T], *, reads: Sequence[torch.Tensor]) -> T:  # noqa: ARG002
        """Enqueue torch work that makes new tensors, and return them.

        Raises:
            DeviceMemoryError: if the device has no memory left for them.
        """
        return self._run(work)

    def record(self, stream: Stream) -> Event:  # noqa: ARG002
        """Return an event that is done: nothing that anybody waits for is under way."""
        return _Done()

    def wait(self, stream: Stream, event: Event) -> None:
        """Do nothing: there is one queue, which is in order."""

    def synchronize(self, event: Event) -> None:
        """Do nothing: copies are done when their call returns, so host memory is free again."""

    def keep_for(self, stream: Stream, tensors: Sequence[torch.Tensor]) -> None:
        """Do nothing: memory is given out again for the same queue only."""

    def use(self, stream: Stream, tensors: Sequence[torch.Tensor]) -> None:
        """Do nothing: only a simulated device checks."""

    def host_writes(self, array: ByteArray) -> None:
        """Do nothing: only a simulated device checks."""

    def host_reads(self, array: ByteArray) -> None:
        """Do nothing: only a simulated device checks."""

    def empty_cache(self) -> None:
        """Give memory that torch keeps without using it back to the system."""
        self._module.empty_cache()

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""

    def _run(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            reason = str(error).splitlines()[0]
        # Raised out here: an error raised in there would keep what the work had made already.
        memory = self.memory()
        raise DeviceMemoryError(
            f"mps has no memory left: {format_bytes(memory.free_bytes)} of {format_bytes(memory.total_bytes)} are free "
            f"({reason}); lower loader.vram_max_usage or loader.batch_size, or loader.vram_pool=false"
        )


@final
class _Queue:
    def __init__(self, name: str) -> None:
        self.name = name


@final
class _Done:
    def is_done(self) -> bool:
        return True
