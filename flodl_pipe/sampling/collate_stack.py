"""Stacking: rows of one shape become the rows of a tensor; rows of different lengths are refused.

Shape letter: ``B`` rows.
"""

from typing import final

import numpy as np
import torch

from flodl_pipe.arrays import Array
from flodl_pipe.batch.ragged import Columns, Ragged
from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.errors import ConfigError, TransformError

__all__ = ["StackCollate", "fresh"]

_REMEDY = (
    "take loader.collate=pad, which fills rows up to one length and adds a mask, loader.collate=ragged, or a function "
    "of your own"
)


@final
class StackCollate:
    """Stacks the rows of every field; a :class:`flodl_pipe.sampling.collate.Collate`."""

    tag = "stack"

    def check(self, spec: SampleSpec) -> None:
        """Refuse ragged fields; see :meth:`flodl_pipe.sampling.collate.Collate.check`."""
        for field in spec:
            if field.is_ragged:
                raise ConfigError.at(
                    "loader.collate",
                    f"is 'stack', for rows of one shape, but field {field.name!r} is ragged: {field}; {_REMEDY}",
                )

    def output(self, spec: SampleSpec) -> SampleSpec:
        """Return the same fields."""
        return spec

    def __call__(self, rows: Columns) -> tuple[tuple[str, ...], tuple[torch.Tensor, ...]]:
        """Stack rows; see :meth:`flodl_pipe.sampling.collate.Collate.__call__`.

        Raises:
            TransformError: if a field is ragged; the message names it and the shapes of two rows that differ.
        """
        tensors = []
        for name, values in rows.items():
            if isinstance(values, Ragged):
                raise TransformError(_why_not(name, values))
            tensors.append(fresh(values))
        return tuple(rows), tuple(tensors)


def fresh(array: Array) -> torch.Tensor:
    """Return a tensor with memory of its own, C-contiguous.

    >>> row = np.zeros(3); fresh(row).add_(1); row.any()
    tensor([1., 1., 1.], dtype=torch.float64)
    np.False_
    """
    return torch.from_numpy(np.array(array, order="C", copy=True))


def _why_not(name: str, rows: Ragged) -> str:
    lengths = rows.lengths
    other = np.flatnonzero(lengths != lengths[0]) if len(lengths) else lengths
    if not len(other):
        return f"field {name!r} is ragged, and rows of different lengths cannot be stacked; {_REMEDY}"
    shapes = [tuple(rows.row(row).shape) for row in (0, int(other[0]))]
    return (
        f"field {name!r} cannot be stacked: row 0 of the batch has shape {shapes[0]} and row {other[0]} has shape "
        f"{shapes[1]}, and stacking needs rows of one shape; {_REMEDY}"
    )
