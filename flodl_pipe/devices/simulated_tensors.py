"""Which bytes tensors and arrays cover, and how results of torch get into simulated device memory."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch.utils import _pytree

from flodl_pipe.arrays import Array, ByteArray

__all__ = ["array_owner", "array_spans", "in_device_memory", "num_bytes", "tensor_spans"]

T = TypeVar("T")
# A strided tensor of more pieces than this counts as everything from its first byte to its last.
_PIECES = 1024


def num_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes of tensors' elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def tensor_spans(tensor: torch.Tensor, offset: int) -> list[tuple[int, int]]:
    """Return the bytes that a tensor covers, as ranges within its block.

    Args:
        tensor: Any shape and strides, not empty.
        offset: Where in the block its storage begins.
    """
    size = tensor.element_size()
    begin = offset + int(tensor.storage_offset()) * size
    if tensor.is_contiguous():
        return [(begin, begin + tensor.numel() * size)]
    return _pieces(
        begin, size, ((step * size, count) for step, count in zip(tensor.stride(), tensor.shape, strict=True))
    )


def array_spans(array: Array) -> list[tuple[int, int]]:
    """Return the bytes that an array covers, as ranges of addresses."""
    if not array.size:
        return []
    begin, end = np.lib.array_utils.byte_bounds(array)
    if array.flags.c_contiguous:
        return [(begin, end)]
    return _pieces(begin, array.itemsize, zip(map(abs, array.strides), array.shape, strict=True))


def _pieces(begin: int, size: int, axes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of elements of ``size`` bytes along axes of so many bytes a step and so many steps."""
    in_order = sorted(axes)
    piece, starts = size, np.full(1, begin, np.int64)
    for step, count in in_order:
        if step <= piece:  # never again after the first that is not
            piece += step * (count - 1)
        elif count > 1:
            if len(starts) * count > _PIECES:
                return [(begin, begin + size + sum(step * (count - 1) for step, count in in_order))]
            starts = (starts + (np.arange(count) * step)[:, None]).ravel()
    return [(start, start + piece) for start in starts.tolist()]


def array_owner(array: Array) -> "weakref.ref[object]":
    """Return a reference to what an array's memory belongs to."""
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        try:
            weakref.ref(owner.base)
        except TypeError:  # a buffer that cannot be watched: the array that took it can
            break
        owner = owner.base
    return weakref.ref(owner)


def in_device_memory(
    result: T, is_known: Callable[[torch.Tensor], bool], allocate: Callable[[ByteArray], torch.Tensor]
) -> tuple[T, int]:
    """Return a result with its tensors in device memory, and how many bytes of it are new.

    Args:
        result: A tensor, or tensors in anything that is a pytree; the rest stays as it is.
        is_known: Whether a tensor is device memory already, as views of operands are.
        allocate: Makes device memory, uint8, that will hold the bytes it is given.
    """
    made: dict[int, torch.Tensor] = {}

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() == 0 or is_known(tensor):
            return tensor
        storage = tensor.untyped_storage()
        memory = made.get(storage.data_ptr())
        if memory is None:
            held = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
            memory = made[storage.data_ptr()] = allocate(held.numpy())
        whole = memory[: len(memory) // tensor.element_size() * tensor.element_size()].view(tensor.dtype)
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    with torch.inference_mode(mode=False), torch.no_grad():
        moved_result: T = _pytree.tree_map_only(torch.Tensor, moved, result)
    return moved_result, num_bytes(list(made.values()))
