"""Ranks: bijections, what comes first, and the runs they fall into."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.staging.ranking import ByParts, ByWeight, RankedPart, Ranking, StorageOrder


def parts_of(sizes: list[int], rates: list[float]) -> list[RankedPart]:
    begins = np.cumsum([0, *sizes]).tolist()
    return [RankedPart(begin, size, rate) for begin, size, rate in zip(begins, sizes, rates, strict=False)]


rankings = st.one_of(
    st.integers(1, 50).map(StorageOrder),
    st.lists(st.integers(0, 4), min_size=1, max_size=50).map(ByWeight),
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0, 2.0])), min_size=1, max_size=6).map(
        lambda parts: ByParts(parts_of([size for size, _ in parts], [rate for _, rate in parts]))
    ),
)


@settings(deadline=None)
@given(rankings, st.data())
def test_ranks_and_samples_are_inverse_and_runs_are_the_same_samples(ranking: Ranking, data: Any) -> None:
    number = len(ranking)
    samples = ranking.samples(0, number)
    assert samples.dtype == np.int64
    assert sorted(samples.tolist()) == list(range(number))
    assert ranking.ranks(samples).tolist() == list(range(number))
    first = data.draw(st.integers(0, number))
    last = data.draw(st.integers(first, number))
    assert ranking.samples(first, last).tolist() == samples[first:last].tolist()
    runs = ranking.runs(first, last)
    if runs is not None:
        joined = [sample for run in runs for sample in range(run.first_sample, sum(run))]
        assert joined == samples[first:last].tolist()
        assert all(sum(a) != b.first_sample for a, b in pairwise(runs))


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40))
def test_the_heaviest_come_first_and_ties_stay_in_storage_order(weights: list[int]) -> None:
    ranking = ByWeight(np.array(weights, dtype=np.uint64))
    assert ranking.samples(0, len(weights)).tolist() == sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    assert ranking.held_bytes == 8 * len(weights)


def test_parts_come_by_rate_then_in_storage_order() -> None:
    ranking = ByParts(parts_of([3, 2, 4], [0.5, 2.0, 0.5]))
    assert ranking.samples(0, 9).tolist() == [3, 4, 0, 1, 2, 5, 6, 7, 8]
    assert ByParts(parts_of([3, 2, 4], [1.0] * 3)).runs(1, 9) == ((1, 8),)


@pytest.mark.parametrize("parts", [[], [RankedPart(1, 3, 1.0)], [RankedPart(0, 3, 1.0), RankedPart(2, 3, 1.0)]])
def test_parts_with_gaps_are_refused(parts: list[RankedPart]) -> None:
    with pytest.raises(ValueError, match="must follow each other from sample 0 on"):
        ByParts(parts)


@settings(deadline=None)
@given(rankings, st.sampled_from([-1, "len", 2**62, -(2**63)]))
def test_what_is_no_sample_has_no_rank(ranking: Ranking, index: Any) -> None:
    wrong = np.array([0, len(ranking) if index == "len" else index], dtype=np.int64)
    try:
        rank = ranking.ranks(wrong)[1]
    except IndexError:
        return
    assert not 0 <= rank < len(ranking)
