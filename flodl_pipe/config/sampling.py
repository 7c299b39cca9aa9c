"""Section ``sampling``: the order of the samples and what happens at the end of an epoch."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from flodl_pipe.config.base import Seed, StrictModel, fault, shown

__all__ = ["DropLast", "SamplingConfig"]


def _drop_last(value: Any) -> Any:
    if isinstance(value, bool) or value == "pad":
        return value
    raise fault(f"must be true, false or 'pad', got {shown(value)}")


DropLast = Annotated[bool | Literal["pad"], BeforeValidator(_drop_last, json_schema_input_type=bool | Literal["pad"])]
"""The last-batch rule."""


class SamplingConfig(StrictModel):
    """Which sample stands where in an epoch."""

    seed: Seed = 42
    """Seed of the order, 0 .. 2**64 - 1. Equal seeds give equal orders on every machine."""

    shuffle: bool = True
    """A new order each epoch; false: storage order."""

    drop_last: DropLast = True
    """The last, short batch: true leaves it out, false delivers it short, pad fills it from the epoch's head with
    rows that are marked."""
