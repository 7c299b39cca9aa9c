"""What is expected is what happens: compared with a small cascade that is run row by row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.staging.expect import Tiers, expect_epochs, expected_bottleneck, tiers_by_bytes, tiers_by_rows
from flodl_pipe.staging.expected_tier import TierPlan, Workload

ROW_BYTES = 10


def picks_of(work, num_epochs, chance):
    """Return the samples (ranks) of all epochs, row by row, shape (epochs, rows)."""
    shape = (num_epochs, work.epoch_rows)
    if work.order == "permutation":
        picks = work.num_samples * work.repeats
        return np.array([chance.permutation(picks)[: work.epoch_rows] // work.repeats for _ in range(num_epochs)])
    if work.probabilities is None:
        return chance.integers(work.num_samples, size=shape)
    rates = np.asarray(work.probabilities) / np.sum(work.probabilities)
    if work.order == "drawn":
        return chance.choice(work.num_samples, size=shape, p=rates)
    # Passes: the samples of equal rate are a part, and parts take turns in proportion.
    samples = np.empty(shape[0] * shape[1], dtype=np.int64)
    parts = [np.flatnonzero(rates == rate) for rate in np.unique(rates)]
    part_of_row = chance.choice(len(parts), size=len(samples), p=[rates[part].sum() for part in parts])
    for number, part in enumerate(parts):
        rows = np.flatnonzero(part_of_row == number)
        shuffles = [chance.permutation(part) for _ in range(len(rows) // len(part) + 1)]
        samples[rows] = np.concatenate(shuffles)[: len(rows)]
    return samples.reshape(shape)


def run(work, tiers, num_epochs, chance):
    """Run tiers that admit until full: return per epoch (hits of each, admitted to each, filled of each).

    A fill ahead takes its range in order, as time goes by; a sample that is there already is not read again.
    """
    plans = (tiers.pool, tiers.ram, tiers.disk)
    tier_of = np.full(work.num_samples, -1)
    for number, plan in enumerate(plans):
        tier_of[plan.first_rank : plan.first_rank + plan.num_rows] = number
    # The batch, counted over all epochs, from which on a sample is found.
    found_from = np.full(work.num_samples, np.inf)
    num_batches = -(-work.epoch_rows // work.batch_rows)
    picks, told = picks_of(work, num_epochs, chance), []
    for epoch in range(num_epochs):
        samples = picks[epoch]
        hits, admitted, filled = np.zeros(3), np.zeros(3), np.zeros(3)
        for batch in range(num_batches):
            for number, plan in enumerate(plans):
                if plan.fill == "offers" or not plan.num_rows:
                    continue
                time = epoch + (batch + 0.5) / num_batches
                done = plan.num_rows if not plan.fill_epochs else int(plan.num_rows * time / plan.fill_epochs)
                mine = np.arange(plan.first_rank, plan.first_rank + min(done, plan.num_rows))
                missing = mine[np.isinf(found_from[mine])]
                found_from[missing] = -1
                filled[number] += len(missing)
                admitted[number] += len(missing)
            now = epoch * num_batches + batch
            rows = samples[batch * work.batch_rows : (batch + 1) * work.batch_rows]
            held = found_from[rows] <= now
            hits += np.bincount(tier_of[rows[held]], minlength=3)[:3]
            for sample in np.unique(rows[~held]):
                number = tier_of[sample]
                if number >= 0 and plans[number].fill != "ahead" and np.isinf(found_from[sample]):
                    found_from[sample] = now + 1 + plans[number].lag_batches
                    admitted[number] += 1
        told.append((hits, admitted, filled))
        # Nothing is under way while the next epoch starts.
        found_from[np.isfinite(found_from)] = -1
    return np.array(told)


def compare(work, tiers, num_epochs=3, num_runs=40, tolerance=0.01):
    """Compare the mean of several runs with what is expected, to a part of an epoch's rows."""
    seen = np.mean([run(work, tiers, num_epochs, np.random.default_rng(seed)) for seed in range(num_runs)], axis=0)
    expected = expect_epochs(work, tiers, num_epochs, on_device=True)
    slack = tolerance * work.epoch_rows
    for one, (hits, admitted, filled) in zip(expected, seen, strict=True):
        assert [one.pool_rows, one.ram_rows, one.disk_rows] == pytest.approx(hits.tolist(), abs=slack)
        there = [one.pool_admitted_rows, one.ram_admitted_rows, one.disk_admitted_rows]
        assert there == pytest.approx(admitted.tolist(), abs=slack)
        assert one.fill_bytes == pytest.approx(filled.sum() * ROW_BYTES, abs=slack * ROW_BYTES)
        assert one.source_rows == pytest.approx(work.epoch_rows - hits.sum(), abs=slack)


