"""Users' samplers: ns an index for reading an epoch of torch's samplers, beside iterating over them."""

import time

import torch
from timing import machine, median
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from flodl_pipe.sampling.batch_sampler import BatchSamplerOrder
from flodl_pipe.sampling.sampler_order import SamplerOrder

N = 1_000_000
SAMPLERS = {
    "RandomSampler": (SamplerOrder, lambda: RandomSampler(range(N))),
    "WeightedRandomSampler": (SamplerOrder, lambda: WeightedRandomSampler(torch.ones(N), N)),
    "SubsetRandomSampler, list": (SamplerOrder, lambda: SubsetRandomSampler(list(range(N)))),
    "SubsetRandomSampler, tensor": (SamplerOrder, lambda: SubsetRandomSampler(torch.arange(N))),
    "BatchSampler of 64": (BatchSamplerOrder, lambda: BatchSampler(RandomSampler(range(N)), 64, drop_last=False)),
}


def ns_an_index(read, repeats=5):
    found = []
    for number in range(repeats):
        began = time.perf_counter()
        read(number)
        found.append((time.perf_counter() - began) / N * 1e9)
    return median(found)[0]


def main():
    print(machine())
    print(f"{'ns an index':30} {'torch':>8} {'an epoch':>9} {'building':>9}")
    for name, (kind, make) in SAMPLERS.items():
        sampler = make()
        order = kind(sampler, N, 42)
        alone = ns_an_index(lambda _, sampler=sampler: sum(1 for _ in sampler))
        epoch = ns_an_index(lambda number, order=order: order.epoch(2 + number))
        building = ns_an_index(lambda _, kind=kind, sampler=sampler: kind(sampler, N, 42), repeats=3)
        print(f"{name:30} {alone:8.0f} {epoch:9.0f} {building:9.0f}")


if __name__ == "__main__":
    main()
