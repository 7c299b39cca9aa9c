"""What transforms of images ask of their fields, before a batch (the spec) and of each batch (its tensors).

One rule judges both: a tensor is described as the field it would be, and that description is checked.
"""

import torch

from flodl_pipe.arrays import Array
from flodl_pipe.batch.batch import Batch
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import ConfigError, TransformError

__all__ = [
    "check_image",
    "field_of_batch",
    "field_of_spec",
    "on_device",
    "require_range",
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


def with_tensors(batch: Batch, changed: dict[str, torch.Tensor]) -> Batch:
    """Return the batch with some of its tensors replaced."""
    return batch.with_fields(batch.names, tuple(changed.get(name, tensor) for name, tensor in batch.items()))


def with_spec_field(spec: SampleSpec, changed: Field) -> SampleSpec:
    """Return the spec with the field of that name replaced."""
    return SampleSpec(tuple(changed if field.name == changed.name else field for field in spec))


def on_device(array: Array, device: torch.device) -> torch.Tensor:
    """Return a tensor of the array's values on a device; of a small array, as it is a copy that may wait."""
    return torch.from_numpy(array).to(device)


def require_range(value: tuple[float, float], least: float, most: float, key: str) -> tuple[float, float]:
    """Return two numbers of ``least .. most`` as floats, the first not above the second, the second above 0.

    Raises:
        ConfigError: if they are not.
    """
    numbers = tuple(float(end) for end in value)
    if len(numbers) != 2 or not least <= numbers[0] <= numbers[1] <= most or numbers[1] == 0.0:
        raise ConfigError.at(
            key, f"must be two numbers in {least:g} .. {most:g}, the smaller one first and not both 0, got {value!r}"
        )
    return numbers[0], numbers[1]


def _missing(name: str, names: tuple[str, ...], kind: str) -> str:
    return f"{kind}: there is no field {name!r} among {', '.join(names)}; say which of them it should work on"
