"""Where rows of one size lie: equally spaced in each of ``S`` runs of bytes, numbered through from run to run.

One table lookup and one multiplication locate a row: with ``shift = base of its run - stride * first row of its run``,
row ``i`` begins at ``i * stride + shift``.

Shape letters: ``K`` rows asked for, ``S`` runs.
"""

from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray

__all__ = ["RowTable"]


@final
class RowTable:
    """Rows of ``S`` runs.

    Args:
        counts: Rows of each run, int64, shape ``(S,)``.
        bases: Where the first row of each run begins, int64, shape ``(S,)``.
        stride: From one row's begin to the next.
    """

    def __init__(self, counts: IndexArray, bases: IndexArray, stride: int) -> None:
        self._ends: IndexArray = np.cumsum(counts)
        self._shifts: IndexArray = bases - (self._ends - counts) * stride
        self._stride = stride

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, indices: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Return the run and the begin of rows, two int64 arrays of shape ``(K,)``.

        Raises:
            IndexError: if an index is not in ``[0, len(self))``.
        """
        # Seen as unsigned, a negative number is a huge one: one pass checks both ends.
        if len(indices) and int(indices.view(np.uint64).max()) >= len(self):
            raise IndexError(f"samples {indices.min()} .. {indices.max()} are not all in 0 .. {len(self) - 1}")
        runs: IndexArray = np.searchsorted(self._ends, indices, side="right")
        begins = indices * self._stride
        begins += self._shifts[runs]
        return runs, begins
