"""Marks of what is there in shared memory, one byte each: set by whoever has written it, seen by all.

A byte, not a bit: two processes that set neighbouring bits would lose one. Two that write the same row at once write
the same bytes, for a sample is the same wherever it is read, and set the same mark. A process that ends in the middle
of a row has not set its mark, so that another may write it over.

Shape letters: ``K`` rows asked for, ``M`` rows.
"""

from typing import final

import numpy as np

from flodl_pipe.arrays import BoolArray, ByteArray, IndexArray
from flodl_pipe.staging.shared_memory import SharedMemory

__all__ = ["SharedMarks"]

_SCANNED = 1 << 16


@final
class SharedMarks:
    """A mark for each of ``M`` rows, and one for row ``M``, which is never set. Thread-safe.

    Args:
        memory: Where they lie, and what orders them after the rows.
        num_rows: ``M``.
    """

    def __init__(self, memory: SharedMemory, num_rows: int) -> None:
        self.bytes: ByteArray = memory.reserve(num_rows + 1, scattered=True)
        self._fence = memory.fence
        self._num_rows = num_rows
        self._num_scanned = 0
        self._is_full = False

    @property
    def count(self) -> int:
        """Rows that are there."""
        return self._num_rows if self._is_full else int(np.count_nonzero(self.bytes[: self._num_rows].view(np.bool_)))

    @property
    def is_full(self) -> bool:
        """Whether every row is there. It is looked at from the front, each part until it is full, and then never again.

        From then on rows may be read without a look at their marks.
        """
        while not self._is_full:
            first = self._num_scanned
            last = min(first + _SCANNED, self._num_rows)
            if not self.bytes[first:last].view(np.bool_).all():
                return False
            # Threads that come here together move it by the same steps, or one of them back: it is looked at once more.
            self._num_scanned = last
            if last == self._num_rows:
                self._fence()
                self._is_full = True
        return True

    def held(self, rows: IndexArray) -> BoolArray:
        """Return which rows are there, shape ``(K,)``; those may be read from here on."""
        found: BoolArray = self.bytes.take(rows).view(np.bool_)
        # The marks were read before this, the rows will be after it.
        self._fence()
        return found

    def add(self, rows: IndexArray) -> None:
        """Tell everybody that rows are there, once all of their bytes have been written."""
        # The bytes were written before this, the marks are after it.
        self._fence()
        self.bytes[rows] = 1
