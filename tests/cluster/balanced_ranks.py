"""A loop on real ranks of unequal speed: what a row costs is slept, the rest is DistributedDataParallel as it is.

Time that is slept need not pass: on a :class:`Clock` a rank takes exactly what its rows cost, however busy the machine.
"""

import time
from contextlib import nullcontext
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from flodl_pipe.cluster import clock
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.cluster.world import World
from flodl_pipe.loader.attach import attach
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sampling.share_plan import AutoShares
from tests.cluster.ranks import PATIENT_S
from tests.cluster.trained import WIDTH, Regression

EVERY = 10


class Clock:
    """What stands for the module `time`: its time passes where somebody sleeps, at once, and nowhere else."""

    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


class Slow(torch.autograd.Function):
    """Takes its time, half of it forward and half of it backward."""

    @staticmethod
    def forward(ctx, x, seconds, sleep):
        ctx.seconds, ctx.sleep = seconds, sleep
        sleep(seconds / 2)
        return x.clone()

    @staticmethod
    def backward(ctx, gradients):
        ctx.sleep(ctx.seconds / 2)
        return gradients, None, None


class Net(nn.Module):
    def __init__(self, row_s, sleep):
        super().__init__()
        torch.manual_seed(0)
        self.row_s, self.sleep = row_s, sleep
        self.first, self.last = nn.Linear(WIDTH, 32).double(), nn.Linear(32, 1).double()

    def forward(self, x):
        # Its time is spent before the last layer's gradients are the only ones left.
        return self.last(torch.tanh(Slow.apply(self.first(x), self.row_s * len(x), self.sleep)))


def measure(row_s, num_steps, *, auto, real):
    """Return this rank's shares of every step, the seconds it took for every step, and the shares that it would save.

    Args:
        row_s: Seconds a row costs on each rank.
        num_steps: Steps.
        auto: Whether shares follow speeds.
        real: Whether time passes, and a step takes as long as its slowest rank; else it is each rank's own.
    """
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    world = World.join("h", rank, PATIENT_S)
    shares = AutoShares(EVERY) if auto else None
    context = RunContext(rank, ranks, host="h", local_rank=rank, world=world, shares=shares, share_host_cache=False)
    timer = time if real else Clock()
    model = DistributedDataParallel(Net(row_s[rank], timer.sleep), bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    taken, seconds = [], []
    how = {"global_batch_size": 96, "batch_size": 32, "drop_last": True}
    clocked = nullcontext() if real else patch.object(clock, "time", timer)
    with clocked, Loader(Regression(96 * num_steps), context=context, **how) as loader:
        attach(model, loader)
        began = timer.perf_counter()
        for x, y in loader.epoch(0):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            now = timer.perf_counter()
            seconds.append(now - began)
            taken.append(len(x))
            began = now
        state = loader.state_dict()["shares"]
    return taken, seconds, state


def compare(row_s, num_steps, real):
    """Return what equal shares and shares that follow speeds come to."""
    equal = measure(row_s, num_steps // 4, auto=False, real=real)
    return equal, measure(row_s, num_steps, auto=True, real=real)
