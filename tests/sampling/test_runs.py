"""Runs laid one after the other: never taken apart, found again, the short one anywhere."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.keyed.permute import permutation
from flodl_pipe.sampling.runs import EvenRuns, UnevenRuns


def laid(starts, n, shuffle):
    """Return the sequence by concatenation."""
    ends = [*starts[1:], n]
    return np.concatenate([np.arange(starts[run], ends[run]) for run in shuffle.at(np.arange(len(starts))).tolist()])


@settings(max_examples=150, deadline=None)
@given(n=st.integers(1, 300), run=st.integers(1, 320), seed=st.integers(0, 2**32))
def test_even_runs_are_laid_in_the_order_of_the_permutation(n, run, seed):
    starts = list(range(0, n, run))
    shuffle = permutation(len(starts), seed)
    runs = EvenRuns(n, run, shuffle)
    whole = laid(starts, n, shuffle)
    assert np.array_equal(runs.at(np.arange(n)), whole)
    assert np.array_equal(runs.inverse(whole), np.arange(n))


@settings(max_examples=150, deadline=None)
@given(n=st.integers(1, 300), cuts=st.sets(st.integers(1, 299), max_size=40), seed=st.integers(0, 2**32))
def test_uneven_runs_are_laid_in_the_order_of_the_permutation(n, cuts, seed):
    starts = [0, *sorted(cut for cut in cuts if cut < n)]
    shuffle = permutation(len(starts), seed)
    runs = UnevenRuns(np.array(starts), n, shuffle)
    whole = laid(starts, n, shuffle)
    assert np.array_equal(runs.at(np.arange(n)), whole)
    assert np.array_equal(runs.inverse(whole), np.arange(n))


def test_even_runs_of_a_huge_storage_end_where_it_ends():
    n, run = 2**62 - 5, 2**40
    runs = EvenRuns(n, run, permutation(-(-n // run), 3))
    picks = np.array([0, run - 1, n // 2, n - 1])
    places = runs.inverse(picks)
    assert ((places >= 0) & (places < n)).all()
    assert np.array_equal(runs.at(places), picks)
