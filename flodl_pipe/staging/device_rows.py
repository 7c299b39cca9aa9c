"""Stored rows on a device -> delivered tensors: cut out, widened, and owned by whoever gets them.

Rows cross the bus and are kept as they are stored, as bytes. Only sources that say how they deliver
(:mod:`flodl_pipe.sources.delivery`) can be delivered from there: fields copied, or widened, out of one stored field, or
rows that are delivered as stored. All others are delivered by the host.

A delivered field of the stored type is a copy of its bytes. Torch has next to no arithmetic for uint16, uint32 and
uint64 on some devices, so those are widened as signed integers whose sign is masked away.

Shape letter: ``B`` rows.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from flodl_pipe.batch.spec import Field
from flodl_pipe.sources.delivery import delivery_of
from flodl_pipe.sources.protocol import CopiedFields, Source

__all__ = ["DeviceRows"]

_TORCH = {
    name: dtype
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
    for dtype in [getattr(torch, name)]
}
# Unsigned types that are widened as their signed counterpart: its name, and the mask that takes the sign away.
_MASKED = {"uint16": ("int16", 0xFFFF), "uint32": ("int32", 0xFFFFFFFF)}
_WIDER = ("int16", "int32", "int64", "float16", "float32", "float64")


@final
@dataclass(frozen=True)
class _Part:
    """A delivered field, and where it lies in which stored field.

    Attributes:
        field: The delivered field.
        stored: Name of the stored field.
        offset: First byte in a row of it.
        dtype: NumPy name of an element's type there.
    """

    field: Field
    stored: str
    offset: int
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of it in a stored row."""
        return np.dtype(self.dtype).itemsize * math.prod(self.field.shape)

    def deliver(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a new tensor of this field of ``rows``, uint8, shape ``(B, row_bytes)``."""
        shape = (len(rows), *self.field.shape)
        delivered = _TORCH[self.field.dtype]
        if not self.num_bytes or not len(rows):
            return torch.empty(shape, dtype=delivered, device=rows.device)
        part = rows[:, self.offset : self.offset + self.num_bytes]
        if self.dtype == self.field.dtype:
            return part.clone(memory_format=torch.contiguous_format).view(delivered).view(shape)
        name, mask = _MASKED.get(self.dtype, (self.dtype, 0))
        narrow = _viewed(part, _TORCH[name])
        if not mask:
            return narrow.to(delivered, memory_format=torch.contiguous_format).view(shape)
        wide = narrow.to(torch.int64, memory_format=torch.contiguous_format).bitwise_and_(mask)
        return wide.to(delivered).view(shape)


def _viewed(part: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return bytes ``(B, n)`` as numbers, copied only where they do not lie where numbers of the type may lie."""
    size = dtype.itemsize
    if part.storage_offset() % size or part.stride(0) % size or part.stride(1) != 1:
        part = part.clone(
            memory_format=torch.contiguous_format
        )  # `contiguous` would keep what only begins at an odd byte
    return part.view(dtype)


@final
class DeviceRows:
    """How stored rows of one source become delivered tensors on their device; made by :meth:`of`."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = tuple(parts)

    @classmethod
    def of(cls, source: Source) -> "DeviceRows | None":
        """Return how to deliver a source's rows on a device; None where only :meth:`Source.deliver` can do it.

        That is where the source does not say how it delivers, where it does more than copy and widen, and where a type
        is none of torch's, or cannot be widened exactly.
        """
        if sys.byteorder != "little" or source.spec.is_ragged or source.delivered.is_ragged:
            return None
        delivery = delivery_of(source)
        if isinstance(delivery, CopiedFields) and len(source.spec) == 1:
            (stored,) = source.spec.fields
            parts = [
                _Part(field, stored.name, copied.offset, copied.dtype)
                for field, copied in zip(source.delivered, delivery.fields, strict=True)
            ]
        elif delivery == "as stored" and source.spec == source.delivered:
            parts = [_Part(field, field.name, 0, field.dtype) for field in source.spec]
        else:
            return None
        return cls(parts) if all(_is_possible(part.dtype, part.field.dtype) for part in parts) else None

    def num_bytes(self, num_rows: int) -> int:
        """Return how many bytes the tensors of :meth:`deliver` hold for ``num_rows`` rows, without rounding."""
        return num_rows * sum(part.field.row_bytes for part in self._parts)

    def deliver(self, rows: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the delivered fields in order: what :meth:`Source.deliver` makes of the same rows, bit by bit.

        Torch work on the rows' device and the current stream; for :meth:`flodl_pipe.devices.protocol.Device.compute`.

        Args:
            rows: One tensor per stored field, uint8, shape ``(B, row_bytes)``.

        Returns:
            New contiguous tensors, shape ``(B, *field.shape)``: none shares memory with rows, or with another.
        """
        return tuple(part.deliver(rows[part.stored]) for part in self._parts)


def _is_possible(stored: str, delivered: str) -> bool:
    """Return whether a type can be copied, or widened, to another, exactly as NumPy does."""
    if stored == delivered:
        return stored in _TORCH
    # Of floats torch and NumPy may widen what is no number to different bits.
    is_integer = stored in _TORCH and np.dtype(stored).kind in "iu" and stored != "uint64"
    return is_integer and delivered in _WIDER and np.can_cast(stored, delivered, "safe")
