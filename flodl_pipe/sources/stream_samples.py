"""Samples of a user's iterables as stored rows, and back: fields of one shape, and ragged ones up to a length.

A row of a ragged field is stored as long as the longest may be, zeros behind its values, and how long it is beside it,
so that blocks, marks and digests are those of any other rows::

    sample     {"ids": [5 3], "label": 1}                      max_length {"ids": 4}
    stored     ids 5 3 0 0    ids.length 2    label 1
    delivered  ids 5 3        label 1

Shape letters: ``B`` rows of a buffer, ``M`` the most of a ragged field's first axis.
"""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.errors import LoaderError, SourceError
from flodl_pipe.sources.sample_layout import SampleLayout
from flodl_pipe.units import format_count

__all__ = ["SampleRows"]


@final
class SampleRows:
    """What every sample holds, and how it is stored.

    Args:
        sample: The first one.
        owner: Name of the iterable's type, for messages.
        max_length: Of each ragged field, by its name, the most that its first axis may have.

    Attributes:
        spec: The stored row.
        delivered: What a batch holds, in the order of the first sample's fields.

    Raises:
        SourceError: if the first one is no sample.
        LoaderError: if a name is that of no field, or of one whose values have no axis, or a length is impossible.
    """

    def __init__(self, sample: object, owner: str, max_length: Mapping[str, int]) -> None:
        self._layout = SampleLayout.of_sample(sample, owner, may_be_empty=bool(max_length))
        first = {field.name: field for field in self._layout.spec}
        for name, length in max_length.items():
            if name not in first:
                raise LoaderError(f"max_length names {name!r}, but the fields of {owner} are {', '.join(first)}")
            if type(length) is not int or length < 1:
                raise LoaderError(f"max_length of {name!r} must be an integer of at least 1, got {length!r}")
            if not first[name].shape:
                raise LoaderError(
                    f"max_length names {name!r}, but sample 0 of {owner} has a single number there, which has no length"
                )
            if _length(name) in first:
                raise LoaderError(
                    f"the fields of {owner} have {_length(name)!r}, the name that lengths of {name!r} are stored by; "
                    "rename it"
                )
        self._max_length = dict(max_length)
        stored, delivered = [], []
        for field in first.values():
            length = self._max_length.get(field.name, 0)
            if 0 in field.shape[bool(length) :]:
                raise SourceError(
                    f"sample 0 of {owner}, field {field.name!r} holds no values, its shape is {field.shape}; leave the "
                    f"field out, or say how long it may be, max_length={{{field.name!r}: ...}}, if other samples hold "
                    "some"
                )
            if length:
                rest = field.shape[1:]
                stored += [Field(field.name, field.dtype, (length, *rest)), Field(_length(field.name), "int64")]
                delivered.append(Field(field.name, field.dtype, rest, is_ragged=True, expected_length=length))
            else:
                stored.append(field)
                delivered.append(field)
        self.spec, self.delivered = SampleSpec(tuple(stored)), SampleSpec(tuple(delivered))

    def targets(self, out: Mapping[str, Array]) -> list[tuple[Array, Array | None]]:
        """Return the caller's buffers in the order of a sample's fields, for :meth:`write`; of ragged ones lengths."""
        return [(out[field.name], out[_length(field.name)] if field.is_ragged else None) for field in self.delivered]

    def write(self, sample: object, index: int, row: int, targets: Sequence[tuple[Array, Array | None]]) -> None:
        """Copy a sample into a row of each field.

        Args:
            sample: What the iterable gave.
            index: Its number, for messages.
            row: Row to write.
            targets: See :meth:`targets`.

        Raises:
            SourceError: if it is not like the first one, or longer than it may be; number, field and both sides are
                named.
        """
        arrays = self._layout.arrays(sample, index)
        for field, array, (target, lengths) in zip(self.delivered, arrays, targets, strict=True):
            if lengths is None:
                if array.shape != field.shape:
                    raise self._wrong_shape(index, field, array)
                target[row] = array
                continue
            if not array.ndim or array.shape[1:] != field.shape:
                raise self._wrong_shape(index, field, array)
            length = len(array)
            if length > target.shape[1]:
                raise SourceError(
                    f"{self._layout.place(index, field)} has length {length}, and max_length is {target.shape[1]}: no "
                    f"sample is cut; set max_length={{{field.name!r}: {length}}} or more, or crop in the iterable"
                )
            target[row, :length] = array
            target[row, length:] = 0
            lengths[row] = length

    def deliver(self, stored: Mapping[str, Array], out: Mapping[str, Array]) -> None:
        """Copy rows as they are; see :meth:`flodl_pipe.sources.protocol.Source.deliver`.

        Raises:
            LoaderError: if fields are ragged.
        """
        if self.delivered.is_ragged:
            raise LoaderError(
                "samples of different lengths do not fit into one array; such a stream is delivered by deliver_rows"
            )
        for name, rows in stored.items():
            np.copyto(out[name], rows)

    def deliver_rows(self, stored: Mapping[str, Array]) -> Columns:
        """Join ragged rows; see :meth:`flodl_pipe.sources.stream_protocol.RaggedStream.deliver_rows`."""
        columns: Columns = {}
        for field in self.delivered:
            rows = stored[field.name]
            if not field.is_ragged:
                columns[field.name] = rows.copy()
                continue
            lengths = stored[_length(field.name)]
            offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
            np.cumsum(lengths, out=offsets[1:])
            columns[field.name] = Ragged(rows[np.arange(rows.shape[1]) < lengths[:, np.newaxis]], offsets)
        return columns

    def facts(self) -> str:
        """Return how long ragged fields may be, in words; empty where none is ragged."""
        named = ", ".join(f"{name} at most {format_count(length)}" for name, length in self._max_length.items())
        return f"{named}; a longer one is an error" if named else ""

    def _wrong_shape(self, index: int, field: Field, array: Array) -> SourceError:
        wanted = f"({', '.join(['*', *map(str, field.shape)])})" if field.is_ragged else str(field.shape)
        what = f"{self._layout.place(index, field)} has shape {array.shape}, but sample 0 has {wanted}"
        if field.is_ragged or array.shape[1:] != field.shape[1:] or not array.ndim or not field.shape:
            return SourceError(
                f"{what}; pad or crop to one shape in the iterable: only the first axis may differ, and that where "
                "max_length says how long a field may be"
            )
        return SourceError(
            f"{what}; pad or crop to one shape in the iterable, or say how long the field may be, "
            f"max_length={{{field.name!r}: ...}}, for loader.collate=pad or ragged"
        )


def _length(name: str) -> str:
    """Return the name of the stored field that holds the lengths of another."""
    return f"{name}.length"