def test_a_permutation_misses_in_epoch_0_and_hits_exactly_k_of_n_later():
    work = Workload(1000, ROW_BYTES, "permutation", epoch_rows=1000, batch_rows=32)
    first, *later = expect_epochs(work, tiers_by_rows(1000, pool=300, ram=200, disk=100), 4, on_device=True)
    assert (first.hit_rate, first.source_rows, first.source_bytes) == (0, 1000, 10_000)
    assert (first.pool_admitted_rows, first.ram_admitted_rows, first.disk_admitted_rows) == (300, 200, 100)
    assert (first.disk_written_bytes, first.link_bytes) == (1000, 10_000)
    for epoch in later:
        assert (epoch.pool_hit_rate, epoch.ram_hit_rate, epoch.disk_hit_rate) == (0.3, 0.2, 0.1)
        assert epoch.source_bytes == pytest.approx(4000)
        assert (epoch.disk_read_bytes, epoch.disk_written_bytes, epoch.link_bytes) == (1000, 0, 7000)
        assert epoch.pool_admitted_rows == epoch.fill_bytes == 0


def test_with_a_pool_of_everything_nothing_moves_after_epoch_0():
    work = Workload(500, ROW_BYTES, "permutation", epoch_rows=500, batch_rows=50)
    _, second = expect_epochs(work, tiers_by_rows(500, pool=500), 2, on_device=True)
    assert (second.source_bytes, second.link_bytes, second.pool_hit_rate) == (0, 0, 1)


def test_without_a_device_nothing_is_copied_to_one():
    work = Workload(500, ROW_BYTES, "permutation", epoch_rows=500, batch_rows=50)
    assert [one.link_bytes for one in expect_epochs(work, tiers_by_rows(500, ram=200), 2, on_device=False)] == [0, 0]


def test_repeats_of_a_sample_hit_within_the_first_epoch():
    """With batches of one row exactly the first pick of each sample misses."""
    work = Workload(50, ROW_BYTES, "permutation", epoch_rows=200, batch_rows=1, repeats=4)
    first, second = expect_epochs(work, tiers_by_rows(50, pool=50), 2, on_device=True)
    assert first.source_rows == pytest.approx(50)
    assert first.pool_rows == pytest.approx(150)
    assert second.pool_rows == 200


@pytest.mark.parametrize(
    ("repeats", "batch_rows", "epoch_rows", "lag_batches"),
    [(1, 64, 1900, 0), (1, 64, 1900, 3), (3, 32, 6000, 3), (4, 200, 7800, 0)],
)
def test_permutations_do_as_expected(repeats, batch_rows, epoch_rows, lag_batches):
    work = Workload(2000, ROW_BYTES, "permutation", epoch_rows, batch_rows, repeats)
    tiers = tiers_by_rows(2000, pool=600, ram=500, disk=300)
    plans = (tiers.pool, tiers.ram, tiers.disk)
    compare(work, Tiers(*(TierPlan(one.first_rank, one.num_rows, lag_batches=lag_batches) for one in plans)))


def test_a_rank_with_a_quarter_of_each_epoch_does_as_expected():
    work = Workload(4000, ROW_BYTES, "permutation", epoch_rows=1000, batch_rows=50)
    compare(work, tiers_by_rows(4000, pool=1500, ram=1000), num_epochs=5)


