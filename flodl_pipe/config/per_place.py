"""Types of what a plan is told of hosts and devices: one number for all of them, or a list."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from flodl_pipe.config.base import MAX_COUNT, ByteSize, fault, shown
from flodl_pipe.units import parse_bytes

__all__ = ["PerDevice", "SizePerPlace", "SomeBytes"]

_MOST = 1e15


def _number(value: Any) -> Any:
    # Not a number compares as false.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-12 <= value <= _MOST:
        raise fault(f"must be a number above 0, or a list of such numbers, got {shown(value)}")
    return float(value)


def _size(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = parse_bytes(value)
        except ValueError as error:
            raise fault(str(error)) from None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT or value % 1:
        raise fault(
            f"must be bytes, an integer of at least 1 or a text like 8GiB, or a list of them, got {shown(value)}"
        )
    return int(value)


def _each(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            return check(value)
        if not value:
            raise fault("must have at least one number, got an empty list; null leaves it open")
        return [check(item) for item in value]

    return checked


_Rate = Annotated[float, Field(gt=0)]

PerDevice = Annotated[
    float | list[float] | None, BeforeValidator(_each(_number), json_schema_input_type=_Rate | list[_Rate] | None)
]
"""A number above 0 for every device, or a list of them."""

SizePerPlace = Annotated[
    int | list[int] | None, BeforeValidator(_each(_size), json_schema_input_type=ByteSize | list[ByteSize] | None)
]
"""Bytes, of every place alike or a list; of at least 1."""

SomeBytes = Annotated[int, BeforeValidator(_size, json_schema_input_type=ByteSize)]
"""Bytes, at least 1."""
