"""Lanes against the uniform order: what the tiers of a rank find, what is read, and how well batches are mixed.

Ranks are simulated, one after the other in this process, each with a RAM cache for a part of the set; hits are those
that :meth:`flodl_pipe.Loader.tiers` counts in the second and third epoch.
"""

import sys
import time
from pathlib import Path

import numpy as np
from timing import machine

from flodl_pipe import Loader
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.loader import host_budget
from flodl_pipe.memory.probe import HostMemory
from flodl_pipe.sampling.lanes import LanesOrder
from flodl_pipe.sampling.orders import UniformOrder

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.loader.sources import Numbers

N, G, ROW = 20_480, 512, 1000


def loader_of(order, rank, world, ratios):
    options = {"global_batch_size": G, "order": order, "mode": "streaming", "device": "cpu", "prefetch": 4}
    return Loader(Numbers(N, ROW), **options, readers=1, context=RunContext(rank, world, ratios=ratios))


def hit_rate(order, rank, world, part, ratios=None):
    """Return the part of its rows that a rank finds in a RAM cache for ``part`` of the set."""
    with loader_of(order, rank, world, ratios) as loader:
        ring, row = dict(loader.granted())["ring"], loader.dataset.spec.row_bytes
    grant = HostMemory(1 << 36, 2 * (ring + int(part * N) * (row + 1) + 1), "host")
    probe, host_budget.probe_host = host_budget.probe_host, lambda: grant
    try:
        with loader_of(order, rank, world, ratios) as loader:
            for _ in loader.epoch(0):
                pass
            while not loader._engine._tiers.is_filled:
                time.sleep(0.01)
            before = loader.tiers()[0]
            for epoch in (1, 2):
                for _ in loader.epoch(epoch):
                    pass
            after = loader.tiers()[0]
    finally:
        host_budget.probe_host = probe
    return (after.num_hits - before.num_hits) / (after.num_rows - before.num_rows)


def print_hits():
    print(f"hits of all ranks together, {N:,} samples, global batch {G}, each rank with room for K of N")
    for part in (0.05, 0.125, 0.25):
        uniform = np.mean([hit_rate("uniform", rank, 8, part) for rank in (0, 7)])
        worlds = (1, 2, 4, 8)
        found = [np.mean([hit_rate("lanes", rank, world, part) for rank in range(world)]) for world in worlds]
        lanes = " ".join(f"{one:.3f}" for one in found)
        print(f"  K/N {part}: uniform, 8 ranks {uniform:.3f} | lanes, 1 2 4 8 ranks {lanes}")
    uneven = [f"{hit_rate('lanes', rank, 3, 0.125, (3, 2, 1)):.3f}" for rank in range(3)]
    print("  K/N 0.125: lanes, 3 ranks with shares 3:2:1:", *uneven)


def spread(order, rows, num_classes=100, epochs=20):
    """Return the variance of a class's rows in (a rank's part of) a batch, beside draws from a hat; data are sorted."""
    n, found = order.num_picks, []
    for epoch in range(epochs):
        classes = (order.epoch(epoch).at(0, n // G * G) * num_classes // n).reshape(-1, G)[:, :rows]
        found.append((classes[:, :, None] == np.arange(0, num_classes, 7)).sum(axis=1).var(axis=0).mean())
    share = 1 / num_classes
    return float(np.mean(found) / (rows * share * (1 - share) * (n - rows) / (n - 1)))


def meetings(order, num_pairs=200, epochs=400):
    """Return mean and variance of how often pairs of samples meet in a batch, beside those of draws from a hat."""
    n = order.num_picks
    ones = np.random.default_rng(0).choice(n, num_pairs, replace=False)
    others = np.random.default_rng(1).choice(n, (num_pairs, 50))
    met = np.zeros(others.shape)
    for epoch in range(epochs):
        one = order.epoch(epoch)
        met += one.where(ones)[:, None] // 64 == one.where(others.reshape(-1)).reshape(others.shape) // 64
    met = met[others != ones[:, None]]
    chance = 63 / (n - 1)
    return met.mean() / (epochs * chance), met.var() / (epochs * chance * (1 - chance))


def print_mixing():
    print(f"spread of classes, {N:,} sorted samples, 100 classes: batch of {G} | one of 8 ranks' 64; 1 is chance")
    for name, order in (
        ("uniform", UniformOrder(N, 42)),
        ("512 lanes", LanesOrder(N, 42, num_lanes=512, rows=1)),
        ("64 lanes", LanesOrder(N, 42, num_lanes=64, rows=8)),
        ("8 lanes", LanesOrder(N, 42, num_lanes=8, rows=64)),
    ):
        print(f"  {name}: {spread(order, G):.3f} | {spread(order, 64):.3f}")
    print("pairs of 4,096 samples that meet in a batch of 64, beside chance: mean | variance")
    for name, order in (
        ("uniform", UniformOrder(4096, 42)),
        ("64 lanes", LanesOrder(4096, 42, num_lanes=64, rows=1)),
        ("8 lanes", LanesOrder(4096, 42, num_lanes=8, rows=8)),
    ):
        mean, variance = meetings(order)
        print(f"  {name}: {mean:.3f} | {variance:.3f}")


if __name__ == "__main__":
    print(machine())
    print_mixing()
    print_hits()
