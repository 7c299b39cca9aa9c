"""Orders beside Fisher-Yates: the same statistics, of ours and of a reference shuffle, may not differ by 5 sigma.

The reference is ``Generator.permutation`` (``permuted`` for many at once), with its distribution estimated from fresh
runs of the same size. Each order also has to fail where it should: a shuffle that is known to be bad is told apart.
"""

from functools import cache

import numpy as np
import pytest

from flodl_pipe.sampling.blocked import BlockedOrder
from flodl_pipe.sampling.bucketed import BucketedOrder
from flodl_pipe.sampling.drawn import DrawnOrder
from flodl_pipe.sampling.lanes import LanesOrder
from flodl_pipe.sampling.orders import UniformOrder
from flodl_pipe.sampling.weighted import WeightedOrder

SIZES = [pytest.param(5, marks=pytest.mark.full), 16, pytest.param(64, marks=pytest.mark.full)]
LARGE = 70_001  # above 65,536 a shuffle is computed by Feistel rounds
REFERENCES = {5: 400, 16: 400, 64: 400, LARGE: 60}
ROWS = {5: 3000, 16: 2000, 64: 1000, LARGE: 6}


def cells(values, n):
    """Return values in ``[0, n)`` as one of at most 64 cells of (almost) the same size."""
    return values if n <= 64 else values * 16 // n


def spread_over(codes, num_cells):
    """Return the sum of squared deviations of cell counts, relative to what is expected."""
    counts = np.bincount(codes.ravel(), minlength=num_cells)
    expected = codes.size / num_cells
    return float(((counts - expected) ** 2).sum() / expected)


def correlation(one, other, n):
    """Return the mean product of standardised values at the same positions."""
    middle, deviation = (n - 1) / 2, np.sqrt((n * n - 1) / 12)
    return float((((one - middle) / deviation) * ((other - middle) / deviation)).mean())


def statistics(orders, n):
    """Return the statistics of consecutive orders.

    Args:
        orders: int64, shape ``(rows, n)``.
        n: Values are in ``[0, n)``.
    """
    positions = np.arange(n)
    values = cells(orders, n)
    size = int(cells(np.array(n - 1), n)) + 1
    places = np.broadcast_to(cells(positions, n), orders.shape)
    moved = np.abs(orders - positions)
    return {
        "value at position": spread_over(places * size + values, size * size),
        "pairs of neighbours": spread_over(values[:, :-1] * size + values[:, 1:], size * size),
        "pairs two apart": spread_over(values[:, :-2] * size + values[:, 2:], size * size),
        "the first and the last": spread_over(values[:, 0] * size + values[:, -1], size * size),
        "displacement": float(moved.mean()),
        "squared displacement": float((moved.astype(np.float64) ** 2).mean()),
        "places that stay": float((moved == 0).mean()),
        "correlation with position": correlation(orders, positions, n),
        "correlation with the next": correlation(orders[:-1], orders[1:], n),
        "correlation with the one after": correlation(orders[:-2], orders[2:], n),
        "agreement with the next": float((orders[:-1] == orders[1:]).mean()),
        "ascending neighbours": float((orders[:, 1:] > orders[:, :-1]).mean()),
        "displacement from the next, as the inverse sees it": float(
            np.abs(np.argsort(orders[:-1], axis=1) - np.argsort(orders[1:], axis=1)).mean()
        ),
    }


@cache
def reference(n, replaced=False):
    """Return mean and standard deviation of each statistic, of a shuffle (or of draws) by NumPy."""
    found = []
    for seed in range(REFERENCES[n]):
        rng = np.random.default_rng([n, seed])
        rows = np.tile(np.arange(n), (ROWS[n], 1))
        orders = rng.integers(0, n, rows.shape) if replaced else rng.permuted(rows, axis=1)
        found.append(statistics(orders, n))
    return {name: (np.mean(all_ := [one[name] for one in found]), np.std(all_)) for name in found[0]}


def deviations(orders, n, replaced=False):
    """Return how many standard deviations each statistic is off the reference's mean."""
    expected = reference(n, replaced)
    return {name: (value - expected[name][0]) / expected[name][1] for name, value in statistics(orders, n).items()}


def worst(orders, n, replaced=False):
    return max((abs(value), name) for name, value in deviations(orders, n, replaced).items())


def epochs_of(order, num_epochs):
    return np.array([order.epoch(epoch).at(0, order.num_picks) for epoch in range(num_epochs)])


def seeds_of(make, num_seeds):
    return np.array([(order := make(seed)).epoch(3).at(0, order.num_picks) for seed in range(num_seeds)])


def first_block(n, seed):
    """Return an order of one block and one run: the block's own permutation and nothing else."""
    return BlockedOrder(n, seed, block_samples=n, run_starts=np.array([0]))


