"""Section ``source``: which data, in which layout. One model per ``kind``.

Only what can be judged without opening a file is checked here; whether the bytes agree is the source's business.
"""

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from flodl_pipe.config.base import (
    FIELD_DTYPES,
    Count,
    LocalPaths,
    NonNegative,
    StrictModel,
    TokenDtype,
    dtype_name,
    fault,
    shown,
)

__all__ = ["FieldDtype", "RecordField", "RecordsConfig", "SourceConfig", "TokenShardsConfig", "item_bytes"]


class TokenShardsConfig(StrictModel):
    """Token ids in flat binary files, cut into windows of ``seq_len`` tokens."""

    kind: Literal["token_shards"] = "token_shards"
    """Token shards."""

    path: LocalPaths | None = None
    """A file, a folder, a glob pattern, or a list of them; null: `<data_dir>/token_shards` if it exists, else
    `if_missing` decides."""

    if_missing: Literal["error", "sample"] = "error"
    """With no path and no data folder: stop, or make a small sample corpus there."""

    format: Literal["auto", "npy", "raw", "llmc"] = "auto"
    """Layout of a file: NumPy's .npy, raw little-endian ids without a header, llm.c's header, or told by the file."""

    dtype: TokenDtype | None = None
    """Type of a stored token. Raw files need it; files with a header must agree with it."""

    seq_len: Count
    """Tokens of a window; a row stores one more, so that input and target are both this long."""

    stride: Count | None = None
    """Tokens from one window's start to the next; null: `seq_len`."""

    tail: Literal["drop", "keep"] = "drop"
    """Tokens that fill no last window of a shard: drop them, or keep a shorter window, padded (target -100)."""

    vocab_size: Count | None = None
    """Number of token ids; when set, an id outside 0 .. vocab_size - 1 is an error."""

    @model_validator(mode="after")
    def _raw_needs_dtype(self) -> "TokenShardsConfig":
        makes_sample = self.path is None and self.if_missing == "sample"
        if self.format == "raw" and self.dtype is None and not makes_sample:
            raise fault(
                "must be set when format is 'raw', got null: a raw file does not say how wide a token is, "
                "write for example dtype: uint16",
                at=["dtype"],
            )
        return self


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


class RecordsConfig(StrictModel):
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


SourceConfig = Annotated[TokenShardsConfig | RecordsConfig, Field(discriminator="kind")]
"""The section, told apart by ``kind``."""
