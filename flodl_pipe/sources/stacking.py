"""Many values of one field in one array: what all of them must have in common is compared once, by calls in C.

A generator counts as a call for each value, too: sets are made of what is compared.

A value at a time, the same comparisons take five to ten times as long as torch's ``default_collate``.
"""

import contextlib
import operator
from collections.abc import Sequence
from types import NoneType
from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import Array
from flodl_pipe.batch.ragged import Ragged

__all__ = ["Stacker", "share_memory"]

# Torch works with threads of its own on more elements than that, in each of our threads.
_TORCH_GRAIN = 32_768
_UNCHANGING = (tuple, bool, int, float, np.generic)
# Fewer are copied one by one.
_FEW = 4
# Bytes of a value that are looked at, and odd numbers to add them up by.
_LOOKED_AT = 64
_WEIGHTS = np.random.default_rng(0).integers(0, 2**63, _LOOKED_AT // 8, dtype=np.uint64) * 2 + 1
_dtype, _shape, _base = operator.attrgetter("dtype"), operator.attrgetter("shape"), operator.attrgetter("base")
_requires_grad = operator.attrgetter("requires_grad")


@final
class Stacker:
    """Stacks values of one field.

    Args:
        dtype: Name of the dtype that each must have.
        shape: Shape of each.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self._dtype, self._shape = np.dtype(dtype), shape
        self._torch_dtype = getattr(torch, dtype)

    def stack(self, values: Sequence[object], out: Array | None = None) -> Array | None:
        """Return values as rows of one array.

        Args:
            values: One or more.
            out: Where they go, C-contiguous, shape ``(len(values), *shape)``; what it holds is of no meaning where None
                is returned. None: they go to an array of their own.

        Returns:
            Shape ``(len(values), *shape)``; None where they are not plainly of the dtype and shape, which does not say
            that they are wrong.
        """
        kinds = set(map(type, values))
        kind = kinds.pop()
        if kinds:
            return None
        if issubclass(kind, torch.Tensor):
            return self._tensors(values, out) if kind is torch.Tensor else None  # type: ignore[arg-type]
        if kind is np.ndarray or kind is np.memmap:
            return self._arrays(values, out)  # type: ignore[arg-type]
        if self._shape:
            return None
        if kind is float or kind is bool or kind is int:
            is_own = self._dtype == {float: np.float64, bool: np.bool_, int: np.int64}[kind]
        else:
            is_own = issubclass(kind, np.generic) and self._dtype.type is kind
        if not is_own:
            return None
        try:
            return _put(np.array(values, dtype=self._dtype), out)
        except OverflowError:
            return None

    def join(self, values: Sequence[object]) -> Ragged | None:
        """Return values of a ragged field one after the other; as :meth:`stack`, shape ``(length, *shape)`` each."""
        kinds = set(map(type, values))
        kind = kinds.pop()
        if kinds or kind not in (torch.Tensor, np.ndarray, np.memmap):
            return None
        if set(map(_dtype, values)) != {self._torch_dtype if kind is torch.Tensor else self._dtype}:
            return None
        if kind is torch.Tensor:
            try:
                values = [value.numpy() for value in values]  # type: ignore[attr-defined]
            except (RuntimeError, TypeError):  # on a device, sparse, or part of a graph
                return None
        arrays: Sequence[Array] = values  # type: ignore[assignment]
        if {(array.ndim, array.shape[1:]) for array in arrays} != {(1 + len(self._shape), self._shape)}:
            return None
        return Ragged.of(arrays)

    def _tensors(self, values: Sequence[torch.Tensor], out: Array | None) -> Array | None:
        first = values[0]
        if first.shape != self._shape or not first.is_cpu or first.layout is not torch.strided:
            return None
        if operator.countOf(map(_dtype, values), self._torch_dtype) < len(values):
            return None
        if not torch.is_grad_enabled() and any(map(_requires_grad, values)):
            return None  # else what they are brought together in requires it as well, and is no array
        try:
            together = _TORCH_GRAIN // max(1, first.numel())
            if together >= len(values):
                return _put(torch.stack(values).numpy(), out)  # type: ignore[arg-type]
            out = self._room(len(values)) if out is None else out
            if together >= _FEW:
                for low in range(0, len(values), together):
                    out[low : low + together] = torch.stack(values[low : low + together]).numpy()  # type: ignore[arg-type]
                return out
            if operator.countOf(map(_shape, values), first.shape) < len(values):
                return None
            for row, value in enumerate(values):
                out[row] = value.numpy()  # not of one that requires grad
        except (RuntimeError, TypeError, NotImplementedError):  # of several devices, layouts or shapes
            return None
        return out

    def _arrays(self, values: Sequence[Array], out: Array | None) -> Array | None:
        if set(map(_dtype, values)) != {self._dtype} or set(map(_shape, values)) != {self._shape}:
            return None
        if not self._shape:
            return _put(np.array(values, dtype=self._dtype), out)
        out = self._room(len(values)) if out is None else out
        np.concatenate(values, out=out.reshape(-1, *self._shape[1:]))
        return out

    def _room(self, num_rows: int) -> Array:
        return np.empty((num_rows, *self._shape), self._dtype)


def _put(stacked: Array, out: Array | None) -> Array:
    if out is None:
        return stacked
    out[...] = stacked
    return out


def share_memory(
    samples: Sequence[object], columns: Sequence[Sequence[object]], blocks: Sequence[Array | None]
) -> bool:
    """Return whether two samples are one thing, or have values in the same memory: one may have overwritten the other.

    What lies in the same memory has the same bytes, so that where those of all samples differ nothing is shared. That
    is seen from a few of the bytes, and quicker than where each value lies.

    Args:
        samples: What held the values: a list or a dict may be filled anew.
        columns: The values of each field; all alive, as memory of one that is gone might be another's.
        blocks: The values of each field in one array, shape ``(K, ...)``; None where they are not brought together.
    """
    if len(samples) < 2:
        return False
    may_change = not all(issubclass(kind, _UNCHANGING) for kind in set(map(type, samples)))
    if may_change and len(set(map(id, samples))) < len(samples):
        return True
    unlike: set[int] = set()
    is_doubtful = False
    for column, block in zip(columns, blocks, strict=True):
        if not any(map(_has_memory, set(map(type, column)))):
            continue
        some = [] if block is None else _some_bytes(block)
        before = len(unlike)
        unlike.update(some)
        is_doubtful |= len(unlike) - before < len(column)
    if not is_doubtful:
        return False
    held = [places for places in map(_places, columns) if places]
    if len(set().union(*held)) == sum(map(len, held)):
        return False
    places = list(map(set, zip(*held, strict=True)))  # fields of one sample may share theirs
    return len(set().union(*places)) < sum(map(len, places))


def _some_bytes(block: Array) -> list[int]:
    """Return a number made of up to 64 bytes from the middle of each row; none where rows have fewer than 8."""
    rows = block.reshape(len(block), -1).view(np.uint8)
    count = min(_LOOKED_AT, rows.shape[1]) // 8
    if not count:
        return []
    begin = (rows.shape[1] - 8 * count) // 2
    words = np.ascontiguousarray(rows[:, begin : begin + 8 * count]).view(np.uint64)
    found: list[int] = (words @ _WEIGHTS[:count]).tolist()
    return found


def _places(values: Sequence[object]) -> list[object]:
    """Return what tells where each value lies in memory; nothing for values that have none of their own."""
    kinds = set(map(type, values))
    if kinds == {torch.Tensor}:
        try:
            return list(map(torch.Tensor.data_ptr, values))  # type: ignore[arg-type]
        except (RuntimeError, NotImplementedError):  # no memory that is strided
            return list(map(id, values))
    if kinds == {np.ndarray} and set(map(type, map(_base, values))) == {NoneType}:
        return list(map(id, values))
    if kinds.isdisjoint((np.ndarray, torch.Tensor)) and not any(map(_has_memory, kinds)):
        return []
    return [
        value.__array_interface__["data"][0] if isinstance(value, np.ndarray) else _place(value) for value in values
    ]


def _has_memory(kind: type) -> bool:
    return issubclass(kind, np.ndarray | torch.Tensor)


def _place(value: object) -> object:
    with contextlib.suppress(RuntimeError, NotImplementedError):
        if isinstance(value, torch.Tensor):
            return value.data_ptr()
    return id(value)
