"""One step from the host's slot to a batch on the device: copied, put together, delivered, transformed.

All of it is enqueued on the transfer stream by the transfer thread; the loop's stream waits for the event at its end.
The slot may be written again after the event that follows its copies.
"""

import contextlib
from collections.abc import Callable
from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import BoolArray, ByteArray, IndexArray, WordArray
from flodl_pipe.devices.protocol import Device, Stream
from flodl_pipe.keyed.digest import row_states
from flodl_pipe.keyed.digest_torch import row_hash_sums
from flodl_pipe.loader.finish import Finish, Uploaded, plain_parts, rebuilt
from flodl_pipe.loader.groups import Made
from flodl_pipe.loader.lazy_sums import LazySums
from flodl_pipe.loader.lookahead import Rows
from flodl_pipe.loader.slots import Run, SlotLayout
from flodl_pipe.staging.pool_slabs import GatherPlan
from flodl_pipe.staging.sample_pool import SamplePool

__all__ = ["Upload", "number_bytes"]

_SUMS = np.dtype(np.int64)


def number_bytes(num_rows: int) -> int:
    """Return what a slot needs for numbers that go along with a step: where rows come from and go to, and hashes."""
    return 8 * 6 * num_rows + 64


@final
class Upload:
    """Moves steps to a device; used by one thread.

    Args:
        device: The device.
        stream: The transfer stream.
        layout: Layout of a slot.
        finish: How rows become a batch.
        pool: Samples that stay there; None: none do.

    Attributes:
        num_bytes: Bytes copied in so far.
    """

    def __init__(
        self, device: Device, stream: Stream, layout: SlotLayout, finish: Finish, pool: SamplePool | None
    ) -> None:
        self.device = device
        self.stream = stream
        self._layout = layout
        self._finish = finish
        self._pool = pool
        self.num_bytes = 0

    def slot(self, run: Run, rows: Rows, plan: GatherPlan | None, epoch: int, valid: BoolArray | None) -> Uploaded:
        """Enqueue a step whose rows lie in a slot.

        Args:
            run: The slot.
            rows: What stands in the step's rows.
            plan: Which of them the pool has; the slot then holds the others. None: the slot holds all.
            epoch: Which epoch.
            valid: Which rows count; None: all.

        Raises:
            DeviceMemoryError: if the device has no memory left.
        """
        stream, pool = self.stream, self._pool
        num_rows = len(rows.samples)
        num_fresh = num_rows if plan is None else len(plan.missing)
        fresh = {
            field.name: self.copy_in(memory).view(num_fresh, field.row_bytes)
            for field, memory in zip(self._layout.spec, self._layout.field_bytes(run, num_fresh), strict=True)
        }
        fresh_samples = rows.samples if plan is None else rows.samples[plan.missing]
        admission = None
        if pool is not None and num_fresh and not pool.is_complete:
            admission = pool.admission(fresh_samples)
        numbers: list[IndexArray] = [] if plan is None else [plan.index]
        if admission is not None:
            numbers.append(admission.index)
        index = self.numbers([*numbers, *self._about(rows, epoch, valid)], self._layout.extra_bytes(run))
        fields = fresh
        if plan is not None:
            assert pool is not None
            fields = pool.assemble(plan, index.pop(0), fresh)
        if admission is not None:
            assert pool is not None
            pool.admit(admission, index.pop(0), fresh)
        return self._finished(stream, fields, index, rows, epoch)

    def resident(
        self,
        plan: GatherPlan,
        stream: Stream,
        rows: Rows,
        epoch: int,
        valid: BoolArray | None,
        room: Callable[[int], contextlib.AbstractContextManager[ByteArray]],
    ) -> Uploaded:
        """Enqueue a step whose rows the pool has.

        Args:
            plan: Where they are.
            stream: The loop's own.
            rows: What stands in the step's rows.
            epoch: Which epoch.
            valid: Which rows count; None: all.
            room: Gives host memory for numbers to be copied from.

        Raises:
            DeviceMemoryError: if the device has no memory left.
        """
        assert self._pool is not None
        parts = [plan.index, *self._about(rows, epoch, valid)]
        with room(sum(part.nbytes for part in parts)) as memory:
            index = self.numbers(parts, memory, stream)
        fields = self._pool.assemble(plan, index.pop(0), {}, stream=stream)
        return self._finished(stream, fields, index, rows, epoch)

    def _about(self, rows: Rows, epoch: int, valid: BoolArray | None) -> list[IndexArray]:
        """Return what the device has to know of a step's rows: which count, and where they stand, for hashes."""
        numbers: list[IndexArray] = [] if valid is None else [valid.astype(np.int64)]
        if self._finish.keep_digest:
            states: WordArray = row_states(
                epoch=epoch, positions=rows.positions, samples=rows.samples, repeats=rows.repeats
            )
            numbers.append(states.view(np.int64))
        return numbers

    def _finished(
        self, stream: Stream, fields: dict[str, torch.Tensor], index: list[torch.Tensor], rows: Rows, epoch: int
    ) -> Uploaded:
        """Enqueue the way from rows on the device to a batch.

        Args:
            stream: Where.
            fields: The rows, for each field uint8 of shape ``(B, row_bytes)``.
            index: What :meth:`_about` made, on the device.
            rows: What stands in the rows.
            epoch: Which epoch.
        """
        device, valid = self.device, None
        if len(index) > self._finish.keep_digest:
            counts = index.pop(0)
            valid = device.compute(stream, lambda: counts.to(torch.bool), reads=[counts])
        sums = self._sums(stream, fields, index[0], valid) if self._finish.keep_digest else None
        made = self._finish.batch(device, stream, fields, rows, epoch)
        return Uploaded(made, valid, device.record(stream), sums)

    def tensors(self, made: Made, rows: Rows, epoch: int, valid: BoolArray | None, *, alone: bool) -> Uploaded:
        """Enqueue a step that readers made as tensors of their own.

        Raises:
            DeviceMemoryError: if the device has no memory left.
        """
        device, stream = self.device, self.stream
        names, tensors = made
        flat = [part for tensor in tensors for part in plain_parts(tensor)]
        if valid is not None:
            flat.append(torch.from_numpy(valid))

        def work() -> list[torch.Tensor]:
            return [part.to(device.torch_device, copy=True) for part in flat]

        moved = device.compute(stream, work, reads=())
        self.num_bytes += sum(part.numel() * part.element_size() for part in flat)
        there = iter(moved)
        like = tuple(rebuilt(tensor, there) for tensor in tensors)
        finished = self._finish.transformed(device, stream, names, like, rows, epoch, alone=alone)
        return Uploaded(finished, None if valid is None else moved[-1], device.record(stream))

    def copy_in(self, memory: ByteArray) -> torch.Tensor:
        """Enqueue the copy of host memory, and return the device's, uint8 of shape ``(n,)``."""
        if not len(memory):
            return torch.empty(0, dtype=torch.uint8, device=self.device.torch_device)
        target = self.device.allocate(len(memory), self.stream)
        self.device.host_writes(memory)  # by a reader, before it was handed here
        self.device.copy_in(self.stream, memory, target)
        self.num_bytes += len(memory)
        return target

    def numbers(self, parts: list[IndexArray], room: ByteArray, stream: Stream | None = None) -> list[torch.Tensor]:
        """Upload lists of numbers in one copy.

        Args:
            parts: The lists, int64.
            room: Host memory to copy from.
            stream: Where; default the transfer stream.

        Returns:
            Each list on the device.
        """
        size = sum(part.nbytes for part in parts)
        if not size:
            return [torch.empty(0, dtype=torch.int64, device=self.device.torch_device) for _ in parts]
        memory = room[:size] if size <= len(room) else self.device.host_slab(size)
        self.device.host_writes(memory)
        np.concatenate(parts, out=memory.view(np.int64))
        stream = stream or self.stream
        target = self.device.allocate(size, stream)
        self.device.copy_in(stream, memory, target)
        self.num_bytes += size
        return list(torch.split(target.view(torch.int64), [len(part) for part in parts]))

    def _sums(
        self, stream: Stream, fields: dict[str, torch.Tensor], states: torch.Tensor, valid: torch.Tensor | None
    ) -> LazySums:
        """Enqueue the sum of the rows' hashes, and its way back."""
        device = self.device
        reads = [tensor for tensor in (states, *fields.values()) if tensor.numel()]
        reads += [] if valid is None else [valid]
        found = device.compute(stream, lambda: row_hash_sums(states, fields.values(), valid), reads=reads)
        target = device.host_slab(2 * _SUMS.itemsize)
        device.copy_out(stream, found.view(torch.uint8), target)
        return LazySums(device, device.record(stream), target)
