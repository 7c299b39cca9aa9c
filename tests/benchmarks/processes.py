"""Slow Python datasets: reader processes against torch's DataLoader with as many workers, in one run.

A sample takes 200 us of pure Python and is 3,072 uint8 and an int64; batch 64, shuffled, 2 workers, both started by a
server of forks and kept from epoch to epoch.

- ``torch``: DataLoader, persistent workers.
- ``ours``: every sample read by a process, no RAM cache.
- ``ours, cached``: from epoch 2 on, the RAM cache holds every sample, and none crosses a process.

Whole passes are timed, from the first batch asked for to the last one, once the processes have started. Targets are of
the median ratio of interleaved rounds.
"""

import argparse
import multiprocessing
import sys
import time

import torch
from timing import check, machine, median
from torch.utils.data import DataLoader, Dataset

from flodl_pipe.loader.loader import Loader

BATCH, WIDTH = 64, 3072


class Slow(Dataset):
    """Holds the interpreter for a while, then returns a row."""

    def __init__(self, num_samples, busy_us):
        self.num_samples, self.busy_s = num_samples, busy_us * 1e-6

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        end, count = time.perf_counter() + self.busy_s, 0
        while time.perf_counter() < end:
            count += 1
        return torch.full((WIDTH,), index % 256, dtype=torch.uint8), index


def epoch_rate(batches):
    """Return samples per second of one pass."""
    count, began = 0, time.perf_counter()
    for _ in batches:
        count += BATCH
    return count / (time.perf_counter() - began)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--samples", type=int, default=12_800)
    arguments.add_argument("--busy-us", type=float, default=200.0)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--kind", choices=["process", "thread"], default="process")
    options = arguments.parse_args()
    print(machine())
    multiprocessing.set_forkserver_preload(["torch", "numpy"])
    dataset = Slow(options.samples, options.busy_us)
    peer = DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        multiprocessing_context="forkserver" if options.workers else None,
    )
    settings = {"batch_size": BATCH, "readers": options.workers, "reader_kind": options.kind, "mode": "streaming"}
    rates = {"torch": [], "ours": [], "ours, cached": []}
    with Loader(dataset, sample_cache=False, **settings) as plain, Loader(dataset, **settings) as cached:
        contenders = dict(zip(rates, (peer, plain, cached), strict=True))
        for batches in contenders.values():
            epoch_rate(batches)
        for _ in range(options.repeats):
            for name, batches in contenders.items():
                rates[name].append(epoch_rate(batches))
    print("\nsamples/s                 median     min     max")
    for name, found in rates.items():
        middle, low, high = median(found)
        print(f"  {name:21s} {middle:9,.0f} {low:9,.0f} {high:9,.0f}")
    print("targets")
    met = []
    for name, target in (("ours", 1.0), ("ours, cached", 10.0)):
        ratios = [own / theirs for own, theirs in zip(rates[name], rates["torch"], strict=True)]
        met.append(check(f"{name} / torch", median(ratios)[0], target))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
