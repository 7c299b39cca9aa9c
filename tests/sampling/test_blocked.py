"""Blocked order: runs stay near each other, blocks are closed, nothing is held, and how well it mixes."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.sampling.blocked import RUNS_OF_A_BLOCK, BlockedOrder

STARTS = np.array([0, 10, 500, 750])


@pytest.mark.parametrize(
    ("n", "options", "tag", "picks"),
    [
        (
            1000,
            {"block_samples": 256},
            "blocked b1 f6v1 picks=1000 block=256 runs=even 2 seed=42",
            [394, 195, 232, 487, 855, 402, 598, 316],
        ),
        (
            1000,
            {"block_samples": 100, "run_starts": STARTS, "num_repeats": 2},
            "blocked b1 f6v1 picks=2000 augment=2 block=100 runs=4:1aea422888d41da1 seed=42",
            [1871, 1827, 1888, 1823, 1866, 1892, 1894, 1846],
        ),
        (
            10**6,
            {"block_samples": 100_000},
            "blocked b1 f6v1 picks=1000000 block=100000 runs=even 781 seed=42",
            [720781, 648031, 830725, 414161, 384065, 192325, 309699, 433165],
        ),
    ],
)
def test_values_are_pinned(n, options, tag, picks):
    """If they have to change, the tag must change with them."""
    order = BlockedOrder(n, 42, **options)
    assert order.tag == tag
    assert order.epoch(3).at(300, 308).tolist() == picks


@settings(max_examples=70, deadline=None)
@given(
    n=st.integers(1, 600),
    block=st.integers(1, 700),
    k=st.integers(1, 3),
    starts=st.none() | st.lists(st.integers(0, 600), max_size=30),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_block_holds_whole_runs_but_at_its_ends(n, block, k, starts, seed):
    """Undone within blocks, the order goes through one run after the other, each in storage order."""
    if starts is None:
        run_starts, run = None, max(1, block // (RUNS_OF_A_BLOCK * k))
        firsts = np.arange(0, n, run) * k
    else:
        run_starts = np.sort(np.array([0, *(start for start in starts if start <= n)]))
        firsts = np.unique(run_starts[run_starts < n]) * k
    order = BlockedOrder(n, seed, block_samples=block, run_starts=run_starts, num_repeats=k).epoch(1)
    whole = order.at(0, n * k)
    sizes = dict(zip(firsts.tolist(), np.diff(firsts, append=n * k).tolist(), strict=True))
    runs = np.searchsorted(firsts, whole, side="right") - 1
    blocks = np.arange(n * k) // block
    # Runs in the order in which blocks reach them: a run that spans blocks ends one and begins the next.
    left = dict(sizes)
    open_run = None
    for number in range(int(blocks[-1]) + 1):
        here = np.flatnonzero(blocks == number)
        seen, counts = np.unique(firsts[runs[here]], return_counts=True)
        parts = dict(zip(seen.tolist(), counts.tolist(), strict=True))
        assert open_run is None or open_run in parts, "the run that was begun goes on"
        for first, count in parts.items():
            left[first] -= count
        begun = [first for first in parts if left[first] > 0]
        assert len(begun) <= 1
        open_run = begun[0] if begun else None
    assert not any(left.values())


def test_a_block_is_read_from_its_own_runs_only():
    order = BlockedOrder(1 << 20, 42).epoch(0)
    for block in (0, 7, 15):
        picks = order.at(block * 65_536, (block + 1) * 65_536)
        assert len(np.unique(picks // 512)) == RUNS_OF_A_BLOCK


def test_the_repeats_of_a_sample_stand_in_one_run_and_so_in_one_or_two_blocks():
    n, k, block = 5000, 3, 384
    order = BlockedOrder(n, 1, block_samples=block, num_repeats=k).epoch(0)
    blocks = order.where(np.arange(n * k)).reshape(n, k) // block
    assert (blocks.max(axis=1) - blocks.min(axis=1) <= 1).all()
    assert (blocks.max(axis=1) == blocks.min(axis=1)).mean() > 0.98


def test_empty_runs_and_one_run_for_all_are_runs():
    given, without = np.array([0, 0, 10, 10, 500, 750, 1000, 1000]), STARTS
    one, other = (BlockedOrder(1000, 42, block_samples=100, run_starts=starts) for starts in (given, without))
    assert one.tag == other.tag
    assert one.held_bytes == 8 * 4
    assert BlockedOrder(1000, 42).held_bytes == 0
    assert np.array_equal(one.epoch(0).at(0, 1000), other.epoch(0).at(0, 1000))
    whole = BlockedOrder(1000, 42, block_samples=100, run_starts=np.array([0])).epoch(0).at(0, 1000)
    assert np.array_equal(whole // 100, np.arange(1000) // 100)


def test_runs_come_in_another_order_each_epoch_each_place_as_likely():
    order = BlockedOrder(40, 42, block_samples=1, run_starts=np.arange(0, 40, 8))
    firsts = np.array([order.epoch(epoch).at(0, 40)[::8] // 8 for epoch in range(500)])
    counts = np.array([np.bincount(firsts[:, place], minlength=5) for place in range(5)])
    chi_squared = ((counts - 100) ** 2 / 100).sum() * 4 / 5
    assert chi_squared < 16 + 5 * np.sqrt(32)


@pytest.mark.parametrize("block", [65_536, 10**7])
def test_any_place_among_10_to_the_15_samples_is_found_in_little_memory(block):
    n = 10**15
    tracemalloc.start()
    try:
        order = BlockedOrder(n, 7, block_samples=block, num_repeats=2).epoch(3)
        positions = np.concatenate([np.arange(10**14, 10**14 + 50_000), [0, 1, n, 2 * n - 1]])
        picks = order.pick(positions)
        assert np.array_equal(order.where(picks), positions)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(np.unique(picks)) == len(picks)
    assert 0 <= picks.min() <= picks.max() < 2 * n
    assert peak < 12 << 20


def test_the_largest_order_there_may_be():
    n = 2**62
    order = BlockedOrder(n, 7, block_samples=3, num_repeats=1).epoch(2**64 - 1)
    positions = np.array([0, 1, 2, n // 2, n - 2, n - 1])
    assert np.array_equal(order.where(order.pick(positions)), positions)


def mixing(order, n, batch=256):
    """Return figures of one epoch relative to a uniform shuffle; see docs/orders.md."""
    picks = order.epoch(0).at(0, n)
    places = np.empty(n, dtype=np.int64)
    places[picks] = np.arange(n)
    displacement = np.abs(places - np.arange(n)).mean() / (n / 3)
    together = (places[1:] // batch == places[:-1] // batch).mean() / ((batch - 1) / (n - 1))
    classes = np.sort((picks * 100 // n)[: n // 32 * 32].reshape(-1, 32), axis=1)
    distinct = (np.diff(classes, axis=1) > 0).sum(axis=1).mean() + 1
    return displacement, together, distinct


def test_how_well_it_mixes():
    """The figures of docs/orders.md, with room: 16 blocks, data sorted into 100 classes, where uniform gives 27.6."""
    n = 1 << 20
    displacement, together, distinct = mixing(BlockedOrder(n, 42), n)
    assert 0.9 < displacement < 1.1, "samples go anywhere in the epoch"
    assert 15 < together < 17, "neighbours in storage meet in a batch as often more as blocks are there"
    assert 24 < distinct < 26
    _, _, distinct = mixing(BlockedOrder(n, 42, run_starts=np.arange(0, n, 65_536)), n)
    assert 6 < distinct < 8, "shards as large as a block do not mix"
    _, _, distinct = mixing(BlockedOrder(n, 42, run_starts=np.arange(0, n, 1049)), n)
    assert 21 < distinct < 24


@pytest.mark.parametrize(
    ("starts", "says"),
    [
        ([1, 5], "ascend from 0 to at most the 10 samples, got 1 .. 5"),
        ([0, 5, 3], "descending somewhere"),
        ([0, 11], "got 0 .. 11"),
        ([-1, 3], "got -1 .. 3"),
        ([0.0, 5.0], "integers of shape"),
        ([[0, 5]], r"shape \(1, 2\)"),
        ([], "integers of shape"),
    ],
)
def test_starts_that_are_no_runs_are_refused(starts, says):
    with pytest.raises(ValueError, match=says):
        BlockedOrder(10, 1, run_starts=np.array(starts))


@pytest.mark.parametrize(
    ("n", "options", "says"),
    [
        (0, {}, "1 to 2\\*\\*62 picks, got 0 samples"),
        (10, {"num_repeats": 0}, "x 0 repeats"),
        (2**61, {"num_repeats": 3}, "x 3 repeats"),
        (10, {"block_samples": 0}, "a block needs 1 to"),
    ],
)
def test_sizes_out_of_range_are_refused(n, options, says):
    with pytest.raises(ValueError, match=says):
        BlockedOrder(n, 1, **options)
