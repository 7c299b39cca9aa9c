"""Orders as functions: ns an index in blocks, us for a lone batch of 32, and memory at 10^15 items.

First the shuffle alone, against its targets; then each order as a look-ahead asks for it, block after block, where
pieces that an order computes at once (blocks, pools) are paid by the positions that use them.
"""

import sys
import time
import tracemalloc

import numpy as np
from timing import check, machine, median

from flodl_pipe.keyed.permute import permutation
from flodl_pipe.sampling.blocked import BlockedOrder
from flodl_pipe.sampling.bucketed import BucketedOrder
from flodl_pipe.sampling.drawn import DrawnOrder
from flodl_pipe.sampling.lanes import LanesOrder
from flodl_pipe.sampling.orders import SequentialOrder, UniformOrder
from flodl_pipe.sampling.weighted import WeightedOrder

BLOCK = 8192
LARGE = 10**8


def ns_an_index(n, repeats=15, blocks=20):
    shuffle = permutation(n, 42, 0)
    positions = np.random.default_rng(0).integers(0, n, BLOCK)
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(blocks):
            shuffle.at(positions)
        found.append((time.perf_counter() - began) / blocks / BLOCK * 1e9)
    return median(found)[0]


def us_for_a_lone_batch(n, repeats=15, calls=200):
    shuffle = permutation(n, 42, 0)
    positions = np.arange(32)
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(calls):
            shuffle.at(positions)
        found.append((time.perf_counter() - began) / calls * 1e6)
    return median(found)[0]


def ns_a_position(order, repeats=7, positions=1 << 18):
    """Return the time of a position, where all of the epoch's are asked for in turn, in blocks."""
    found = []
    for epoch in range(repeats):
        one = order.epoch(epoch)
        began = time.perf_counter()
        for start in range(0, min(order.num_picks - BLOCK, positions), BLOCK):
            one.at(start, start + BLOCK)
        found.append((time.perf_counter() - began) / min(order.num_picks - BLOCK, positions) * 1e9)
    return median(found)[0]


def us_a_batch(order, repeats=7, calls=200):
    """Return the time of a batch of 32, where batches are asked for one by one, in turn."""
    found = []
    for epoch in range(repeats):
        one = order.epoch(epoch)
        began = time.perf_counter()
        for start in range(0, calls * 32, 32):
            one.at(start, start + 32)
        found.append((time.perf_counter() - began) / calls * 1e6)
    return median(found)[0]


def orders():
    """Yield (name, order, most ns a position)."""
    rng = np.random.default_rng(0)
    yield "sequential", SequentialOrder(LARGE), 5
    yield "uniform", UniformOrder(LARGE, 42), 25
    yield "uniform, augment 4", UniformOrder(4 * LARGE, 42, num_repeats=4), 25
    for num_lanes, rows in ((512, 1), (64, 8)):
        yield f"lanes, {num_lanes}", LanesOrder(LARGE, 42, num_lanes=num_lanes, rows=rows), 150
    yield "drawn", DrawnOrder(LARGE, LARGE, 42), 25
    for n, most in ((10**3, 100), (10**6, 200), (10**7, 800)):
        yield f"weighted, {n:,} samples", WeightedOrder(rng.random(n), LARGE, 42, num_samples=n), most
    for block in (8192, 65_536, 10**6):
        yield f"blocked, blocks of {block:,}", BlockedOrder(LARGE, 42, block_samples=block), 200
    starts = np.arange(0, LARGE, 10_000)
    yield "blocked, 10,000 shards", BlockedOrder(LARGE, 42, run_starts=starts), 200
    yield "blocked, 10^15 samples", BlockedOrder(10**15, 42), 200
    lengths = rng.integers(4, 65, 10**7)
    for rows in (32, 512):
        yield f"bucketed, batches of {rows}", BucketedOrder(lengths, 42, rows=rows), 300


def mixing(order, batch=256, num_classes=100):
    """Return how well an epoch is mixed: displacement and neighbours relative to a uniform shuffle, classes of 32."""
    n = order.num_picks
    picks = order.epoch(0).at(0, n)
    places = np.empty(n, dtype=np.int64)
    places[picks] = np.arange(n)
    displacement = np.abs(places - np.arange(n)).mean() / (n / 3)
    together = (places[1:] // batch == places[:-1] // batch).mean() / ((batch - 1) / (n - 1))
    classes = np.sort((picks * num_classes // n)[: n // 32 * 32].reshape(-1, 32), axis=1)
    return displacement, together, (np.diff(classes, axis=1) > 0).sum(axis=1).mean() + 1


def print_mixing(n=1 << 20):
    print(f"mixing, {n:,} samples: displacement | neighbours in one batch of 256 | classes of 100 in 32, data sorted")
    for name, order in (
        ("sequential", SequentialOrder(n)),
        ("uniform", UniformOrder(n, 42)),
        *(
            (f"blocks of {block:,}", BlockedOrder(n, 42, block_samples=block))
            for block in (1024, 8192, 65_536, 1 << 18)
        ),
        *(
            (f"shards of {size:,}", BlockedOrder(n, 42, run_starts=np.arange(0, n, size)))
            for size in (1000, 4096, 16_384, 65_536)
        ),
    ):
        displacement, together, classes = mixing(order)
        print(f"  {name}: {displacement:.2f} | {together:.1f} | {classes:.1f}")


def peak_bytes(make, n):
    tracemalloc.start()
    make(n)(np.arange(BLOCK))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main():
    print(machine())
    met = []
    for n in (10**5, 5 * 10**7, 10**9, 10**15):
        met += [
            check(f"ns an index in blocks of {BLOCK}, n = {n:.0e}", ns_an_index(n), 25, at_least=False),
            check(f"us for a lone batch of 32, n = {n:.0e}", us_for_a_lone_batch(n), 60, at_least=False),
        ]
    for name, make in (
        ("the shuffle", lambda n: permutation(n, 42, 0).at),
        ("a blocked order", lambda n: BlockedOrder(n, 42).epoch(0).pick),
    ):
        growth = peak_bytes(make, 10**15) / peak_bytes(make, 10**5)
        met.append(check(f"memory of {name} at 10^15 items / at 10^5", growth, 1.5, at_least=False))
    for name, order, most in orders():
        met.append(check(f"ns a position, {name}", ns_a_position(order), most, at_least=False))
        print(f"       us a batch of 32, one by one: {us_a_batch(order):.0f}")
    print_mixing()
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
