"""What a rank owns under lanes: its samples stripe by stripe, and no place for those of others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.sampling.lanes import Deal
from flodl_pipe.staging.held_ranks import HeldRanks
from flodl_pipe.staging.lane_ranking import LaneRanking


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 120), data=st.data())
def test_owned_samples_are_ranked_by_stripe_and_lane_and_others_not_at_all(n, data):
    num_lanes = data.draw(st.integers(1, n))
    first = data.draw(st.integers(0, num_lanes - 1))
    count = data.draw(st.integers(1, num_lanes - first))
    deal = Deal(n, num_lanes, data.draw(st.integers(0, 99)))
    ranking = LaneRanking(deal, first, count)
    lanes = deal.lanes_of(np.arange(n))
    owned = np.flatnonzero((lanes >= first) & (lanes < first + count))
    owned = owned[np.lexsort((lanes[owned], owned // num_lanes))]
    assert len(ranking) == len(owned)
    assert ranking.is_part == (count < num_lanes)
    low = data.draw(st.integers(0, len(owned)))
    high = data.draw(st.integers(low, len(owned)))
    assert np.array_equal(ranking.samples(low, high), owned[low:high])
    expected = np.full(n, len(owned))
    expected[owned] = np.arange(len(owned))
    asked = np.arange(n)[::-1].copy()
    assert np.array_equal(ranking.ranks(asked), expected[::-1])
    assert np.array_equal(asked, np.arange(n)[::-1]), "what was asked is the caller's"
    assert ranking.runs(low, high) is None
    for wrong in (-1, n, 2**62):
        with pytest.raises(IndexError, match="are not all in"):
            ranking.ranks(np.array([0, wrong]))


def test_lanes_of_all_ranks_are_all_samples_and_none_twice():
    deal = Deal(1003, 16, 7)
    parts = [LaneRanking(deal, first, count) for first, count in ((0, 8), (8, 5), (13, 3))]
    assert np.array_equal(np.sort(np.concatenate([part.samples(0, len(part)) for part in parts])), np.arange(1003))


def test_what_has_no_rank_is_never_held():
    ranking = LaneRanking(Deal(100, 10, 7), 3, 2)
    held = HeldRanks(ranking)
    held.add(np.arange(len(ranking)))
    found = held.of(ranking.ranks(np.arange(100)))
    assert held.count == found.sum() == 20
    held.cut(5)
    assert held.count == held.of(ranking.ranks(np.arange(100))).sum() == 5
    samples, after = held.missing(0, len(ranking), 4)
    assert (samples.tolist(), after) == (ranking.samples(5, 9).tolist(), 9)


def test_it_takes_no_memory_and_a_trillion_samples():
    ranking = LaneRanking(Deal(10**12, 512, 7), 64, 64)
    assert ranking.held_bytes == 0
    assert len(ranking) == 125 * 10**9
    ranks = np.arange(1000, dtype=np.int64) * 124_999_999
    samples = ranking.samples(int(ranks[7]), int(ranks[7]) + 3)
    assert (np.abs(np.diff(samples)) < 2 * 512).all()
    assert ranking.ranks(samples).tolist() == [int(ranks[7]) + i for i in range(3)]
