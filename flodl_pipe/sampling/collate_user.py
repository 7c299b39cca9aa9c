"""Collation by a function of the user's own, called with the list of samples like a ``collate_fn`` of torch.

A sample is what a dataset would have returned: fields without names (``"0"``, ``"1"``, ...) as a tuple, or the bare
value where there is one; fields with names as a dict. Its values are tensors, numbers ones without axes. They belong to
the function: it may return them, or change them.

What comes back is a tensor, or a tuple, list, dict, NamedTuple or dataclass of tensors or arrays, each with one row for
every sample: keys, weights and transforms of a batch go by its rows.

Shape letter: ``B`` rows.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch

from flodl_pipe.arrays import Array
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import TransformError
from flodl_pipe.sampling.collate_stack import fresh

__all__ = ["UserCollate"]

_WANTED = "return a tensor, a tuple or a dict of tensors, each with one row for every sample"


@runtime_checkable
class _NamedFields(Protocol):
    """What a NamedTuple has and a tuple lacks."""

    _fields: tuple[str, ...]


@final
class UserCollate:
    """Calls a function with the samples of a batch; a :class:`flodl_pipe.sampling.collate.Collate`.

    Args:
        function: ``function(samples)``. Readers may call it from several threads at once, and what it returns must hang
            on the samples alone.
    """

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._name = _name(function)
        self.tag = f"function({self._name})"

    def check(self, spec: SampleSpec) -> None:
        """Accept any fields: what the function makes of them shows when it is called."""

    def output(self, spec: SampleSpec) -> None:
        """Return None."""

    def __call__(self, rows: Columns) -> tuple[tuple[str, ...], tuple[torch.Tensor, ...]]:
        """Call the function; see :meth:`flodl_pipe.sampling.collate.Collate.__call__`.

        Raises:
            TransformError: if what it returns is no batch of these rows.
            Exception: what the function raises, itself, with a note that names it.
        """
        try:
            made = self._function(_samples(rows))
        except Exception as error:
            error.add_note(f"while loader.collate called {self._name} with {_num_rows(rows)} samples")
            raise
        fields = self._take_apart(made)
        tensors = [self._tensor(name, value) for name, value in fields.items()]
        self._require_rows(fields, tensors, _num_rows(rows))
        return tuple(fields), tuple(_apart(tensors))

    def _take_apart(self, made: object) -> dict[str, object]:
        if isinstance(made, torch.Tensor | np.ndarray):
            return {"0": made}
        if isinstance(made, Mapping):
            odd = next((key for key in made if not isinstance(key, str)), None)
            if odd is not None:
                raise TransformError(
                    f"{self._name} returned a mapping with the key {odd!r}; keys name the fields of a batch and must "
                    "be text"
                )
            fields: dict[str, object] = dict(made)
        elif isinstance(made, tuple) and isinstance(made, _NamedFields):
            fields = dict(zip(made._fields, made, strict=True))
        elif dataclasses.is_dataclass(made) and not isinstance(made, type):
            fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
        elif isinstance(made, tuple | list):
            fields = {str(place): value for place, value in enumerate(made)}
        elif made is None:
            raise TransformError(f"{self._name} returned None; is a return statement missing? It must {_WANTED}")
        else:
            raise TransformError(f"{self._name} returned {_kind(made)}; {_WANTED}")
        if not fields:
            raise TransformError(f"{self._name} returned {_kind(made)} without fields; {_WANTED}")
        return fields

    def _tensor(self, name: str, value: object) -> torch.Tensor:
        place = f"{self._name} returned, as field {name!r},"
        if isinstance(value, np.ndarray):
            try:
                # Read-only arrays too, and views: whatever it is, the batch's memory is to be its own.
                value = fresh(value)
            except TypeError as error:
                raise TransformError(f"{place} an array of {value.dtype}: {error}; convert it") from None
        if not isinstance(value, torch.Tensor):
            raise TransformError(f"{place} {_kind(value)}; {_WANTED}")
        if not value.is_cpu:
            raise TransformError(
                f"{place} a tensor on {value.device}; samples are collated in host memory, keep them on the CPU: "
                "batches go to the device together"
            )
        if value.requires_grad:
            raise TransformError(f"{place} a tensor that requires grad, and a batch carries no graph; detach it")
        return value

    def _require_rows(self, names: Mapping[str, object], tensors: Sequence[torch.Tensor], num_rows: int) -> None:
        for name, tensor in zip(names, tensors, strict=True):
            if not tensor.dim():
                raise TransformError(f"{self._name} returned a single number as field {name!r}; {_WANTED}")
            if tensor.size(0) != num_rows:
                raise TransformError(
                    f"{self._name} returned {tensor.size(0)} rows as field {name!r} for {num_rows} samples; a batch "
                    "has one row for every sample, which its keys, weights and transforms go by: join or split rows "
                    "in the training loop, or in the dataset"
                )


def _samples(rows: Columns) -> list[Any]:
    """Return the samples, their values in new memory."""
    columns = [_values(values) for values in rows.values()]
    names = tuple(rows)
    if names != tuple(map(str, range(len(names)))):
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    if len(names) == 1:
        return list(columns[0])
    return list(zip(*columns, strict=True))


def _values(rows: Array | Ragged) -> Sequence[torch.Tensor]:
    if isinstance(rows, Ragged):
        parts: Sequence[torch.Tensor] = torch.split(fresh(rows.values), rows.lengths.tolist())
        return parts
    return fresh(rows).unbind(0)


def _num_rows(rows: Columns) -> int:
    return len(next(iter(rows.values())))


def _apart(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of which no two share memory, and none has rows lying over each other."""
    seen: set[int] = set()
    result = []
    for tensor in tensors:
        own = tensor
        if tensor.layout is torch.strided and not tensor.is_nested:
            where = tensor.untyped_storage().data_ptr()
            if where in seen or 0 in tensor.stride():
                own = tensor.clone(memory_format=torch.contiguous_format)
            seen.add(where)
        result.append(own)
    return result


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if isinstance(name, str) else _kind(function)
