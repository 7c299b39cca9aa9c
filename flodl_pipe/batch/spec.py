"""What one sample holds: named fields, each with a dtype and a shape.

A source has two specs. The *stored* spec is the row as files, tiers and digests see it (narrow dtypes). The
*delivered* spec is what a batch holds. ``N`` rows of a field are one array of shape ``(N, *field.shape)``.

A *ragged* field has rows of different lengths, ``(length, *field.shape)`` each; its rows are a
:class:`flodl_pipe.batch.ragged.Ragged`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.errors import ConfigError

__all__ = ["Field", "SampleSpec"]


@final
@dataclass(frozen=True)
class Field:
    """One named part of a sample.

    Attributes:
        name: Key of the field in a batch.
        dtype: NumPy dtype name in native byte order, for example ``uint16``.
        shape: Shape of one row, without the batch axis; ``()`` for a scalar.
        is_ragged: Whether rows have lengths of their own along a first axis that :attr:`shape` leaves out.
        expected_length: Of a ragged field, what length to reckon with; only grants of memory look at it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    is_ragged: bool = False
    expected_length: int = field(default=64, compare=False)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; of a ragged field, those of a row of the expected length."""
        length = self.expected_length if self.is_ragged else 1
        return np.dtype(self.dtype).itemsize * math.prod(self.shape) * length

    def empty(self, num_rows: int) -> Array:
        """Return an uninitialised array of shape ``(num_rows, *shape)``.

        Raises:
            TypeError: if the field is ragged: its rows are no array.
        """
        if self.is_ragged:
            raise TypeError(f"field {self.name!r} is ragged: its rows are no array")
        return np.empty((num_rows, *self.shape), dtype=self.dtype)

    def __str__(self) -> str:
        if not self.is_ragged:
            return f"{self.name} {self.dtype} {self.shape}"
        return f"{self.name} {self.dtype} ({', '.join(['*', *map(str, self.shape)])})"


@final
@dataclass(frozen=True)
class SampleSpec:
    """The fields of one sample, in the order a batch unpacks them.

    Raises:
        ValueError: if there is no field or two fields share a name.
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a sample needs at least one field and distinct names, got {names}")

    @classmethod
    def of(cls, **fields: tuple[str, tuple[int, ...]]) -> "SampleSpec":
        """Build a spec from ``name=(dtype, shape)`` pairs.

        >>> SampleSpec.of(input=("int64", (8,)), target=("int64", (8,))).row_bytes
        128
        """
        return cls(tuple(Field(name, np.dtype(dtype).name, shape) for name, (dtype, shape) in fields.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """Field names, in order."""
        return tuple(field.name for field in self.fields)

    @property
    def is_ragged(self) -> bool:
        """Whether some field has rows of different lengths."""
        return any(field.is_ragged for field in self.fields)

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample over all fields, without padding."""
        return sum(field.row_bytes for field in self.fields)

    def empty(self, num_rows: int) -> dict[str, Array]:
        """Return one uninitialised array of ``num_rows`` rows per field."""
        return {field.name: field.empty(num_rows) for field in self.fields}

    def renamed(self, names: Sequence[str] | None) -> "SampleSpec":
        """Return the same fields under other names, in the same order.

        Raises:
            ConfigError: if the number of names differs from the number of fields.
        """
        if names is None:
            return self
        if len(names) != len(self.fields):
            raise ConfigError.at(
                "loader.names",
                f"{list(names)} has {len(names)} names, but the source delivers {len(self.fields)} fields "
                f"{list(self.names)}; give one name per field, or leave names unset",
            )
        return SampleSpec(tuple(replace(field, name=name) for field, name in zip(self.fields, names, strict=True)))

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))
