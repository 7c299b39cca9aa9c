"""What transforms of images ask of their fields, before a batch (the spec) and of each batch (its tensors).

One rule judges both: a tensor is described as the field it would be, and that description is checked.
"""

import torch

from flodl_pipe.arrays import Array
from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import TransformError

__all__ = [
    "check_image",
    "check_unit",
    "field_of_batch",
    "field_of_spec",
    "on_device",
    "with_spec_field",
    "with_tensors",
]

_DTYPES = ("uint8", "float32")


def field_of_spec(spec: SampleSpec, name: str, kind: str) -> Field:
    """Return a field of the spec.

    Args:
        spec: Fields of a sample.
        name: Which one.
        kind: The transform that asks, as a recipe names it; errors begin with it.

    Raises:
        TransformError: if there is no such field.
    """
    if name not in spec.names:
        raise TransformError(_missing(name, spec.names, kind))
    return spec.fields[spec.names.index(name)]


def field_of_batch(batch: Batch, name: str, kind: str) -> tuple[torch.Tensor, Field]:
    """Return a tensor of the batch and what field its rows are.

    Raises:
        TransformError: if there is no such field.
    """
    if not batch.has(name):
        raise TransformError(_missing(name, batch.names, kind))
    tensor = batch[name]
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        return tensor, Field(name, dtype, is_ragged=True)
    return tensor, Field(name, dtype, tuple(tensor.shape[1:]))


def check_image(field: Field, kind: str) -> tuple[int, int, int]:
    """Return channels, height and width of a field of images.

    Raises:
        TransformError: if the rows are no images ``(channels, height, width)`` of uint8 or float32.
    """
    if field.is_ragged or len(field.shape) != 3 or 0 in field.shape:
        raise TransformError(
            f"{kind}: field {field} holds no images; rows of one shape (channels, height, width) are needed, so name "
            "another field or let the source deliver that shape"
        )
    if field.dtype not in _DTYPES:
        raise TransformError(
            f"{kind}: field {field} is {field.dtype}, and images are {' or '.join(_DTYPES)}; put to_float before it, "
            "or let the source deliver one of these"
        )
    channels, height, width = field.shape
    return channels, height, width


def check_unit(dtype: str, mean: tuple[float, ...], std: tuple[float, ...], name: str) -> None:
    """Refuse figures of bytes for pictures of bytes, which are scaled to 0 .. 1 before.

    Raises:
        TransformError: naming the figures and the remedy.
    """
    if dtype == "uint8" and not (0 <= min(mean) <= max(mean) <= 1 and max(std) <= 1):
        raise TransformError(
            f"normalize: field {name!r} is uint8 and scaled to 0 .. 1 first, so its mean is within 0 .. 1 and its std "
            f"at most 1, but mean is {mean} and std {std}; divide figures of 0 .. 255 by 255"
        )


def with_tensors(batch: Batch, changed: dict[str, torch.Tensor]) -> Batch:
    """Return the batch with some of its tensors replaced."""
    return batch.with_fields(batch.names, tuple(changed.get(name, tensor) for name, tensor in batch.items()))


def with_spec_field(spec: SampleSpec, changed: Field) -> SampleSpec:
    """Return the spec with the field of that name replaced."""
    return SampleSpec(tuple(changed if field.name == changed.name else field for field in spec))


def on_device(array: Array, device: torch.device) -> torch.Tensor:
    """Return a tensor of the array's values on a device; of a small array, as it is a copy that may wait."""
    return torch.from_numpy(array).to(device)


def _missing(name: str, names: tuple[str, ...], kind: str) -> str:
    return f"{kind}: there is no field {name!r} among {', '.join(names)}; say which of them it should work on"
