"""What the steps of the section ``transforms`` have in common: names of fields, and their ranges."""

import sys
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from flodl_pipe.config.base import StrictModel, fault, shown

__all__ = [
    "MAX_SIDE",
    "Amount",
    "FieldName",
    "Fraction",
    "PerChannel",
    "Range",
    "Size",
    "StepConfig",
    "pair_of",
    "range_within",
]


MAX_SIDE = 65_536
"""Most pixels of an image's side."""


class StepConfig(StrictModel):
    """Base of every kind of transform."""


def _field_name(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise fault(f"must be the name of a field, got {shown(value)}")
    return value


FieldName = Annotated[str, BeforeValidator(_field_name)]
"""Name of a field of the batch."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
"""A probability or a share."""

Amount = Annotated[float, Field(ge=0.0)]
"""A strength, 0 for none."""


_Numbers = Annotated[list[float], Field(min_length=1)]


def _per_channel(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [value]
    if value is None or isinstance(value, list | tuple):
        return value
    raise fault(f"must be a number, or a list of one for each channel, got {shown(value)}")


PerChannel = Annotated[_Numbers | None, BeforeValidator(_per_channel, json_schema_input_type=float | _Numbers | None)]
"""One number for each channel; one alone is for all."""

_Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


def _size(value: Any) -> Any:
    numbers = value if isinstance(value, list | tuple) else [value, value]
    whole = [number for number in numbers if not isinstance(number, bool) and isinstance(number, int | float)]
    if len(numbers) != 2 or len(whole) != 2 or not all(1 <= n <= MAX_SIDE and n == int(n) for n in whole):
        raise fault(f"must be an integer from 1 to {MAX_SIDE}, or [height, width], got {shown(value)}")
    return [int(number) for number in whole] if isinstance(value, list | tuple) else int(value)


Size = Annotated[
    int | list[int],
    BeforeValidator(_size, json_schema_input_type=_Side | Annotated[list[_Side], Field(min_length=2, max_length=2)]),
]
"""Height and width, or one number for both."""


def pair_of(size: int | list[int]) -> tuple[int, int]:
    """Return height and width of a :data:`Size`.

    >>> pair_of(32), pair_of([24, 32])
    ((32, 32), (24, 32))
    """
    return (size, size) if isinstance(size, int) else (size[0], size[1])


Range = Annotated[list[float], Field(min_length=2, max_length=2)]
"""Two numbers, the smaller one first."""


def range_within(most: float, least: float = 0.0) -> AfterValidator:
    """Return the check of a range of numbers above 0, from ``least`` to ``most``."""

    def check(value: list[float]) -> list[float]:
        if not max(least, sys.float_info.min) <= value[0] <= value[1] <= most:
            bound = f"from {least:g} to {most:g}" if least else f"above 0 and at most {most:g}"
            raise fault(f"must be two numbers {bound}, the smaller one first, got {shown(value)}")
        return value

    return AfterValidator(check)
