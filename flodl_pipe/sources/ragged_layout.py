"""Which fields of a user's samples are ragged, and rows of them brought together.

A few samples are tried besides the first: always the same ones of a dataset of the same length. A field whose first
axis differs among them, while dtype and other axes agree, is ragged. What else differs is an error at once.

Shape letter: ``K`` samples asked for.
"""

from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from flodl_pipe.arrays import Array
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import Field
from flodl_pipe.errors import LoaderError, SourceError
from flodl_pipe.sources.keyed_choice import keyed_choice
from flodl_pipe.sources.sample_layout import SampleLayout
from flodl_pipe.sources.stacking import share_memory

__all__ = ["MAX_TRIES", "RowCollector", "learn_layout"]

MAX_TRIES = 8
"""Samples tried besides the first."""


def learn_layout(
    get: Callable[[int], object], num_samples: int, owner: str, ragged: Sequence[str] | None
) -> SampleLayout:
    """Return what samples look like.

    Args:
        get: Returns a sample.
        num_samples: Samples there are.
        owner: Name of the dataset's type, for messages.
        ragged: None where every field is fixed: only sample 0 is read then. Else the names of fields that are ragged
            whether the samples tried differ or not; other fields are ragged if they do.

    Raises:
        SourceError: if sample 0 is none, or one that is tried is not like it.
        LoaderError: if a name is that of no field, or of one whose values have no axis.
        Exception: what ``get`` raises.
    """
    first = get(0)
    if ragged is None:
        return SampleLayout.of_sample(first, owner)
    layout = SampleLayout.of_sample(first, owner, may_be_empty=True)
    _require_fields(ragged, layout)
    shapes = {0: [field.shape for field in layout.spec]}
    for index in keyed_choice(num_samples, MAX_TRIES + 1)[1:].tolist():
        shapes[index] = [array.shape for array in layout.arrays(get(index), index)]
    fields = []
    for place, field in enumerate(layout.spec):
        own = {index: of_sample[place] for index, of_sample in shapes.items()}
        odd = next((index for index, shape in own.items() if shape != field.shape), None)
        wrong = next((i for i, s in own.items() if len(s) != len(field.shape) or s[1:] != field.shape[1:]), None)
        if wrong is not None:
            raise layout.wrong_shape(wrong, field, own[wrong], field.shape)
        is_ragged = field.name in ragged or odd is not None
        if 0 in field.shape[is_ragged:]:
            raise SourceError(
                f"sample 0 of {owner}, field {field.name!r} holds no values, its shape is {field.shape}; leave the "
                "field out, or name it as ragged if other samples do hold some"
            )
        if is_ragged:
            longest = max(shape[0] for shape in own.values())
            fields.append(Field(field.name, field.dtype, field.shape[1:], True, max(1, longest)))
        else:
            fields.append(field)
    return layout.with_fields(fields)


def _require_fields(ragged: Sequence[str], layout: SampleLayout) -> None:
    by_name = {field.name: field for field in layout.spec}
    for name in ragged:
        if name not in by_name:
            raise LoaderError(
                f"ragged names {name!r}, but the fields of {layout.owner} are {', '.join(map(repr, by_name))}"
            )
        if not by_name[name].shape:
            raise LoaderError(
                f"ragged names {name!r}, but sample 0 of {layout.owner} has a single number there, which has no length"
            )


@final
class RowCollector:
    """Brings samples together: rows of fixed fields in arrays, ragged ones behind each other.

    Args:
        layout: What every sample holds.
        num_rows: How many there will be.
    """

    def __init__(self, layout: SampleLayout, num_rows: int) -> None:
        self._layout, self._num_rows = layout, 0
        self._columns: list[Array | list[Ragged]] = [
            [] if field.is_ragged else field.empty(num_rows) for field in layout.spec
        ]

    def add(self, samples: Sequence[object], indices: Sequence[int], *, is_fleeting: bool) -> bool:
        """Copy the next samples; return whether they were.

        Args:
            samples: What the dataset returned, one for each index.
            indices: Sample indices, for messages.
            is_fleeting: Whether one may have been overwritten by another.

        Returns:
            False where two of the samples share memory; see :meth:`~.sample_layout.SampleLayout.write_many`.

        Raises:
            SourceError: if one is not like the first sample.
        """
        columns = self._layout.columns(samples, indices)
        if is_fleeting and share_memory(samples, columns, [None] * len(columns)):
            return False
        found: list[Array | Ragged | None] = [
            stacker.join(column) if field.is_ragged else stacker.stack(column)
            for field, stacker, column in zip(self._layout.spec, self._layout.stackers, columns, strict=True)
        ]
        if any(part is None for part in found):
            found = self._one_by_one(samples, indices)
        end = self._num_rows + len(samples)
        for column, part in zip(self._columns, found, strict=True):
            if isinstance(column, list):
                assert isinstance(part, Ragged)
                column.append(part)
            else:
                column[self._num_rows : end] = part
        self._num_rows = end
        return True

    def _one_by_one(self, samples: Sequence[object], indices: Sequence[int]) -> list[Array | Ragged | None]:
        """Return the columns of samples that are not plainly like the first one."""
        rows: list[list[Array]] = [[] for _ in self._columns]
        for sample, index in zip(samples, indices, strict=True):
            arrays = self._layout.arrays(sample, index)
            for field, row, array in zip(self._layout.spec, rows, arrays, strict=True):
                if not field.is_ragged:
                    if array.shape != field.shape:
                        raise self._layout.wrong_shape(index, field, array.shape, field.shape)
                elif not array.ndim or array.shape[1:] != field.shape:
                    wanted = ", ".join(["*", *map(str, field.shape)])
                    raise SourceError(
                        f"{self._layout.place(index, field)} has shape {array.shape}, but rows of this field have "
                        f"shape ({wanted}): only the first axis may differ from sample to sample; pad or crop the "
                        "others in the dataset"
                    )
                row.append(array.astype(field.dtype))
        return [
            Ragged.of(row) if field.is_ragged else np.stack(row)
            for field, row in zip(self._layout.spec, rows, strict=True)
        ]

    def columns(self) -> Columns:
        """Return the samples."""
        return {
            field.name: _joined(field, column) if isinstance(column, list) else column
            for field, column in zip(self._layout.spec, self._columns, strict=True)
        }


def _joined(field: Field, parts: list[Ragged]) -> Ragged:
    if not parts:
        return Ragged(np.empty((0, *field.shape), field.dtype), np.zeros(1, dtype=np.int64))
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts])
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Ragged(np.concatenate([part.values for part in parts]), offsets)