def test_draws_with_replacement_do_as_expected():
    work = Workload(1000, ROW_BYTES, "drawn", epoch_rows=1500, batch_rows=30)
    compare(work, tiers_by_rows(1000, pool=400, ram=300, disk=200))


def test_the_heaviest_samples_of_weighted_draws_hit_more_often_than_their_number():
    weights = 1 / np.arange(1, 2001)
    work = Workload(2000, ROW_BYTES, "drawn", epoch_rows=2000, batch_rows=40, probabilities=weights)
    tiers = Tiers(pool=TierPlan(0, 200), ram=TierPlan(200, 300), disk=TierPlan(500, 500))
    compare(work, tiers, tolerance=0.015)
    assert expect_epochs(work, tiers, 2, on_device=True)[1].pool_hit_rate > 0.6


@pytest.mark.parametrize("fill", ["ahead", "both"])
@pytest.mark.parametrize("fill_epochs", [0, 0.3, 1, 1.6])
def test_filling_ahead_does_as_expected(fill, fill_epochs):
    work = Workload(2000, ROW_BYTES, "permutation", epoch_rows=2000, batch_rows=20)
    compare(work, Tiers(TierPlan(0, 500), TierPlan(1000, 1000, fill, fill_epochs)))


def test_filling_ahead_beside_draws_does_as_expected():
    work = Workload(1000, ROW_BYTES, "drawn", epoch_rows=1000, batch_rows=10)
    compare(work, Tiers(ram=TierPlan(300, 700, "both", 1.2)), tolerance=0.015)


@pytest.mark.parametrize("fill", ["offers", "both"])
def test_a_mixture_in_passes_does_as_expected(fill):
    rates = np.repeat([4.0, 1.0, 0.25], [200, 800, 1000])
    work = Workload(2000, ROW_BYTES, "passes", epoch_rows=1000, batch_rows=20, probabilities=rates)
    compare(work, Tiers(TierPlan(0, 500), TierPlan(500, 900, fill, 1.5)), num_epochs=4, tolerance=0.015)


def test_windows_that_overlap_are_filled_with_fewer_bytes():
    work = Workload(100, ROW_BYTES, "permutation", epoch_rows=100, batch_rows=10)
    tiers = Tiers(ram=TierPlan(50, 50, "ahead", 0.5, fill_bytes=251))
    first, second = expect_epochs(work, tiers, 2, on_device=False)
    assert (first.fill_bytes, second.fill_bytes) == (pytest.approx(251), 0)


@pytest.mark.parametrize("fill", ["ahead", "both"])
def test_weighted_draws_beside_a_fill_do_as_expected(fill):
    """The heaviest samples come first in the fill too; those that are never drawn are read all the same."""
    weights = np.concatenate([1 / np.arange(1, 1501), np.zeros(500)])
    work = Workload(2000, ROW_BYTES, "drawn", epoch_rows=2000, batch_rows=20, probabilities=weights)
    compare(work, Tiers(ram=TierPlan(100, 1900, fill, 1.3)), tolerance=0.015)


def test_a_set_that_is_put_on_the_device_first_crosses_the_link_once():
    work = Workload(300, ROW_BYTES, "permutation", epoch_rows=300, batch_rows=10)
    first, second = expect_epochs(work, Tiers(TierPlan(0, 300, "ahead")), 2, on_device=True)
    assert (first.fill_bytes, first.source_bytes, first.link_bytes, first.pool_hit_rate) == (3000, 0, 3000, 1)
    assert (second.fill_bytes, second.link_bytes) == (0, 0)


