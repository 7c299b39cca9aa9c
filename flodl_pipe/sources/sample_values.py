"""One value of a user's sample as an array, or in words why it is none.

A value is a tensor, an array, a NumPy scalar or a Python number. Python numbers get the dtypes that torch's
``default_collate`` gives them: ``bool``, ``int64``, ``float64``. Nothing is converted that would lose something: no
gradient is dropped, no mask, no copy made from an accelerator in silence.
"""

from collections.abc import Mapping

import numpy as np
import torch

from flodl_pipe.arrays import Array

__all__ = ["RefusedValueError", "as_array", "native"]

# What both NumPy and torch hold.
_NAMES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_DTYPES = frozenset(np.dtype(name) for name in _NAMES)
_TORCH_DTYPES = frozenset(getattr(torch, name) for name in _NAMES)


class RefusedValueError(Exception):
    """A value cannot be part of a batch; the text says what it is and what to return instead."""


def native(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return a dtype in this machine's byte order."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def as_array(value: object, *, may_be_empty: bool = False) -> Array:
    """Return a value as an array, without a copy where it has memory of its own.

    Args:
        value: What a dataset returned for one field.
        may_be_empty: Whether it may have no elements, as a ragged row of length 0.

    Returns:
        Array of any shape, with at least one element unless it may be empty, of a dtype that torch knows too, in any
        byte order.

    Raises:
        RefusedValueError: if it is anything else.

    >>> as_array(3).dtype.name, as_array(0.5).dtype.name, as_array(True).dtype.name
    ('int64', 'float64', 'bool')
    """
    if isinstance(value, torch.Tensor):
        array = _from_tensor(value)
    elif isinstance(value, np.ndarray | np.generic):
        array = _from_numpy(value)
    elif isinstance(value, bool):
        array = np.array(value, dtype=np.bool_)
    elif isinstance(value, int):
        array = _from_integer(value)
    elif isinstance(value, float):
        array = np.array(value, dtype=np.float64)
    else:
        raise RefusedValueError(_why_not(value))
    if not array.size and not may_be_empty:
        raise RefusedValueError(
            f"holds no values, its shape is {array.shape}; leave the field out, or pad it to one size in the dataset; "
            "rows of different lengths, of none too, are taken by loader.collate=pad"
        )
    return array


def _from_tensor(value: torch.Tensor) -> Array:
    if not value.is_cpu:
        raise RefusedValueError(
            f"is a tensor on {value.device}, and samples are read into host memory; return value.cpu(), or keep the "
            "data on the CPU: batches go to the device together"
        )
    if value.layout is not torch.strided:
        raise RefusedValueError(f"is a tensor of layout {value.layout}; return a dense one, value.to_dense()")
    if value.dtype not in _TORCH_DTYPES:
        narrow = ", or its bits as value.view(torch.int16), viewed back in the training loop"
        remedy = narrow if value.dtype is torch.bfloat16 else ""
        raise RefusedValueError(
            f"is a tensor of {value.dtype}, which NumPy does not know; return value.float(){remedy}"
        )
    if value.requires_grad:
        raise RefusedValueError(
            "is a tensor that requires grad, and a batch carries no graph; return value.detach(), or compute it under "
            "torch.no_grad()"
        )
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    array: Array = value.numpy()
    return array


def _from_numpy(value: Array | np.generic) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise RefusedValueError("is a masked array, and its mask would be lost; return value.filled(number)")
    array: Array = np.asarray(value)
    dtype = array.dtype
    if native(dtype) not in _DTYPES:
        remedies = {
            "O": "an object array (often of rows of unequal length); make them one numeric array",
            "U": "text; turn it into ids in the dataset",
            "T": "text; turn it into ids in the dataset",
            "S": "bytes; return them as uint8, np.frombuffer(value, np.uint8), all of one length",
            "V": "a structured or raw array; return its fields one by one, in a dict",
            "M": "points in time; return value.astype('int64')",
            "m": "durations; return value.astype('int64')",
        }
        what = remedies.get(dtype.kind, "a type that torch does not know; return value.astype('float32')")
        raise RefusedValueError(f"is of dtype {dtype}: {what}")
    return array


def _from_integer(value: int) -> Array:
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError:
        raise RefusedValueError(f"is the integer {value}, which does not fit int64; return np.uint64(value)") from None


def _why_not(value: object) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if value is None:
        return "is None; return a number, or leave the field out"
    if isinstance(value, str):
        text = repr(value if len(value) <= 40 else f"{value[:37]}...")
        return f"is text, {text}, and a batch holds numbers; turn it into ids in the dataset, or leave the field out"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"is {name}; return it as uint8, np.frombuffer(value, np.uint8), all of one length"
    if isinstance(value, list | tuple | set | Mapping):
        return f"is a {name} inside a sample; return one array or tensor, or give each part a field of its own"
    if kind.__module__.partition(".")[0] == "PIL":
        return "is a PIL image; return np.asarray(value), or torchvision's pil_to_tensor(value), all of one size"
    return f"is {name}; return a tensor, an array or a number"
