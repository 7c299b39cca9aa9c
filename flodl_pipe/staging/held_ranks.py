"""Which ranks a pool holds: a byte for each sample, and their number.

Shape letter: ``K`` samples.
"""

from typing import final

import numpy as np

from flodl_pipe.arrays import BoolArray, IndexArray
from flodl_pipe.staging.ranking import Ranking

__all__ = ["HeldRanks"]

_SCANNED = 1 << 16


@final
class HeldRanks:
    """The ranks that are held; none at first. Whoever changes it sees to it that nobody else does meanwhile."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking
        # One more than there are ranks: samples without one are looked up there, and never held.
        self._held = np.zeros(len(ranking) + 1, dtype=np.bool_)
        self.count = 0

    def of(self, ranks: IndexArray) -> BoolArray:
        """Return which of some ranks are held, shape ``(K,)``."""
        found: BoolArray = self._held[ranks]
        return found

    def add(self, ranks: IndexArray) -> None:
        """Hold some distinct ranks."""
        self.count += len(ranks) - int(np.count_nonzero(self._held[ranks]))
        self._held[ranks] = True

    def cut(self, end: int) -> None:
        """Hold only ranks below ``end``."""
        self._held[end:] = False
        self.count = int(np.count_nonzero(self._held[:end]))

    def missing(self, first: int, end: int, count: int) -> tuple[IndexArray, int]:
        """Return the samples of the first ``count`` ranks in ``[first, end)`` that are not held, and the rank after.

        Where there are fewer, the rank after is ``end``.
        """
        found: list[IndexArray] = [np.empty(0, dtype=np.int64)]
        while first < end and count:
            last = min(first + _SCANNED, end)
            places = np.flatnonzero(~self._held[first:last])[:count]
            if len(places):
                last = last if len(places) < count else first + int(places[-1]) + 1
                found.append(self._ranking.samples(first, last)[places])
            first, count = last, count - len(places)
        return np.concatenate(found), first
