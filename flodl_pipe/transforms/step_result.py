"""What a step of a chain gave back, held to the contract of a transform.

As many rows in every field, on the same device, each field with memory of its own. Keys, weight, valid rows and cursor
are not a transform's to change: the chain carries them past it.
"""

from typing import Any

import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import TransformError

__all__ = ["Span", "checked", "spans_of"]

Span = tuple[int, int, int]
"""Storage, first byte, and one past the last byte of a tensor's elements, all addresses."""


def checked(result: Any, step: str, given: Batch, spans: dict[str, Span]) -> Batch:
    """Return the fields that a step gave back, with all else as it was given.

    Args:
        result: What it returned.
        step: Its name, for messages.
        given: The batch that it was called with.
        spans: Where the fields of ``given`` lay before the call; see :func:`spans_of`.

    Raises:
        TransformError: if it is no batch of the same rows on the same device.
    """
    if not isinstance(result, Batch):
        raise TransformError(f"transform {step!r} returned {_what(result)}")
    if not result.names:
        raise TransformError(f"transform {step!r} returned a batch of no fields; return at least one")
    device = given.values()[0].device
    for name, tensor in result.items():
        if not isinstance(tensor, torch.Tensor):
            raise TransformError(
                f"transform {step!r} returned field {name!r} as {type(tensor).__qualname__}; a field is a tensor of "
                f"{given.size} rows"
            )
        if tensor.ndim == 0 or tensor.size(0) != given.size:
            raise TransformError(
                f"transform {step!r} returned field {name!r} of shape {_shape(tensor)}, and the batch has {given.size} "
                f"rows{_was(given, name)}; a transform returns as many rows as it gets, in the same order: to leave "
                "samples out, use a subset or a sampler"
            )
        if tensor.device != device:
            raise TransformError(
                f"transform {step!r} returned field {name!r} on device {tensor.device}, and the batch is on {device}; "
                "make new tensors with device=batch[FIELD].device"
            )
        if (
            tensor.layout == torch.strided
            and tensor.numel()  # what has no elements may have any strides
            and any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        ):
            raise TransformError(
                f"transform {step!r} returned field {name!r} {_shape(tensor)} expanded: some of its elements are one "
                "in memory, so that it cannot be changed in place; return it with .contiguous()"
            )
    _require_same_rows(result, step, given)
    _require_own_memory(result, step, spans)
    return given.with_fields(result.names, result.values())


def spans_of(batch: Batch) -> dict[str, Span]:
    """Return where the elements of each field lie."""
    return {name: _span(tensor) for name, tensor in batch.items()}


def _what(result: object) -> str:
    if result is None:
        return "nothing; is a return statement missing? End it with `return batch`"
    example = "batch.with_fields(names, tensors)"
    if isinstance(result, dict):
        return f"a dict; return {example} with names=tuple(fields) and tensors=tuple(fields.values())"
    if isinstance(result, torch.Tensor):
        return f"a tensor of shape {_shape(result)}; return the batch that it belongs to: {example}"
    return f"{type(result).__qualname__}; return the batch, or {example} where fields are new"


def _shape(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.shape))


def _was(given: Batch, name: str) -> str:
    return f" (before: {_shape(given[name])})" if given.has(name) else ""


def _require_same_rows(result: Batch, step: str, given: Batch) -> None:
    if result.size != given.size:
        raise TransformError(
            f"transform {step!r} returned keys of {result.size} rows for a batch of {given.size}; return "
            "batch.with_fields(names, tensors), which keeps them"
        )
    if result.valid is not None and result.valid is not given.valid:
        raise TransformError(
            f"transform {step!r} changed batch.valid, which says what rows the loader filled up; to leave rows out of "
            "the loss, make a mask that is a field of its own"
        )
    if result.peek_weight() not in (1.0, given.peek_weight()):
        raise TransformError(
            f"transform {step!r} changed batch.weight from {given.weight} to {result.weight}; it is the loader's: "
            "weigh samples by a field of its own"
        )


def _require_own_memory(result: Batch, step: str, before: dict[str, Span]) -> None:
    """Refuse fields in one storage, unless they came in it: on a device, fields may come in one transfer."""
    storages = [storage for storage, _, _ in before.values()]
    came_together = {storage for storage in storages if storages.count(storage) > 1}
    seen: list[tuple[str, Span]] = []
    for name, tensor in result.items():
        span = _span(tensor)
        storage, first, end = span
        for other, (other_storage, other_first, other_end) in seen:
            overlap = first < other_end and other_first < end
            if first < end and (overlap or (storage == other_storage and storage not in came_together)):
                raise TransformError(
                    f"transform {step!r} returned fields {other!r} {_shape(result[other])} and {name!r} "
                    f"{_shape(tensor)} that share memory, so that changing one may change the other; return "
                    f"{name}.clone()"
                )
        seen.append((name, span))


def _span(tensor: torch.Tensor) -> Span:
    if tensor.layout == torch.jagged:
        tensor = tensor.values()
    if not tensor.numel():
        return 0, 0, 0
    first = tensor.data_ptr()
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage().data_ptr(), first, first + (reach + 1) * tensor.element_size()
