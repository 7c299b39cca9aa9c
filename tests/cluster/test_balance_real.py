"""Shares that follow speeds on real ranks under DistributedDataParallel, one of them half as fast as the others.

What a row costs passes on a clock that each rank is given, so speeds are exact: tests/benchmarks/balance.py has the
same with time that really passes. White box: the clock is given to the module that measures steps.
"""

import numpy as np
import pytest

from tests.cluster.balanced_ranks import EVERY, compare
from tests.cluster.ranks import results


def test_a_rank_at_half_speed_takes_less_and_all_are_done_sooner():
    """Rows cost 1 ms, and 2 ms on one rank: 64 ms a step in equal shares, and 39 ms at best."""
    ended = results(compare, 3, (0.001, 0.001, 0.002), 5 * EVERY, False)
    assert {tuple(column) for column in np.array([rank[0][0] for rank in ended]).T} == {(32, 32, 32)}
    rows = np.array([rank[1][0] for rank in ended])
    # A window that is measured, one in which new shares are announced; then they settle, and stay.
    assert rows[:, ::EVERY].T.tolist() == [[32, 32, 32], [32, 32, 32], [37, 36, 23], [38, 38, 20], [38, 38, 20]]
    assert (rows == np.repeat(rows[:, ::EVERY], EVERY, axis=1)).all()
    equal, balanced = (np.max([rank[way][1] for rank in ended], axis=0) for way in (0, 1))
    assert equal == pytest.approx(0.064)
    assert balanced[-EVERY:] == pytest.approx(0.040)
    assert [rank[1][2] for rank in ended] == ["h/0=38 h/1=38 h/2=20"] * 3
