"""Models trained by one process and by several, for comparisons of their parameters. Functions run on real ranks."""

import contextlib

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.loader.accumulation import accumulation_weights
from flodl_pipe.loader.attach import attach
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.protocol import Fingerprint

WIDTH = 12


class Regression:
    """Rows of numbers and what is to be learnt of them."""

    def __init__(self, n):
        self.spec = self.delivered = SampleSpec.of(x=("float64", (WIDTH,)), y=("float64", (1,)))
        self.thread_safe = True
        random = np.random.default_rng(5)
        self.x = random.normal(size=(n, WIDTH))
        self.y = self.x[:, :1] * self.x[:, 1:2] + 0.3 * self.x[:, 2:5].sum(1, keepdims=True)

    def __len__(self):
        return len(self.x)

    def read_into(self, indices, rows, out):
        out["x"][rows] = self.x[indices]
        out["y"][rows] = self.y[indices]

    def deliver(self, stored, out):
        for name, column in stored.items():
            np.copyto(out[name], column)

    def fingerprint(self, *, full=False):
        return Fingerprint(f"regression of {len(self)}", "0", full)


class Net(nn.Module):
    """A small model. Its parameters are more than one bucket of gradients where buckets are small."""

    def __init__(self, bucket_mb=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
        self.double()

    def forward(self, x, *, scale=1.0):
        return self.layers(x) * scale


def optimizer_of(name, model):
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def parameters(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def loss_of(model, batch, x=None):
    error = (model(batch["x"] if x is None else x) - batch["y"]) ** 2
    return error.mean() if batch.valid is None else error[batch.valid].sum() / max(1, int(batch.valid.sum()))


def rank_context(ratios=None):
    return RunContext(dist.get_rank(), dist.get_world_size(), ratios)


def train(way, *, num_samples, optimizer="sgd", epochs=3, ratios=None, accumulate=1, wrap=None, **options):
    """Train on this rank, and return the parameters.

    Args:
        way: ``alone`` in one process; with several ``loss`` (weights on the loss), ``attach``, ``plain`` (no weights).
        num_samples: Of an epoch.
        optimizer: ``sgd`` or ``adamw``.
        epochs: How many.
        ratios: Shares of the ranks.
        accumulate: Batches whose gradients are added up.
        wrap: Whether a comm hook of the user's is wrapped.
        **options: Of the loader.
    """
    torch.set_num_threads(1)
    raw = Net()
    alone = way == "alone"
    model = raw if alone else DistributedDataParallel(raw, bucket_cap_mb=0.005)
    steps = optimizer_of(optimizer, raw)
    seen = []
    context = None if alone else rank_context(ratios)
    with Loader(Regression(num_samples), context=context, **options) as loader:
        if way in ("attach", "attach, look ahead", "attach, inputs computed"):
            attach(model, loader, comm_hook=counted if wrap else None, comm_state=seen if wrap else None)
        if way == "accumulation_weights":
            attach(model, loader, weight=False)
        for epoch in range(epochs):
            waiting = []
            for batch in one_ahead(loader.epoch(epoch)) if way == "attach, look ahead" else loader.epoch(epoch):
                waiting.append(batch)
                if len(waiting) < accumulate:
                    continue
                steps.zero_grad()
                add_up(way, model, waiting)
                steps.step()
                waiting = []
            if waiting:
                steps.zero_grad()
                add_up(way, model, waiting)
                steps.step()
    if wrap:
        assert seen
    return parameters(raw)


def add_up(way, model, batches):
    """Leave the gradients of batches in a model."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    total = sum(batch.size if batch.valid is None else int(batch.valid.sum()) for batch in batches)
    for place, batch in enumerate(batches):
        syncs = place == len(batches) - 1
        with contextlib.nullcontext() if syncs or way == "alone" else model.no_sync():
            if way == "accumulation_weights":
                factor = accumulation_weights(batches)[place]
            elif way == "alone":
                factor = (batch.size if batch.valid is None else int(batch.valid.sum())) / total
            elif way == "loss":
                factor = accumulation_weights(batches, world)[place] if len(batches) > 1 else batch.weight
            else:
                factor = 1 / len(batches)
            x = batch["x"] * 1.0 if way == "attach, inputs computed" else None
            (loss_of(model, batch, x) * factor).backward()


def counted(seen, bucket):
    """A user's comm hook: the mean, in one more way."""
    seen.append(bucket.index())
    gradients = bucket.buffer()
    return (
        dist.all_reduce(gradients, async_op=True)
        .get_future()
        .then(lambda done: done.value()[0] / dist.get_world_size())
    )


def one_ahead(batches):
    """Yield batches with the next one fetched already, as Accelerate does."""
    iterator = iter(batches)
    try:
        now = next(iterator)
    except StopIteration:
        return
    for following in iterator:
        yield now
        now = following
    yield now


def train_in(runs):
    """Train in several ways, one after the other: pairs of a way and its options."""
    return [train(way, **options) for way, options in runs]
