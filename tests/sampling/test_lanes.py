"""Lanes: each has the same samples every epoch and a part of every block, and the sequence knows nothing of ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.sampling.lanes import Deal, LaneConstants, LanesOrder, constants_in
from flodl_pipe.sampling.orders import UniformOrder
from flodl_pipe.sampling.planned_steps import planned
from flodl_pipe.sampling.share_plan import AutoShares
from flodl_pipe.sampling.steps import Steps


@pytest.mark.parametrize(
    ("sizes", "tag", "first", "last"),
    [
        (
            (1003, 16, 2, 1),
            "lanes c1 f6v1 m1 picks=1003 lanes=16 rows=2 seed=42",
            [682, 816, 761, 451, 220, 925],
            [818, 959, 83],
        ),
        (
            (1003, 16, 2, 3),
            "lanes c1 f6v1 m1 picks=3009 augment=3 lanes=16 rows=2 seed=42",
            [125, 209, 1324, 1763, 851, 2073],
            [1442, 2766, 652],
        ),
        (
            (10**6, 512, 1, 1),
            "lanes c1 f6v1 m1 picks=1000000 lanes=512 rows=1 seed=42",
            [651642, 739463, 6706, 775247, 404428, 385454],
            [436476, 626417, 940559],
        ),
        (
            (10**12, 64, 8, 1),
            "lanes c1 f6v1 m1 picks=1000000000000 lanes=64 rows=8 seed=42",
            [502838186076, 377183346420, 84910048814, 979356274465, 392701789025, 465437094525],
            [172912629474, 329026648776, 216201814715],
        ),
    ],
)
def test_values_are_pinned(sizes, tag, first, last):
    """If they have to change, the tag must change with them."""
    n, lanes, rows, k = sizes
    order = LanesOrder(n, 42, num_lanes=lanes, rows=rows, num_repeats=k)
    assert order.tag == tag
    assert order.epoch(3).at(0, 6).tolist() == first
    assert order.epoch(3).at(n * k - 3, n * k).tolist() == last


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_position_is_hit_once_whatever_the_sizes(rows, k):
    for n in range(1, 22):
        for num_lanes in range(1, n + 1):
            order = LanesOrder(n, 7, num_lanes=num_lanes, rows=rows, num_repeats=k)
            one = order.epoch(3)
            whole = one.at(0, n * k)
            assert np.array_equal(np.sort(whole), np.arange(n * k)), (n, num_lanes)
            assert np.array_equal(one.where(whole), np.arange(n * k)), (n, num_lanes)


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 400), data=st.data())
def test_a_lane_has_one_sample_of_each_stripe_and_lanes_are_even(n, data):
    num_lanes = data.draw(st.integers(1, n))
    deal = Deal(n, num_lanes, data.draw(st.integers(0, 2**64 - 1)))
    samples = np.arange(n)
    lanes = deal.lanes_of(samples)
    even = [n // num_lanes + (lane < n % num_lanes) for lane in range(num_lanes)]
    assert np.bincount(lanes, minlength=num_lanes).tolist() == even
    for begin in range(0, n, num_lanes):
        stripe = lanes[begin : begin + num_lanes]
        assert np.array_equal(np.sort(stripe), np.arange(len(stripe)))
    assert np.array_equal(deal.samples_at(lanes, samples // num_lanes), samples)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), epoch=st.integers(0, 2**64 - 1))
def test_a_block_has_its_rows_of_each_lane_lane_by_lane(data, epoch):
    num_lanes, rows = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 5))
    n, k = data.draw(st.integers(num_lanes, 300)), data.draw(st.integers(1, 3))
    order = LanesOrder(n, 5, num_lanes=num_lanes, rows=rows, num_repeats=k)
    lanes = order.deal.lanes_of(order.epoch(epoch).at(0, n * k) // k)
    num_blocks = n // num_lanes * k // rows
    blocks = lanes[: num_blocks * order.block].reshape(num_blocks, order.block)
    assert (blocks == np.repeat(np.arange(num_lanes), rows)).all()
    # The rest: a block of fewer rows, and what the first lanes have more than the others.
    rest = n // num_lanes * k % rows
    expected = [*np.repeat(np.arange(num_lanes), rest), *np.repeat(np.arange(n % num_lanes), k)]
    assert lanes[num_blocks * order.block :].tolist() == expected


@pytest.mark.parametrize("ratios", [None, (3, 2, 1), (1, 1, 6)])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_rank_sees_the_same_samples_every_epoch(ratios, rows):
    n, num_lanes, world = 5000, 24, 3
    order = LanesOrder(n, 11, num_lanes=num_lanes, rows=rows)
    owned = []
    for rank in range(world):
        steps = Steps(n, order.block, True, rank=rank, world_size=world, ratios=ratios, full_unit=rows)
        first, share = steps.step(0).start // rows, steps.step(0).num_rows // rows
        lanes = set(range(first, first + share))
        samples = set()
        for epoch in range(4):
            one = order.epoch(epoch)
            seen = np.concatenate([one.at(*steps.step(index)[:2]) for index in range(steps.num_steps())])
            assert set(order.deal.lanes_of(seen).tolist()) == lanes
            assert len(np.unique(seen)) == len(seen)
            samples.update(seen.tolist())
        owned.append(samples)
        # What an epoch leaves out, being no full step, is all that it lacks of the rank's own.
        assert len(samples) <= n * share // num_lanes + share
    assert len(set.union(*owned)) == sum(map(len, owned))


@pytest.mark.parametrize(
    ("n", "num_lanes", "rows", "foreign"),
    # Short last steps of 8 rows and of 136. In the one only the first lanes, of rank 0 and 1, have a row left. The
    # other has two of each lane, and 8 more of the first lanes, by which shares are off.
    [(5000, 24, 1, 6), (5000, 64, 4, 20)],
)
def test_a_short_last_step_is_all_that_brings_samples_of_others(n, num_lanes, rows, foreign):
    order = LanesOrder(n, 11, num_lanes=num_lanes, rows=rows)
    others = 0
    for rank in range(4):
        steps = Steps(n, order.block, False, rank=rank, world_size=4, full_unit=rows)
        own = range(rank * num_lanes // 4, (rank + 1) * num_lanes // 4)
        for index in range(steps.num_steps()):
            lanes = order.deal.lanes_of(order.epoch(1).at(*steps.step(index)[:2]))
            num_others = sum(lane not in own for lane in lanes.tolist())
            assert not num_others or index == steps.num_steps() - 1
            others += num_others
    assert others == foreign


def test_the_sequence_is_the_same_in_any_cut_and_a_batch_is_of_the_whole_set():
    order = LanesOrder(1000, 3, num_lanes=16, rows=2)
    whole = order.epoch(5).at(0, 1000)
    for global_batch in (32, 7, 100):
        for world in (1, 2, 5):
            parts = [Steps(1000, global_batch, False, rank=rank, world_size=world) for rank in range(world)]
            joined = [
                order.epoch(5).at(step.start, step.start + step.num_valid)
                for index in range(parts[0].num_steps())
                for step in (part.step(index) for part in parts)
            ]
            assert np.array_equal(np.concatenate(joined), whole)


def test_shares_that_move_are_of_whole_lanes_and_leave_the_sequence_alone():
    n = 1003
    order = LanesOrder(n, 42, num_lanes=16, rows=4)
    parts = []
    for rank in range(3):
        base = Steps(n, 64, False, rank=rank, world_size=3, full_unit=4)
        steps = planned(base, AutoShares(every_steps=4), None, 4).begun()
        found = []
        for index in range(steps.num_steps()):
            if index == 2:
                steps.plan.announce(steps.plan.horizon, (12, 16, 36))
            step = steps.step(index)
            found.append(order.epoch(0).at(step.start, step.start + step.num_valid))
            steps.plan.advance()
        assert [len(rows) for rows in found[5:7]] == [(24, 20, 20)[rank], (12, 16, 36)[rank]]
        parts.append(found)
        # Another global batch has no lanes to cut between, and may be smaller than one row of each rank's.
        assert steps.with_global_batch(8).batch_rows == (3, 3, 2)[rank]
    joined = np.concatenate([rows for step in zip(*parts, strict=True) for rows in step])
    assert np.array_equal(joined, order.epoch(0).at(0, n))


def classes_off(order, rows, num_classes=10, epochs=20):
    """Return how spread the classes of batches of sorted data are, beside those of draws from a hat: 1 is as much."""
    n, found = order.num_picks, []
    for epoch in range(epochs):
        picks = order.epoch(epoch).at(0, n // order_block(order) * order_block(order))
        classes = (picks * num_classes // n).reshape(-1, order_block(order))[:, :rows]
        counts = (classes[:, :, None] == np.arange(num_classes)).sum(axis=1)
        found.append(counts.var(axis=0).mean())
    share = 1 / num_classes
    return float(np.mean(found) / (rows * share * (1 - share) * (n - rows) / (n - 1)))


def order_block(order):
    return order.block if isinstance(order, LanesOrder) else 64


@pytest.mark.parametrize("rows", [64, 8])
def test_batches_of_sorted_data_are_mixed_as_well_as_uniform_ones(rows):
    """A whole batch, and the share of one rank of eight."""
    n = 20_000
    for order in (UniformOrder(n, 3), LanesOrder(n, 3, num_lanes=64, rows=1), LanesOrder(n, 3, num_lanes=16, rows=4)):
        assert 0.94 < classes_off(order, rows) < 1.06


def test_data_that_repeats_with_the_lanes_is_dealt_to_all_of_them():
    """Were stripes not turned, each lane would have one class of data whose classes alternate."""
    first = Deal(64_000, 64, 9).lanes_of(np.arange(0, 64_000, 64))
    counts = np.bincount(first, minlength=64)
    chi_squared = ((counts - 1000 / 64) ** 2 / (1000 / 64)).sum()
    assert abs(chi_squared - 63) < 5 * np.sqrt(2 * 63)


def test_a_rank_owns_of_every_class_its_part_also_where_a_class_is_less_than_a_stripe():
    """Neighbours in storage go to any lanes: were they to lie next to each other, a rank would lack whole classes."""
    n, num_lanes, num_classes = 20_480, 512, 100
    lanes = Deal(n, num_lanes, 3).lanes_of(np.arange(n))
    for rank in range(8):
        owned = np.flatnonzero(lanes // 64 == rank)
        counts = np.bincount(owned * num_classes // n, minlength=num_classes)
        assert abs(counts - 25.6).max() < 5 * np.sqrt(25.6)


def test_two_samples_meet_in_a_batch_as_often_as_in_a_uniform_one():
    """Those of one lane never do, where a batch has one row of each; others make up for it."""
    n, num_lanes, epochs = 96, 8, 2000
    order = LanesOrder(n, 1, num_lanes=num_lanes, rows=1)
    lanes = order.deal.lanes_of(np.arange(n))
    batch_of = np.empty((epochs, n), dtype=np.int64)
    for epoch in range(epochs):
        batch_of[epoch, order.epoch(epoch).at(0, n)] = np.arange(n) // num_lanes
    for one in (0, 17, 50):
        met = (batch_of == batch_of[:, one : one + 1]).sum(axis=0)
        others = np.flatnonzero(lanes != lanes[one])
        assert (met[(lanes == lanes[one]) & (np.arange(n) != one)] == 0).all()
        expected = epochs / 12
        chi_squared = ((met[others] - expected) ** 2 / (expected * (1 - 1 / 12))).sum()
        assert abs(chi_squared - len(others)) < 5 * np.sqrt(2 * len(others))


def test_the_deal_is_of_the_seed_and_epochs_of_both():
    lanes = [Deal(5000, 50, seed).lanes_of(np.arange(5000)) for seed in (1, 2, 2**63)]
    for one, other in ((0, 1), (1, 2), (0, 2)):  # of 100 stripes, some two are turned alike
        assert (lanes[one] == lanes[other]).sum() < 50 * 10
    order = LanesOrder(5000, 1, num_lanes=50, rows=1)
    assert int((order.epoch(0).at(0, 5000) == order.epoch(1).at(0, 5000)).sum()) < 120


def test_constants_are_told_by_the_tag_and_by_no_other_tag():
    assert constants_in(LanesOrder(100, 42, num_lanes=8, rows=2, num_repeats=3).tag) == LaneConstants(8, 2)
    for tag in ("uniform f6v1 picks=100 seed=42", "bucketed l1 f6v1 picks=10 rows=2 pool=3 lengths=ab seed=1", ""):
        assert constants_in(tag) is None
    assert constants_in("lanes c0 f6v1 m1 picks=100 lanes=8 rows=2 seed=42") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_lanes": 0}, "lanes must be 1 to the 10 samples"),
        ({"num_lanes": 11}, "lanes must be 1 to the 10 samples"),
        ({"rows": 0}, "at least 1 row"),
        ({"seed": 2**64}, "seed must be"),
        ({"num_repeats": 0}, "picks"),
        ({"num_samples": 2**62 + 1}, "picks"),
    ],
)
def test_what_is_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LanesOrder(**{"num_samples": 10, "seed": 1, "num_lanes": 2, "rows": 1, **options})
    order = LanesOrder(10, 1, num_lanes=2, rows=1)
    for start, stop in ((-1, 3), (4, 3), (0, 11)):
        with pytest.raises(ValueError, match="do not lie within the epoch of 10 picks"):
            order.epoch(0).at(start, stop)
    with pytest.raises(ValueError, match="epoch must be in"):
        order.epoch(2**64)
