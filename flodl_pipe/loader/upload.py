"""One step from the host's slot to a batch on the device: copied, put together, delivered, transformed.

All of it is enqueued on the transfer stream by the transfer thread; the loop's stream waits for the event at its end.
The slot may be written again after the event that follows its copies.
"""

from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import ByteArray, IndexArray, WordArray
from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.devices.protocol import Device, Event, Stream
from flodl_pipe.keyed.digest import row_states
from flodl_pipe.keyed.digest_torch import row_hash_sums
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.loader.groups import Made
from flodl_pipe.loader.lazy_sums import LazySums
from flodl_pipe.loader.lookahead import Rows
from flodl_pipe.loader.slots import Run, SlotLayout
from flodl_pipe.staging.device_rows import DeviceRows
from flodl_pipe.staging.pool_slabs import GatherPlan
from flodl_pipe.staging.sample_pool import SamplePool
from flodl_pipe.transforms.chain import Chain

__all__ = ["Finish", "Upload", "Uploaded", "number_bytes"]

_SUMS = np.dtype(np.int64)


def number_bytes(num_rows: int) -> int:
    """Return what a slot needs for numbers that go to the device with a step: where rows come from, go to, and hashes."""
    return 8 * 6 * num_rows + 64


@final
@dataclass(frozen=True)
class Finish:
    """How rows on the device become a batch.

    Attributes:
        rows: Delivers stored rows; None where they were delivered already.
        spec: Delivered fields, under the batch's names.
        chain: Transforms.
        seed: Run seed, for keys.
        keep_digest: Whether to sum the hashes of rows there; only of stored ones.
    """

    rows: DeviceRows | None
    spec: SampleSpec
    chain: Chain
    seed: int
    keep_digest: bool

    def batch(self, device: Device, stream: Stream, fields: dict[str, torch.Tensor], rows: Rows, epoch: int) -> Made:
        """Enqueue delivery and transforms.

        Args:
            device: The device.
            stream: Where.
            fields: Rows as uploaded, for each field uint8 of shape ``(B, row_bytes)``.
            rows: What stands in them.
            epoch: Which epoch.

        Raises:
            DeviceMemoryError: if the device has no memory left.
            TransformError: if a transform breaks its contract.
        """
        delivery = self.rows
        reads = [tensor for tensor in fields.values() if tensor.numel()]
        if delivery is not None:
            tensors = device.compute(stream, lambda: delivery.deliver(fields), reads=reads)
        else:
            spec = self.spec
            tensors = tuple(
                tensor.view(getattr(torch, field.dtype)).view(len(rows.samples), *field.shape)
                for field, tensor in zip(spec, fields.values(), strict=True)
            )
        return self.transformed(device, stream, self.spec.names, tensors, rows, epoch)

    def transformed(
        self,
        device: Device,
        stream: Stream,
        names: tuple[str, ...],
        tensors: tuple[torch.Tensor, ...],
        rows: Rows,
        epoch: int,
        *,
        alone: bool = False,
    ) -> Made:
        """Enqueue transforms.

        Args:
            device: The device.
            stream: Where.
            names: Names of the fields.
            tensors: The fields.
            rows: What stands in the rows.
            epoch: Which epoch.
            alone: Whether tensors are of one sample, without a batch axis.
        """
        if self.chain.is_empty:
            return names, tensors
        keys = PickKeys(rows.samples, rows.repeats, epoch, self.seed)

        def work() -> Made:
            given = tuple(tensor[None] for tensor in tensors) if alone else tensors
            batch = self.chain(Batch(names, given, pick_keys=keys), keys)
            return batch.names, tuple(tensor[0] for tensor in batch.values()) if alone else batch.values()

        return device.compute(stream, work, reads=tensors)


@final
@dataclass
class Uploaded:
    """A step on its way to the loop.

    Attributes:
        made: Names and tensors of the batch.
        copied: After the copies out of the slot.
        done: After everything.
        sums: Sum of the rows' hashes; None without a digest, or where readers made it.
        num_bytes: Bytes of the tensors.
    """

    made: Made
    copied: Event
    done: Event
    sums: LazySums | None = None
    num_bytes: int = field(default=0)


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

    def slot(self, run: Run, rows: Rows, plan: GatherPlan | None, epoch: int, valid: IndexArray | None) -> Uploaded:
        """Enqueue a step whose rows lie in a slot.

        Args:
            run: The slot.
            rows: What stands in the step's rows.
            plan: Which of them the pool has; the slot then holds the others. None: the slot holds all.
            epoch: Which epoch.
            valid: Numbers of the rows that count, for the digest; None: all.

        Raises:
            DeviceMemoryError: if the device has no memory left.
        """
        device, stream, pool = self.device, self.stream, self._pool
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
        if self._finish.keep_digest:
            states: WordArray = row_states(
                epoch=epoch, positions=rows.positions, samples=rows.samples, repeats=rows.repeats
            )
            numbers.append(states.view(np.int64))
            if valid is not None:
                numbers.append(valid)
        index = self.numbers(numbers, self._layout.extra_bytes(run))
        copied = device.record(stream)
        fields = fresh
        if plan is not None:
            assert pool is not None
            fields = pool.assemble(plan, index.pop(0), fresh)
        if admission is not None:
            assert pool is not None
            pool.admit(admission, index.pop(0), fresh)
        sums = self.sums(stream, fields, index) if self._finish.keep_digest else None
        made = self._finish.batch(device, stream, fields, rows, epoch)
        return Uploaded(made, copied, device.record(stream), sums, _bytes_of(made))

    def tensors(self, made: Made, rows: Rows, epoch: int, *, alone: bool) -> Uploaded:
        """Enqueue a step that readers made as tensors of their own."""
        device, stream = self.device, self.stream
        names, tensors = made

        def work() -> tuple[torch.Tensor, ...]:
            return tuple(tensor.to(device.torch_device, copy=True) for tensor in tensors)

        moved = device.compute(stream, work, reads=())
        self.num_bytes += _bytes_of(made)
        finished = self._finish.transformed(device, stream, names, moved, rows, epoch, alone=alone)
        done = device.record(stream)
        return Uploaded(finished, done, done, None, _bytes_of(finished))

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

    def sums(self, stream: Stream, fields: dict[str, torch.Tensor], numbers: list[torch.Tensor]) -> LazySums:
        """Enqueue the sum of the rows' hashes, and its way back."""
        states, *rest = numbers
        valid = rest[0].to(torch.bool) if rest else None
        device = self.device
        reads = [tensor for tensor in (states, *fields.values()) if tensor.numel()]
        found = device.compute(stream, lambda: row_hash_sums(states, fields.values(), valid), reads=reads)
        target = device.host_slab(2 * _SUMS.itemsize)
        device.copy_out(stream, found.view(torch.uint8), target)
        return LazySums(device, device.record(stream), target)


def _bytes_of(made: Made) -> int:
    return sum((tensor.values() if tensor.is_nested else tensor).numel() * tensor.element_size() for tensor in made[1])
