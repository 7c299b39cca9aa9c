"""Runs of samples that lie next to each other in storage, laid one after the other in the order of a permutation.

``place`` is where a pick stands in that sequence, in ``[0, num_picks)``. A pick's place, and the pick at a place, are
arithmetic where runs are even, and a search in the runs' ends where they are not. A run is never taken apart.

Shape letters: ``K`` places or picks asked for, ``R`` runs.
"""

from typing import Protocol, final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.keyed.permute import Permutation

__all__ = ["EvenRuns", "Runs", "UnevenRuns"]


class Runs(Protocol):
    """A bijection between places and picks."""

    def at(self, places: IndexArray) -> IndexArray:
        """Return the pick at each place, int64, shape ``(K,)``."""
        ...

    def inverse(self, picks: IndexArray) -> IndexArray:
        """Return the place of each pick, int64, shape ``(K,)``."""
        ...


@final
class EvenRuns:
    """Runs of the same length, but for the storage's last, which may be shorter. Nothing is held.

    Args:
        num_picks: Picks in all.
        run_picks: Picks of a run.
        shuffle: Permutation of the ``ceil(num_picks / run_picks)`` runs.
    """

    def __init__(self, num_picks: int, run_picks: int, shuffle: Permutation) -> None:
        last = shuffle.n - 1
        self._run_picks = run_picks
        self._shuffle = shuffle
        self._lacking = shuffle.n * run_picks - num_picks
        self._last_slot = int(shuffle.inverse(np.array([last], dtype=np.int64))[0])

    def at(self, places: IndexArray) -> IndexArray:
        # As if the short run were full: what stands behind it moves on by what it lacks.
        behind = places >= (self._last_slot + 1) * self._run_picks - self._lacking
        slots, offsets = np.divmod(places + self._lacking * behind, self._run_picks)
        picks = self._shuffle.at(slots)
        picks *= self._run_picks
        picks += offsets
        return picks

    def inverse(self, picks: IndexArray) -> IndexArray:
        runs, offsets = np.divmod(picks, self._run_picks)
        slots = self._shuffle.inverse(runs)
        return slots * self._run_picks + offsets - self._lacking * (slots > self._last_slot)


@final
class UnevenRuns:
    """Runs of any length. Holds 24 bytes a run.

    Args:
        starts: First pick of each run, ascending from 0, int64, shape ``(R,)``.
        num_picks: Picks in all.
        shuffle: Permutation of the runs.
    """

    def __init__(self, starts: IndexArray, num_picks: int, shuffle: Permutation) -> None:
        self._starts = starts
        slots = np.arange(len(starts), dtype=np.int64)
        runs = shuffle.at(slots)
        lengths = np.diff(starts, append=num_picks)[runs]
        self._ends: IndexArray = np.cumsum(lengths)
        self._moved: IndexArray = starts[runs] - (self._ends - lengths)  # pick = place + moved[slot]
        self._slots = shuffle.inverse(slots)

    def at(self, places: IndexArray) -> IndexArray:
        return places + self._moved[np.searchsorted(self._ends, places, side="right")]

    def inverse(self, picks: IndexArray) -> IndexArray:
        runs = np.searchsorted(self._starts, picks, side="right") - 1
        return picks - self._moved[self._slots[runs]]
