"""The model every section derives from, and the field types that sections share.

A section is a frozen Pydantic model that refuses unknown keys. Values from YAML are validated in strict JSON mode,
where ``"3"`` is not a number and ``1`` is not a truth value; the Python constructors stay lax where that loses
nothing. Field types whose rule spans several shapes (``auto`` or a number, one path or several) check it in one
validator, so that a wrong value is one problem with one message.
"""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from flodl_pipe.units import parse_bytes

__all__ = [
    "AutoOr",
    "ByteSize",
    "Count",
    "LocalPath",
    "LocalPaths",
    "NonNegative",
    "Seed",
    "StrictModel",
    "TokenDtype",
    "absolute",
    "auto_or_integer",
    "dtype_name",
    "fault",
    "shown",
]

MAX_COUNT = 2**62
"""Largest count: the order's bijection covers indices up to here."""


class StrictModel(BaseModel):
    """Base of every section: frozen, unknown keys refused, field docs taken from the source."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        validate_default=True,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )


def shown(value: object) -> str:
    """Return a value as a message shows it: text in quotes, null and booleans as in YAML, 60 characters at most.

    >>> shown("8G"), shown(None), shown(True), shown(0)
    ("'8G'", 'null', 'true', '0')
    """
    if value is None:
        return "null"
    text = repr(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def fault(message: str, at: Sequence[str | int] = ()) -> PydanticCustomError:
    """Return an error to raise in a validator.

    Args:
        message: Value, rule and remedy.
        at: Keys below the model or field being validated that are to blame; for a rule over several keys the one to
            change.
    """
    return PydanticCustomError("rule", "{text}", {"text": message, "at": list(at)})


def _integral(value: Any) -> Any:
    """Take an integral float: YAML and the override grammar read 1e6 as one. Nothing else is converted."""
    if isinstance(value, bool):
        raise fault(f"must be an integer, got {shown(value)}")
    if not isinstance(value, float) or not math.isfinite(value) or not value.is_integer():
        return value
    if abs(value) > 2**53:  # there a float no longer names one integer
        digits = f", {int(value)}" if abs(value) < 2**64 else ""
        raise fault(
            f"must be an integer, got {shown(value)}: a number with an exponent or a point is a float, and floats "
            f"count as integers only up to 2**53; write all its digits{digits}"
        )
    return int(value)


def _byte_size(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return parse_bytes(value)
        except ValueError as error:
            raise fault(str(error)) from None
    return _integral(value)


Count = Annotated[int, Field(ge=1, le=MAX_COUNT), BeforeValidator(_integral)]
"""An integer of at least 1; 1e6 is taken for 1000000."""

NonNegative = Annotated[int, Field(ge=0, le=MAX_COUNT), BeforeValidator(_integral)]
"""An integer of at least 0."""

Seed = Annotated[int, Field(ge=0, lt=2**64), BeforeValidator(_integral)]
"""One 64-bit word of the order's key."""

ByteSize = Annotated[
    int,
    BeforeValidator(_byte_size),
    Field(ge=0),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([KMGTP]i?)?B\s*$"},
            ]
        }
    ),
]
"""Bytes: an integer, or text such as 8GiB or 80GB."""

AutoOr = Literal["auto"] | int
"""What :func:`auto_or_integer` lets through."""


def auto_or_integer(minimum: int, maximum: int = MAX_COUNT) -> BeforeValidator:
    """Return the validator of a field that takes ``auto`` or an integer from ``minimum`` to ``maximum``."""

    def check(value: Any) -> Any:
        number = value if isinstance(value, bool) else _integral(value)
        if value == "auto" or (type(number) is int and minimum <= number <= maximum):
            return number
        span = f"at least {minimum}" if maximum == MAX_COUNT else f"from {minimum} to {maximum}"
        raise fault(f"must be 'auto' or an integer {span}, got {shown(value)}")

    return BeforeValidator(
        check, json_schema_input_type=Literal["auto"] | Annotated[int, Field(ge=minimum, le=maximum)]
    )


def absolute(value: Any, what: str = "") -> str:
    """Return a path made absolute against the working directory; raise the fault of what is none."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise fault(f"{what}must be a path, got {shown(value)}")
    if "://" in text:
        return text
    try:
        return str(Path(text).expanduser().absolute())
    except RuntimeError:
        raise fault(f"{what}{shown(text)} names a home folder that cannot be found; write the path out") from None


def _absolute_each(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return absolute(value)
    if not value:
        raise fault("must name at least one path, got an empty list")
    return [absolute(item, f"item {place} ") for place, item in enumerate(value)]


LocalPath = Annotated[str, BeforeValidator(absolute, json_schema_input_type=str)]
"""A path, made absolute against the working directory when the config is read.

``~`` is expanded, glob characters stay, and text with ``://`` is left as it is. ``..`` is not folded: behind a link it
means another folder.
"""

LocalPaths = Annotated[str | list[str], BeforeValidator(_absolute_each, json_schema_input_type=str | list[str])]
"""One :data:`LocalPath`, or a list of at least one."""


def _spellings(*names: str) -> dict[str, str]:
    """Map every way NumPy spells a little-endian type to its name: ``uint16``, ``u2``, ``<u2``; one byte: ``|u1``."""
    table: dict[str, str] = {}
    for name in names:
        kind, bits = name.rstrip("0123456789"), int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 8)
        code = f"{kind[0]}{bits // 8}"
        table |= {name: name, code: name, ("|" if bits == 8 else "<") + code: name}
    return table


def dtype_name(accepted: dict[str, str]) -> Callable[[Any], str]:
    """Return the validator that turns an accepted spelling of a dtype into its name."""
    names = ", ".join(dict.fromkeys(accepted.values()))
    short = ", ".join(spelling for spelling in accepted if spelling not in accepted.values())

    def check(value: Any) -> str:
        if isinstance(value, str) and value in accepted:
            return accepted[value]
        swapped = isinstance(value, str) and value.startswith(">") and f"<{value[1:]}" in accepted
        hint = " (big-endian data is not supported: rewrite the file)" if swapped else ""
        raise fault(f"{shown(value)} is not an accepted dtype{hint}; use one of {names} (or {short})")

    return check


TOKEN_DTYPES = _spellings("uint8", "uint16", "uint32", "int32", "int64")
FIELD_DTYPES = _spellings(
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
)

TokenDtype = Annotated[
    Literal["uint8", "uint16", "uint32", "int32", "int64"],
    BeforeValidator(dtype_name(TOKEN_DTYPES)),
    WithJsonSchema({"enum": list(TOKEN_DTYPES)}),
]
"""Integer type of a stored token, little endian; NumPy's spellings become its name."""
