"""Rows of different lengths, kept as one array: the values of all rows one after the other, and where each begins.

::

    rows      [5 3]  []  [7 7 1]
    values     5 3        7 7 1          shape (T, ...)
    offsets   0    2    2        5       shape (B + 1,)

Shape letters: ``B`` rows, ``T`` their lengths added up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from flodl_pipe.arrays import Array, IndexArray

__all__ = ["Columns", "Ragged"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """The rows of one ragged field.

    Attributes:
        values: Shape ``(T, *field.shape)``.
        offsets: int64, shape ``(B + 1,)``, rising from 0 to ``T``.
    """

    values: Array
    offsets: IndexArray

    @classmethod
    def of(cls, rows: Sequence[Array]) -> "Ragged":
        """Join rows of shape ``(length, *field.shape)`` each; at least one.

        >>> Ragged.of([np.array([5, 3]), np.array([7])]).offsets.tolist()
        [0, 2, 3]
        """
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.concatenate(rows), offsets)

    @property
    def lengths(self) -> IndexArray:
        """Length of each row, int64, shape ``(B,)``."""
        return np.diff(self.offsets)

    def row(self, index: int) -> Array:
        """Return one row, a view of shape ``(length, *field.shape)``."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def slice(self, start: int, stop: int) -> "Ragged":
        """Return rows ``start .. stop - 1``; the values are a view."""
        begin, end = self.offsets[start], self.offsets[stop]
        return Ragged(self.values[begin:end], self.offsets[start : stop + 1] - begin)

    def take(self, indices: IndexArray) -> "Ragged":
        """Return some rows, in the order asked for; the values are a copy.

        Args:
            indices: Rows wanted, int64, shape ``(K,)``, each in ``[0, B)``; repeats are allowed.

        >>> Ragged.of([np.array([5, 3]), np.array([7])]).take(np.array([1, 0, 1])).values.tolist()
        [7, 5, 3, 7]
        """
        begins = self.offsets[indices]
        lengths = self.offsets[indices + 1] - begins
        offsets = np.zeros(len(indices) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        # Place p of the result, in row r, is place p - offsets[r] + begins[r] of the values.
        places = np.arange(offsets[-1], dtype=np.int64)
        places += np.repeat(begins - offsets[:-1], lengths)
        return Ragged(self.values[places], offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1


Columns = dict[str, Array | Ragged]
"""Rows of a spec, field by field: arrays of shape ``(B, *field.shape)``, and :class:`Ragged` for ragged fields."""
