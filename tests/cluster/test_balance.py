"""The law of balance, simulated: it settles, keeps quiet beside noise, and follows a rank that slows down."""

import itertools

import numpy as np
import pytest

from flodl_pipe.cluster.balance import Balancer
from flodl_pipe.sampling.share_plan import fit, most_rows

OVERHEAD_S = 0.004


def equal(ranks, total):
    return fit((1,) * ranks, total, least=(1,) * ranks, most=(total,) * ranks)


def simulate(speeds, total, *, num_steps=5000, every=50, noise=0.05, seed=0, max_rows=None):
    """Return the seconds of every step, how much of them ranks were idle, and the shares of every window.

    Args:
        speeds: Rows per second of each rank, of a step.
        total: Rows of a step.
    """
    random = np.random.default_rng(seed)
    ranks = len(speeds(0))
    rows = equal(ranks, total)
    balancer = Balancer(most_rows(rows, max_rows=max_rows))
    plans, seconds, idle = [rows, rows], [], []
    for window in range(num_steps // every):
        now, spent = plans[window], np.zeros(ranks)
        for step in range(every):
            times = OVERHEAD_S + np.array(now) / speeds(window * every + step)
            times = times * random.lognormal(0, noise, ranks)
            spent += times
            seconds.append(times.max())
            idle.append(1 - times.mean() / times.max())
        # As in a run: announced one window ahead, and worked out from what was announced last.
        plans.append(balancer.update(spent.tolist(), [count * every for count in now], plans[-1]))
    return np.array(seconds), np.array(idle), plans


def optimum(speeds, total, *, noise=0.05, seed=100):
    rows = fit(speeds, total, least=(1,) * len(speeds), most=(total,) * len(speeds))
    random = np.random.default_rng(seed)
    times = (OVERHEAD_S + np.array(rows) / np.array(speeds)) * random.lognormal(0, noise, (2000, len(speeds)))
    return times.max(axis=1).mean()


def within(seconds, best, *, every=50, tolerance=1.05):
    """Return the step from which on the mean of ``every`` steps stays within the tolerance."""
    means = np.convolve(seconds, np.ones(every) / every, "valid")
    bad = np.flatnonzero(means > best * tolerance)
    return int(bad[-1]) + 1 if len(bad) else 0


def changes(plans):
    return sum(a != b for a, b in itertools.pairwise(plans))


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_of_twice_the_speed_gets_its_share_in_200_steps(seed):
    speeds = np.array([1000.0, 1000.0, 2000.0])
    seconds, idle, plans = simulate(lambda _: speeds, 288, seed=seed)
    best = optimum(speeds, 288)
    assert within(seconds, best) <= 220
    assert seconds[-1000:].mean() < 1.035 * best
    assert idle[-1000:].mean() < 0.06  # noise alone makes 4 %
    assert changes(plans) <= 8
    equal_s = OVERHEAD_S + 96 / 1000.0  # of a step with equal shares
    assert 1.25 * best < equal_s
    assert 1.2 * seconds[-1000:].mean() < equal_s


@pytest.mark.parametrize("seed", range(5))
def test_speeds_of_one_to_eight_are_followed(seed):
    speeds = np.array([500.0, 1000.0, 2000.0, 4000.0])
    seconds, _, plans = simulate(lambda _: speeds, 384, seed=seed)
    assert within(seconds, optimum(speeds, 384), tolerance=1.08) <= 500
    assert plans[-1] == plans[-40]


@pytest.mark.parametrize("seed", range(10))
def test_eight_equal_ranks_keep_their_shares(seed):
    _, _, plans = simulate(lambda _: np.full(8, 1000.0), 768, seed=seed)
    assert changes(plans) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_halves_its_speed_is_followed_and_followed_back(seed):
    def speeds(step):
        return np.array([1000.0, 1000.0, 500.0 if 2000 <= step < 4000 else 1000.0, 1000.0])

    seconds, idle, plans = simulate(speeds, 384, num_steps=6000, seed=seed)
    slow = optimum(speeds(2000), 384)
    assert within(seconds[2000:4000], slow, tolerance=1.06) <= 320
    assert idle[2000:4000].mean() < 0.11  # 36 % with equal shares
    assert seconds[5000:].mean() < 1.05 * optimum(speeds(0), 384)
    assert plans[30] == plans[2] != plans[75]


@pytest.mark.parametrize("every", [4, 20])
def test_it_settles_with_other_windows_too(every):
    speeds = np.array([1000.0, 3000.0])
    _, _, plans = simulate(lambda _: speeds, 200, num_steps=100 * every, every=every, noise=0.01)
    assert len(set(plans[-50:])) == 1
    assert plans[-1][1] == pytest.approx(145, abs=8)  # the constant part of a step counts as slow rows


def test_no_share_changes_by_more_than_half_at_once():
    balancer = Balancer((300, 300))
    assert balancer.update((1.0, 0.01), (100, 100), (100, 100)) == (50, 150)


def test_bounds_hold():
    _, _, plans = simulate(lambda _: np.array([100.0, 1e6, 1e6]), 90, max_rows=40)
    assert all(max(rows) <= 40 and min(rows) >= 1 for rows in plans)
    assert max(plans[-1]) == 40
    pairs = Balancer((18, 18), unit=2)
    assert pairs.update((1.0, 9.0), (10, 11), (10, 11)) == (14, 7)


def test_a_gain_of_three_percent_is_left():
    assert Balancer((200, 200)).update((1.0, 1.02), (1, 1), (100, 100)) == (100, 100)
    assert Balancer((200, 200)).update((1.0, 1.2), (1, 1), (100, 100)) != (100, 100)


def test_ranks_come_to_the_same():
    random = np.random.default_rng(1)
    balancers = [Balancer((60,) * 5) for _ in range(5)]
    rows = (20,) * 5
    for _ in range(50):
        times = random.uniform(0.1, 3.0, 5).tolist()
        found = {balancer.update(times, (7,) * 5, rows) for balancer in balancers}
        assert len(found) == 1
        rows = found.pop()
