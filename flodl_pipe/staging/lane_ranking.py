"""Ranks of the samples that one rank of a run owns under the lanes order: stripe by stripe, in order of its lanes.

Of each stripe of ``V`` samples it owns as many as it has lanes. So ranks ascend with storage, but for the samples of a
stripe, and what a tier fills ahead is read front to back, with gaps. Samples of other ranks have no rank: no tier takes
them in. Arithmetic only, no tables.

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
        in_last = max(0, min(first_lane + num_lanes, deal.last_stripe) - first_lane)
        self._num_ranks = deal.num_stripes * num_lanes + in_last
        self.held_bytes = 0
        self.is_even = True
        self.is_part = num_lanes < deal.num_lanes
        self.why = (
            f"storage order, in stripes, of the samples in this rank's lanes, {num_lanes:,} of {deal.num_lanes:,}"
        )

    def __len__(self) -> int:
        return self._num_ranks

    def ranks(self, indices: IndexArray) -> IndexArray:
        require_samples(indices, self._deal.num_samples)
        ranks = self._deal.lanes_of(indices)
        ranks -= self._first
        # Seen as unsigned, a lane before the first is huge as well.
        others = ranks.view(np.uint64) >= self._num_lanes
        ranks += indices // self._deal.num_lanes * self._num_lanes
        ranks[others] = self._num_ranks
        return ranks

    def samples(self, first_rank: int, last_rank: int) -> IndexArray:
        rows, lanes = np.divmod(np.arange(first_rank, last_rank, dtype=np.int64), self._num_lanes)
        lanes += self._first
        return self._deal.samples_at(lanes, rows)

    def runs(self, first_rank: int, last_rank: int) -> tuple[Run, ...] | None:
        """Return None: what a rank owns of a stripe are no runs."""
        del first_rank, last_rank
        return None