@given(
    num_samples=st.integers(1, 400),
    repeats=st.integers(1, 3),
    batch_rows=st.integers(1, 60),
    dropped=st.floats(0, 0.9),
    parts=st.tuples(*[st.floats(0, 1)] * 3),
    drawn=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_rows_always_add_up(num_samples, repeats, batch_rows, dropped, parts, drawn):
    epoch_rows = max(1, int(num_samples * repeats * (1 - dropped)))
    order = "drawn" if drawn else "permutation"
    work = Workload(num_samples, ROW_BYTES, order, epoch_rows, batch_rows, repeats)
    pool, ram, disk = (int(part * num_samples) for part in parts)
    tiers = tiers_by_rows(num_samples, pool=pool, ram=ram, disk=disk)
    admitted = np.zeros(3)
    for one in expect_epochs(work, tiers, 4, on_device=True):
        found = np.array([one.pool_rows, one.ram_rows, one.disk_rows])
        assert (found >= -1e-6).all()
        assert found.sum() + one.source_rows == pytest.approx(epoch_rows)
        assert one.link_bytes == pytest.approx((epoch_rows - one.pool_rows) * ROW_BYTES)
        new = np.array([one.pool_admitted_rows, one.ram_admitted_rows, one.disk_admitted_rows])
        assert (new >= -1e-6).all()
        # Nothing is taken in that was not read from the source.
        assert new.sum() <= one.source_rows + 1e-6
        admitted += new
    assert (admitted <= [tiers.pool.num_rows + 1e-6, tiers.ram.num_rows + 1e-6, tiers.disk.num_rows + 1e-6]).all()


def test_long_epochs_are_looked_at_in_part_with_the_same_result():
    short = Workload(1000, ROW_BYTES, "permutation", epoch_rows=4000, batch_rows=1, repeats=4)
    long = Workload(100_000, ROW_BYTES, "permutation", epoch_rows=400_000, batch_rows=1, repeats=4)
    one = expect_epochs(short, tiers_by_rows(1000, pool=500), 1, on_device=True)[0]
    other = expect_epochs(long, tiers_by_rows(100_000, pool=50_000), 1, on_device=True)[0]
    assert one.pool_hit_rate == pytest.approx(other.pool_hit_rate, abs=1e-3)
    assert one.pool_hit_rate == pytest.approx(0.5 * 3 / 4, abs=1e-3)


def test_ranges_by_bytes_are_whole_rows():
    tiers = tiers_by_bytes(100, 10, pool=119, ram=309, disk=10_000)
    assert [one.num_rows for one in (tiers.pool, tiers.ram, tiers.disk)] == [11, 30, 59]


@pytest.mark.parametrize(
    "tiers", [Tiers(TierPlan(0, 60), TierPlan(50, 10)), Tiers(ram=TierPlan(90, 20)), Tiers(disk=TierPlan(-1, 2))]
)
def test_ranges_that_overlap_or_leave_the_set_are_refused(tiers):
    with pytest.raises(ValueError, match=r"must lie apart in 0 \.\. 99"):
        expect_epochs(Workload(100, ROW_BYTES, "permutation", 100, 10), tiers, 1, on_device=True)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [np.nan, 1.0]])
def test_probabilities_that_fit_no_samples_are_refused(weights):
    work = Workload(2, ROW_BYTES, "drawn", 4, 2, probabilities=weights)
    with pytest.raises(ValueError, match="probabilities must be 2 finite numbers"):
        expect_epochs(work, tiers_by_rows(2, pool=1), 1, on_device=True)


def test_a_workload_without_rows_is_refused():
    with pytest.raises(ValueError, match="has no 11 rows"):
        Workload(10, ROW_BYTES, "permutation", epoch_rows=11, batch_rows=2)
    with pytest.raises(ValueError, match="must be at least 1"):
        Workload(10, ROW_BYTES, "permutation", epoch_rows=0, batch_rows=2)


@pytest.mark.parametrize(
    ("times", "name", "words"),
    [
        ((0.008, 0.002, 0.005), "reading", "the loop waits 3 ms a step"),
        ((0.001, 0.010, 0.005), "copying", "copying takes 2.0 x as long as training"),
        ((0.005, 0.005, 0.005), "training", "the loop runs at the speed of the step"),
        ((0.004, 0.001, None), "reading", "reading limits the loop to 4 ms a step"),
    ],
)
def test_the_slowest_stage_is_named_with_its_price(times, name, words):
    found, told = expected_bottleneck(*times)
    assert found == name
    assert words in told
