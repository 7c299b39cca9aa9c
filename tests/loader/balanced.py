"""Several ranks in one process whose shares change: what ranks would tell each other is made up."""

import numpy as np

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.cluster.world import Member
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sampling.share_plan import AutoShares


class MadeUp:
    """A world in which every rank stands where this one does, and took times that depend on the step alone.

    Args:
        world_size: Number of ranks.
        seed: Of the times; None: all ranks are as fast.
        hosts: Names of the ranks.
    """

    def __init__(self, world_size, seed=0, hosts=None):
        self.world_size = world_size
        self.seed = seed
        self.hosts = hosts or [f"h/{rank}" for rank in range(world_size)]
        self.exchanges = []
        self.members = [Member(host, int(number)) for host, _, number in (name.rpartition("/") for name in self.hosts)]

    def gather_floats(self, values, what):
        self.exchanges.append((values, what))
        tick = int(values[0])
        if self.seed is None:
            return [tuple(values)] * self.world_size
        times = np.random.default_rng([self.seed, tick]).uniform(0.2, 1.0, self.world_size) ** 2
        return [(*values[:4], time_s, 8.0) for time_s in times.tolist()]

    def gather(self, value, what):
        return [value] * self.world_size

    def name(self, rank):
        return self.hosts[rank]


def contexts(world_size, every, seed=0, *, max_rows=None, ratios=None, hosts=None):
    return [
        RunContext(
            rank,
            world_size,
            ratios,
            world=MadeUp(world_size, seed, hosts),
            shares=AutoShares(every, max_rows),
            share_host_cache=False,
        )
        for rank in range(world_size)
    ]


def loaders(make_source, world_size, every, seed=0, *, max_rows=None, ratios=None, hosts=None, **options):
    return [
        Loader(make_source(), context=context, **options)
        for context in contexts(world_size, every, seed, max_rows=max_rows, ratios=ratios, hosts=hosts)
    ]


def valid_ids(batch):
    ids = batch["id"] if batch.valid is None else batch["id"][batch.valid.bool()]
    return [] if batch.weight == 0.0 else ids.tolist()
