"""What token transforms share: the rules for a field of tokens, and fields that take the place of others."""

from collections.abc import Mapping

import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import TransformError

__all__ = [
    "find_field",
    "find_tensor",
    "refuse_jagged",
    "refuse_ragged",
    "require_integers",
    "spec_with",
    "with_tensors",
]

_INTEGERS = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "int64")


def find_field(spec: SampleSpec, name: str, kind: str) -> Field:
    """Return a field of a spec.

    Raises:
        TransformError: if there is none of this name.
    """
    for field in spec:
        if field.name == name:
            return field
    raise TransformError(_missing(name, spec.names, kind))


def find_tensor(batch: Batch, name: str, kind: str) -> torch.Tensor:
    """Return a field of a batch.

    Raises:
        TransformError: if there is none of this name.
    """
    if not batch.has(name):
        raise TransformError(_missing(name, batch.names, kind))
    return batch[name]


def require_integers(dtype: str, name: str, kind: str) -> None:
    """Refuse a field whose elements are no token ids.

    Raises:
        TransformError: naming the field and its dtype.
    """
    if dtype not in _INTEGERS:
        raise TransformError(f"{kind} takes token ids, integers, and field {name!r} is {dtype}; name another field")


def refuse_ragged(field: Field, kind: str) -> None:
    """Refuse a field whose rows have lengths of their own.

    Raises:
        TransformError: naming the field and the remedy.
    """
    if field.is_ragged:
        raise TransformError(_ragged(field.name, kind))


def refuse_jagged(tensor: torch.Tensor, name: str, kind: str) -> None:
    """Refuse rows that have lengths of their own.

    Raises:
        TransformError: naming the field and the remedy.
    """
    if tensor.layout == torch.jagged:
        raise TransformError(_ragged(name, kind))


def spec_with(spec: SampleSpec, fields: Mapping[str, Field]) -> SampleSpec:
    """Return a spec with some fields replaced, and those that it lacks added at the end."""
    kept = [fields.get(field.name, field) for field in spec]
    return SampleSpec((*kept, *(field for name, field in fields.items() if name not in spec.names)))


def with_tensors(batch: Batch, tensors: Mapping[str, torch.Tensor]) -> Batch:
    """Return a batch with some fields replaced, and those that it lacks added at the end."""
    fields = {**dict(batch.items()), **tensors}
    return batch.with_fields(tuple(fields), tuple(fields.values()))


def _missing(name: str, names: tuple[str, ...], kind: str) -> str:
    return f"{kind} needs a field {name!r}, and there are {', '.join(names)}; name the field of the tokens"


def _ragged(name: str, kind: str) -> str:
    return (
        f"{kind} takes rows of one length, and those of field {name!r} have lengths of their own; cut the data into "
        "windows of one length, or do this to the rows in a function of your own"
    )
