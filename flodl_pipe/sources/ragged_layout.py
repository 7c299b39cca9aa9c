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
        self._columns: list[Array | list[Array]] = [
            [] if field.is_ragged else field.empty(num_rows) for field in layout.spec
        ]

    def add(self, sample: object, index: int) -> None:
        """Copy the next sample.

        Args:
            sample: What the dataset returned for ``index``.
            index: Sample index, for messages.

        Raises:
            SourceError: if it is not like the first sample.
        """
        arrays = self._layout.arrays(sample, index)
        for field, column, array in zip(self._layout.spec, self._columns, arrays, strict=True):
            if isinstance(column, list):
                if not array.ndim or array.shape[1:] != field.shape:
                    wanted = ", ".join(["*", *map(str, field.shape)])
                    raise SourceError(
                        f"{self._layout.place(index, field)} has shape {array.shape}, but rows of this field have "
                        f"shape ({wanted}): only the first axis may differ from sample to sample; pad or crop the "
                        "others in the dataset"
                    )
                column.append(array.astype(field.dtype))  # a copy: the dataset may return the same buffer again
            elif array.shape != field.shape:
                raise self._layout.wrong_shape(index, field, array.shape, field.shape)
            else:
                column[self._num_rows] = array
        self._num_rows += 1

    def columns(self) -> Columns:
        """Return the samples."""
        return {
            field.name: _joined(field, column) if isinstance(column, list) else column
            for field, column in zip(self._layout.spec, self._columns, strict=True)
        }


def _joined(field: Field, rows: list[Array]) -> Ragged:
    if not rows:
        return Ragged(np.empty((0, *field.shape), field.dtype), np.zeros(1, dtype=np.int64))
    return Ragged.of(rows)
