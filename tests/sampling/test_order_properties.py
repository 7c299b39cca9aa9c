"""What every order promises: a function of (seed, epoch, position), seekable, invertible, without collisions."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl_pipe.sampling.blocked import BlockedOrder
from flodl_pipe.sampling.bucketed import BucketedOrder
from flodl_pipe.sampling.drawn import DrawnOrder
from flodl_pipe.sampling.lanes import LanesOrder
from flodl_pipe.sampling.orders import SequentialOrder, UniformOrder, samples_of
from flodl_pipe.sampling.weighted import WeightedOrder

WORDS = st.integers(0, 2**64 - 1)


def numbers(n, low, high):
    """Return ``n`` numbers that a test can make again from ``n`` alone."""
    return np.random.default_rng(n).integers(low, high, n)


def uniform(n, seed, k=1):
    return UniformOrder(n * k, seed, num_repeats=k)


def sequential(n, seed, k=1):
    return SequentialOrder(n * k, num_repeats=k)


def blocked(n, seed, k=1, block=7):
    return BlockedOrder(n, seed, block_samples=block, num_repeats=k)


def sharded(n, seed, k=1, block=7):
    starts = np.unique([0, *numbers(n, 0, n)[: 1 + n // 5].tolist()])
    return BlockedOrder(n, seed, block_samples=block, run_starts=starts, num_repeats=k)


def bucketed(n, seed, k=1, rows=3, pool=4):
    return BucketedOrder(numbers(n, 0, 9), seed, rows=rows, pool_batches=pool, num_repeats=k)


def lanes(n, seed, k=1, num_lanes=5, rows=2):
    return LanesOrder(n, seed, num_lanes=min(n, num_lanes), rows=rows, num_repeats=k)


def drawn(n, seed):
    return DrawnOrder(n, 2 * n, seed)


def weighted(n, seed):
    return WeightedOrder(numbers(n, 1, 9), 2 * n, seed, num_samples=n)


SHUFFLES = [uniform, lanes, blocked, sharded, bucketed]
BIJECTIONS = [*SHUFFLES, sequential]
DRAWS = [drawn, weighted]


@st.composite
def bijections(draw):
    """Any order that holds each pick once, with sizes where blocks, pools and runs end anywhere."""
    n, seed, k = draw(st.integers(1, 400)), draw(WORDS), draw(st.integers(1, 4))
    make = draw(st.sampled_from(BIJECTIONS))
    options = {}
    if make in (blocked, sharded):
        options = {"block": draw(st.sampled_from([1, 2, 3, 16, 100, 128, 300, 5000]))}
    if make is lanes:
        options = {"num_lanes": draw(st.integers(1, 40)), "rows": draw(st.integers(1, 12))}
    if make is bucketed:
        options = {"rows": draw(st.integers(1, 40)), "pool": draw(st.integers(1, 12))}
    return make(n, seed, k, **options)


@settings(max_examples=100, deadline=None)
@given(order=bijections(), epoch=WORDS)
def test_every_pick_stands_once_and_is_found(order, epoch):
    n = order.num_picks
    one = order.epoch(epoch)
    whole = one.at(0, n)
    assert whole.dtype == np.int64
    assert np.array_equal(np.sort(whole), np.arange(n))
    assert np.array_equal(one.where(whole), np.arange(n))
    assert np.array_equal(order.epoch(epoch).where(np.arange(n)[::-1]), np.argsort(whole)[::-1])


@settings(max_examples=100, deadline=None)
@given(order=bijections(), epoch=WORDS)
def test_every_sample_comes_with_each_of_its_repeats_once(order, epoch):
    positions = np.arange(order.num_picks)
    samples, repeats = samples_of(order, positions, order.epoch(epoch).at(0, order.num_picks))
    k = order.num_repeats
    pairs = sorted(zip(samples.tolist(), repeats.tolist(), strict=True))
    assert pairs == [(sample, repeat) for sample in range(order.num_picks // k) for repeat in range(k)]


@settings(max_examples=100, deadline=None)
@given(
    order=bijections() | st.builds(drawn, st.integers(1, 300), WORDS) | st.builds(weighted, st.integers(1, 300), WORDS),
    epoch=WORDS,
    data=st.data(),
)
def test_pieces_of_any_cut_join_to_the_whole_however_it_is_asked(order, epoch, data):
    n = order.num_picks
    whole = order.epoch(epoch).at(0, n)
    cuts = sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=12))})
    pieces = list(pairwise(cuts))
    one = order.epoch(epoch)
    found = np.empty_like(whole)
    for start, stop in data.draw(st.permutations(pieces)):
        found[start:stop] = one.at(start, stop)
    assert np.array_equal(found, whole)
    places = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=30)), dtype=np.int64)
    asked = places.copy()
    assert np.array_equal(one.pick(places), whole[places])
    assert np.array_equal(places, asked), "what was asked is the caller's"
    assert len(one.at(n, n)) == 0
    if order.num_repeats:
        picks = whole[places]
        assert np.array_equal(one.where(picks), places)
        assert np.array_equal(picks, whole[places])


@pytest.mark.parametrize("make", [*SHUFFLES, *DRAWS])
def test_seeds_and_epochs_never_collide(make):
    big = 2**32
    keys = [(s, e) for s in (0, 1, 7, big, big + 1, big + 7, 2**63, 2**64 - 1) for e in (0, 1, 7, big, big + 7, 2**63)]
    n = 400
    orders = {key: make(n, key[0]).epoch(key[1]).at(0, n) for key in keys}
    found = list(orders.values())
    for place, one in enumerate(found):
        for other in found[:place]:
            # Two shuffles agree in one place of the mean, two series of draws in one or two.
            assert int((one == other).sum()) < 25


@pytest.mark.parametrize("make", [*SHUFFLES, *DRAWS])
def test_an_epoch_comes_again_the_same_also_from_another_object(make):
    order, other = make(300, 5), make(300, 5)
    assert order.tag == other.tag
    first = order.epoch(3).at(0, 300)
    order.epoch(4).at(0, 300)
    assert np.array_equal(order.epoch(3).at(0, 300), first)
    assert np.array_equal(other.epoch(3).at(0, 300), first)
    assert not np.array_equal(order.epoch(4).at(0, 300), first)


@pytest.mark.parametrize("make", SHUFFLES)
def test_repeats_are_not_the_shuffle_of_the_samples_again(make):
    plain, twice = make(300, 5).epoch(0).at(0, 300), make(300, 5, 2).epoch(0).at(0, 600) // 2
    assert not np.array_equal(twice[:300], plain)
    assert not np.array_equal(twice[::2], twice[1::2])


@pytest.mark.parametrize("make", [*BIJECTIONS, *DRAWS])
def test_a_range_outside_the_epoch_is_refused(make):
    order = make(300, 1) if make in DRAWS else make(300, 1, 2)
    for start, stop in ((-1, 3), (4, 3), (0, 601), (700, 700)):
        with pytest.raises(ValueError, match="600 picks"):
            order.epoch(0).at(start, stop)


@pytest.mark.parametrize("make", [*SHUFFLES, *DRAWS])
def test_an_epoch_and_a_seed_that_do_not_fit_are_refused(make):
    for epoch in (-1, 2**64):
        with pytest.raises(ValueError, match=f"got {epoch}"):
            make(10, 1).epoch(epoch)
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match=f"seed must be .* got {seed}"):
            make(10, seed)


@pytest.mark.parametrize("make", [*SHUFFLES, *DRAWS])
def test_several_threads_find_the_same(make):
    order = make(3000, 9)
    whole = order.epoch(2).at(0, 3000)
    one = order.epoch(2)
    starts = np.random.default_rng(0).integers(0, 2900, 200).tolist()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda start: one.at(start, start + 100), starts))
    assert all(np.array_equal(picks, whole[start : start + 100]) for start, picks in zip(starts, found, strict=True))


def test_the_global_random_state_is_not_touched():
    np.random.seed(3)  # noqa: NPY002 - the state that must stay as it is
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    for make in (*SHUFFLES, *DRAWS):
        make(50, 1).epoch(0).at(0, 50)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
