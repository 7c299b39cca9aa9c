"""Section ``source``, kind ``records``: files of records of equal size, with a layout declared by the user."""

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from flodl_pipe.config.base import (
    FIELD_DTYPES,
    Count,
    LocalPaths,
    NonNegative,
    StrictModel,
    dtype_name,
    fault,
    shown,
)
from flodl_pipe.config.source_base import SourceSection

__all__ = ["FieldDtype", "RecordField", "RecordsConfig", "item_bytes"]

FieldDtype = Annotated[
    Literal[
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
    ],
    BeforeValidator(dtype_name(FIELD_DTYPES)),
    WithJsonSchema({"enum": list(FIELD_DTYPES)}),
]
"""Type of one element of a record's field, 1 to 8 bytes, little endian; NumPy's spellings become its name."""


class RecordField(StrictModel):
    """One field of a fixed-size record: where it starts and what it holds."""

    offset: NonNegative
    """First byte of the field, counted from the start of the record."""

    dtype: FieldDtype
    """Type of an element."""

    shape: list[Count] = Field(default=[])
    """Shape of the field; empty for a single number."""

    @property
    def num_bytes(self) -> int:
        """Bytes the field takes in a record."""
        return math.prod(self.shape) * item_bytes(self.dtype)


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element of a dtype given by name.

    >>> item_bytes("bool"), item_bytes("uint16"), item_bytes("float64")
    (1, 2, 8)
    """
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz") or 8) // 8


class RecordsConfig(SourceSection):
    """Files of records of equal size, for example CIFAR's binary batches."""

    kind: Literal["records"] = "records"
    """Fixed-size records."""

    path: LocalPaths
    """A file, a folder, a glob pattern, or a list of them."""

    record_bytes: Count
    """Bytes of a record, padding included."""

    header_bytes: NonNegative = 0
    """Bytes to skip at the start of each file."""

    fields: Annotated[dict[str, RecordField], Field(min_length=1)]
    """Name -> `{offset, dtype, shape}`; batches hold the fields in this order. Fields may overlap or leave gaps."""

    @model_validator(mode="after")
    def _fields_fit(self) -> "RecordsConfig":
        for name, field in self.fields.items():
            if not name.isidentifier():
                raise fault(
                    f"{shown(name)} is not a field name: use letters, digits and _, as `model(**batch)` needs it",
                    at=["fields", name],
                )
            end = field.offset + field.num_bytes
            if end > self.record_bytes:
                raise fault(
                    f"ends at byte {end} (offset {field.offset} + {field.num_bytes} bytes), past the end of a record, "
                    f"record_bytes={self.record_bytes}; correct its offset, dtype or shape, or record_bytes",
                    at=["fields", name],
                )
        return self

    def field_names(self) -> tuple[str, ...]:
        return tuple(self.fields)
