"""Ranks of the samples that one rank of a run owns under the lanes order: its lanes, in storage order.

Of each stripe of ``V`` samples it owns as many as it has lanes, next to each other (two pieces where they go round the
stripe's end). So ranks ascend with storage, and what a tier fills ahead is read front to back, with gaps. Samples of
other ranks have no rank: no tier takes them in. Arithmetic only, no tables.

Shape letters: ``K`` samples asked for, ``R`` samples owned, ``V`` lanes.
"""

from typing import final

import numpy as np

from flodl_pipe.arrays import IndexArray
from flodl_pipe.sampling.lanes import Deal
from flodl_pipe.staging.ranking import Run, require_samples

__all__ = ["LaneRanking"]


@final
class LaneRanking:
    """The samples of some lanes that follow each other; a :class:`flodl_pipe.staging.ranking.Ranking`.

    Args:
        deal: Which lane has which sample.
        first_lane: First lane owned.
        num_lanes: How many, at least 1.

    >>> deal = Deal(12, 4, 42)
    >>> ranking = LaneRanking(deal, 1, 2)
    >>> owned = ranking.samples(0, len(ranking))
    >>> len(owned), sorted(set(deal.lanes_of(owned).tolist())), ranking.ranks(owned).tolist()
    (6, [1, 2], [0, 1, 2, 3, 4, 5])
    """

    def __init__(self, deal: Deal, first_lane: int, num_lanes: int) -> None:
        self._deal = deal
        self._first = first_lane
        self._num_lanes = num_lanes
        self._in_last = max(0, min(first_lane + num_lanes, deal.last_stripe) - first_lane)
        self._num_ranks = deal.num_stripes * num_lanes + self._in_last
        self.held_bytes = 0
        self.is_even = True
        self.is_part = num_lanes < deal.num_lanes
        self.why = f"storage order of the samples in this rank's lanes, {num_lanes:,} of {deal.num_lanes:,}"

    def __len__(self) -> int:
        return self._num_ranks

    def ranks(self, indices: IndexArray) -> IndexArray:
        require_samples(indices, self._deal.num_samples)
        rows, places = np.divmod(indices, self._deal.num_lanes)
        sizes, owned, starts, wrapped = self._pieces(rows)
        offsets = places - starts
        offsets += np.where(offsets < 0, sizes, 0)
        ranks = offsets + wrapped
        ranks -= np.where(ranks >= owned, owned, 0)
        ranks += rows * self._num_lanes
        ranks[offsets >= owned] = self._num_ranks
        return ranks

    def samples(self, first_rank: int, last_rank: int) -> IndexArray:
        rows, offsets = np.divmod(np.arange(first_rank, last_rank, dtype=np.int64), self._num_lanes)
        sizes, owned, starts, wrapped = self._pieces(rows)
        offsets -= wrapped
        offsets += np.where(offsets < 0, owned, 0)
        offsets += starts
        offsets -= np.where(offsets >= sizes, sizes, 0)
        offsets += rows * self._deal.num_lanes
        return offsets

    def runs(self, first_rank: int, last_rank: int) -> tuple[Run, ...] | None:
        """Return None: one or two runs of each stripe are not few."""
        del first_rank, last_rank
        return None

    def _pieces(self, rows: IndexArray) -> tuple[IndexArray | int, IndexArray | int, IndexArray, IndexArray]:
        """Return of stripes: size, samples owned, place of the first lane's, and how many go round the end."""
        sizes = self._deal.sizes(rows)
        owned = (
            self._num_lanes
            if isinstance(sizes, int)
            else np.where(rows < self._deal.num_stripes, self._num_lanes, self._in_last)
        )
        starts = np.minimum(self._first, sizes) - self._deal.turns(rows, sizes)
        starts += np.where(starts < 0, sizes, 0)
        wrapped: IndexArray = np.maximum(starts + owned - sizes, 0)
        return sizes, owned, starts, wrapped
