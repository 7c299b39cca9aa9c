"""From rows on a device to a batch there: delivered, transformed, and told apart for whoever keeps account of memory.

Work is enqueued on a stream; nothing here waits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from flodl_pipe.arrays import BoolArray
from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.devices.protocol import Device, Event, Stream
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.loader.groups import Made
from flodl_pipe.loader.lazy_sums import LazySums
from flodl_pipe.loader.lookahead import Rows
from flodl_pipe.sampling.steps import RankStep
from flodl_pipe.staging.device_rows import DeviceRows
from flodl_pipe.transforms.chain import Chain

__all__ = ["BLOCK_BYTES", "Finish", "Uploaded", "device_bytes", "plain_parts", "rebuilt", "rows_that_count"]

BLOCK_BYTES = 512
"""Device memory is handed out in multiples of this."""


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

        reads = [part for tensor in tensors for part in plain_parts(tensor) if part.numel()]
        return device.compute(stream, work, reads=reads)


@final
@dataclass(frozen=True)
class Uploaded:
    """A step on its way to the loop.

    Attributes:
        made: Names and tensors of the batch.
        valid: Which rows count, bool, on the device; None: all.
        done: After everything.
        sums: Sum of the rows' hashes; None without a digest, or where readers made it.
    """

    made: Made
    valid: torch.Tensor | None
    done: Event
    sums: LazySums | None = None

    def tensors(self) -> list[torch.Tensor]:
        """Return all that the loop gets of device memory."""
        whole = self.made[1] if self.valid is None else (*self.made[1], self.valid)
        return [part for tensor in whole for part in plain_parts(tensor)]


def plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors that one is made of: of a nested one its values and offsets."""
    if not tensor.is_nested:
        return [tensor]
    nested: Any = tensor  # torch's jagged layout, whose methods its types do not tell
    lengths = nested.lengths()
    return [nested.values(), nested.offsets(), *(() if lengths is None else (lengths,))]


def device_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the device memory that plain tensors keep, in the blocks that allocators hand out."""
    sizes = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
    return sum(sizes.values())


def rows_that_count(step: RankStep, good: BoolArray | None) -> BoolArray | None:
    """Return which rows of a step count, those that are neither padding nor skipped; None: all."""
    valid = step.valid()
    if good is None or valid is None:
        return valid if good is None else good
    return valid & good


def rebuilt(tensor: torch.Tensor, parts: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return a tensor made of other plain parts."""
    if not tensor.is_nested:
        return next(parts)
    nested: Any = tensor
    values, offsets = next(parts), next(parts)
    lengths = None if nested.lengths() is None else next(parts)
    return torch.nested.nested_tensor_from_jagged(values, offsets, lengths)
