"""A loop on real ranks of unequal speed: what a row costs is slept, the rest is DistributedDataParallel as it is."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.cluster.world import World
from flodl_pipe.loader.attach import attach
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sampling.share_plan import AutoShares
from tests.cluster.trained import WIDTH, Regression

EVERY = 10


class Slow(torch.autograd.Function):
    """Takes its time, half of it forward and half of it backward."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds / 2)
        return x.clone()

    @staticmethod
    def backward(ctx, gradients):
        time.sleep(ctx.seconds / 2)
        return gradients, None


class Net(nn.Module):
    def __init__(self, row_s):
        super().__init__()
        torch.manual_seed(0)
        self.row_s = row_s
        self.first, self.last = nn.Linear(WIDTH, 32).double(), nn.Linear(32, 1).double()

    def forward(self, x):
        # Its time is spent before the last layer's gradients are the only ones left.
        return self.last(torch.tanh(Slow.apply(self.first(x), self.row_s * len(x))))


def measure(row_s, num_steps, *, auto, by_hand=False):
    """Return this rank's shares of every step, and the seconds of every step, of which all ranks have the same.

    Args:
        row_s: Seconds a row costs on each rank.
        num_steps: Steps.
        auto: Whether shares follow speeds.
        by_hand: Whether the loop tells the time, in place of attach().
    """
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    world = World.join("h", rank, 60.0)
    shares = AutoShares(EVERY) if auto else None
    context = RunContext(rank, ranks, host="h", local_rank=rank, world=world, shares=shares, share_host_cache=False)
    net = Net(row_s[rank])
    model = DistributedDataParallel(net, bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    taken, seconds = [], []
    how = {"global_batch_size": 96, "batch_size": 32, "drop_last": True}
    with Loader(Regression(96 * num_steps), context=context, **how) as loader:
        if not by_hand:
            attach(model, loader)
        began = time.perf_counter()
        for x, y in loader.epoch(0):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            now = time.perf_counter()
            seconds.append(now - began)
            taken.append(len(x))
            began = now
        state = loader.state_dict()["shares"]
    return taken, seconds, state


def compare(row_s, num_steps):
    """Return what equal shares and shares that follow speeds come to."""
    return measure(row_s, num_steps // 4, auto=False), measure(row_s, num_steps, auto=True)
