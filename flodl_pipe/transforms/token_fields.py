"""What token transforms share: the rules for a field of tokens, and fields that take the place of others."""

from collections.abc import Mapping, Sequence

import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import TransformError
from flodl_pipe.keyed.pick_keys import PickKeys

__all__ = [
    "find_field",
    "find_tensor",
    "refuse_jagged",
    "refuse_ragged",
    "require_ids",
    "require_integers",
    "spec_with",
    "with_tensors",
]

_PADDING = (-1, -100)
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


def require_ids(tokens: torch.Tensor, vocab_size: int, ignore: Sequence[int], name: str, keys: PickKeys) -> None:
    """Refuse ids that are not in ``0 .. vocab_size - 1``, other than those to be ignored, and -1 and -100.

    These two are what rows are commonly padded with. Any other negative number is no id: often one that was too large
    for the type it was written in.

    One pass for the smallest and the largest; more only where one of them lies outside. On an accelerator that waits
    for the device once.

    Args:
        tokens: Ids, shape ``(B, ...)``, or jagged.
        vocab_size: Number of ids.
        ignore: Ids that may lie outside: padding.
        name: Field of the tokens.
        keys: Keys of the rows.

    Raises:
        TransformError: naming the first such id, its row and sample, and the remedy.
    """
    is_jagged = tokens.layout == torch.jagged
    ids = tokens.values() if is_jagged else tokens
    if not ids.numel():
        return
    smallest, largest = torch.stack(torch.aminmax(ids)).tolist()
    if smallest >= 0 and largest < vocab_size:
        return
    outside = (ids < 0) | (ids >= vocab_size)
    for ignored in (*_PADDING, *ignore):
        outside &= ids != ignored
    if not outside.any():
        return
    place = outside.nonzero()[0]
    row = int(place[0])
    if is_jagged:
        offsets: torch.Tensor = tokens.offsets()  # type: ignore[attr-defined] # torch does not type its jagged tensors
        row = int((offsets[1:] <= row).sum())
    raise TransformError(
        f"mask_tokens: field {name!r} holds id {int(ids[tuple(place)])} in row {row} (sample {keys.sample[row]}), but "
        f"vocab_size={vocab_size} says that ids are 0 .. {vocab_size - 1}; set vocab_size to what the tokenizer has, "
        "special ids and the mask included, or name ids of padding in ignore"
    )


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