MAKERS = {
    "uniform": UniformOrder,
    "inside a block": first_block,
    "blocked, runs of one": lambda n, seed: BlockedOrder(n, seed, block_samples=3),
    "inside a lane": lambda n, seed: LanesOrder(n, seed, num_lanes=1, rows=1),
    "bucketed, of one length": lambda n, seed: BucketedOrder(np.ones(n, dtype=int), seed, rows=2, pool_batches=3),
    "bucketed, in one pool": lambda n, seed: BucketedOrder(np.ones(n, dtype=int), seed, rows=1, pool_batches=n),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("n", SIZES)
def test_consecutive_epochs_are_like_fisher_yates(name, n):
    deviation, statistic = worst(epochs_of(MAKERS[name](n, 42), ROWS[n]), n)
    assert deviation < 5, statistic


@pytest.mark.parametrize(
    "name",
    [name if name in ("uniform", "inside a lane") else pytest.param(name, marks=pytest.mark.full) for name in MAKERS],
)
@pytest.mark.parametrize("n", SIZES)
def test_neighbouring_seeds_are_like_fisher_yates(name, n):
    deviation, statistic = worst(seeds_of(lambda seed: MAKERS[name](n, seed), ROWS[n]), n)
    assert deviation < 5, statistic


@pytest.mark.full
@pytest.mark.parametrize("name", ["uniform", "inside a block"])
def test_feistel_shuffles_are_like_fisher_yates(name):
    make = MAKERS[name]
    for orders in (epochs_of(make(LARGE, 42), ROWS[LARGE]), seeds_of(lambda seed: make(LARGE, seed), ROWS[LARGE])):
        deviation, statistic = worst(orders, LARGE)
        assert deviation < 5, statistic


@pytest.mark.parametrize("n", SIZES)
def test_later_blocks_are_like_fisher_yates_and_not_like_the_first(n):
    order = BlockedOrder(3 * n, 42, block_samples=n, run_starts=np.arange(0, 3 * n, n))
    epochs = epochs_of(order, ROWS[n])
    for block in (1, 2):
        deviation, statistic = worst(epochs[:, block * n : (block + 1) * n] % n, n)
        assert deviation < 5, statistic
    # Blocks of one epoch, one after the other: as different from each other as epochs are.
    deviation, statistic = worst((epochs % n).reshape(-1, n)[: ROWS[n]], n)
    assert deviation < 5, statistic


@pytest.mark.parametrize("n", SIZES)
def test_even_draws_are_like_those_of_numpy(n):
    for make in (
        lambda n, seed: DrawnOrder(n, n, seed),
        lambda n, seed: WeightedOrder(np.ones(n), n, seed, num_samples=n),
        lambda n, seed: WeightedOrder(np.full(n, 0.1), n, seed, num_samples=n),
    ):
        for orders in (epochs_of(make(n, 42), ROWS[n]), seeds_of(lambda seed, make=make: make(n, seed), ROWS[n])):
            deviation, statistic = worst(orders, n, replaced=True)
            assert deviation < 5, statistic


def within_5_sigma(codes, probabilities):
    """Tell whether counts of codes fit probabilities: chi-squared within five standard deviations."""
    counts = np.bincount(codes.ravel(), minlength=len(probabilities))
    here = probabilities > 0
    expected = probabilities[here] * codes.size
    degrees = int(here.sum()) - 1
    chi_squared = ((counts[here] - expected) ** 2 / expected).sum()
    return not counts[~here].any() and abs(chi_squared - degrees) < 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("n", SIZES)
def test_weighted_draws_are_independent_at_positions_neighbours_epochs_and_seeds(n):
    weights = np.arange(n) % 5 * 1.0  # every fifth is never drawn
    likely = weights / weights.sum()
    pairs = np.outer(likely, likely).ravel()
    num_rows, num_picks = 20_000 // n * 2, 64
    for orders in (
        epochs_of(WeightedOrder(weights, num_picks, 42, num_samples=n), num_rows),
        seeds_of(lambda seed: WeightedOrder(weights, num_picks, seed, num_samples=n), num_rows),
    ):
        assert within_5_sigma(orders, likely)
        assert all(within_5_sigma(orders[:, place], likely) for place in range(0, num_picks, 7))
        assert within_5_sigma(orders[:, ::2] * n + orders[:, 1::2], pairs)
        assert within_5_sigma(orders[::2] * n + orders[1::2], pairs)
        centred = orders - orders.mean()
        assert abs((centred[1:] * centred[:-1]).mean() / centred.var()) < 5 / np.sqrt(centred[1:].size)


def swapped_neighbours(n, seed):
    """Return a shuffle as a naive one goes wrong: each place swapped with any other, not with those behind it."""
    rng = np.random.default_rng(seed)
    order = np.arange(n)
    for place, other in enumerate(rng.integers(0, n, n)):
        order[[place, other]] = order[[other, place]]
    return order


BAD = {
    "each place swapped with any other": (16, lambda rows: [swapped_neighbours(16, seed) for seed in range(rows)]),
    "rotations of one shuffle": (
        16,
        lambda rows: [np.roll(np.random.default_rng(0).permutation(16), row * 5) for row in range(rows)],
    ),
    "every order twice": (
        64,
        lambda rows: [np.random.default_rng(row // 2).permutation(64) for row in range(rows)],
    ),
    "an affine map": (
        LARGE,
        lambda rows: [(np.arange(LARGE) * (12_345 + 2 * row) + 7 * row) % LARGE for row in range(rows)],
    ),
    "a shuffle of blocks of 16": (
        64,
        lambda rows: [
            np.concatenate([16 * block + np.random.default_rng([row, block]).permutation(16) for block in range(4)])
            for row in range(rows)
        ],
    ),
}


@pytest.mark.parametrize(
    "name", [name if n == 16 else pytest.param(name, marks=pytest.mark.full) for name, (n, _) in BAD.items()]
)
def test_bad_shuffles_are_told_apart(name):
    n, make = BAD[name]
    deviation, _ = worst(np.array(make(ROWS[n])), n)
    assert deviation > 10
