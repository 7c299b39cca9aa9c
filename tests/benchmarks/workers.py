"""Samples a second with 0 and 2 workers, here and with torch, of a dataset whose samples take 2 ms each, asleep.

Asleep, so that two are quicker than none on a machine with one core too. Whole passes are timed, once workers that stay
have started. Targets are of the median ratio of rounds in turns; low ones, since what is asked is whether workers
work side by side at all.
"""

import argparse
import multiprocessing
import sys
import time

import torch
from timing import check, machine, median
from torch.utils.data import DataLoader, Dataset

from flodl_pipe.loader.loader import Loader

N, BATCH, SAMPLE_S = 512, 16, 2e-3


class Slow(Dataset):
    """A row of known values, after a while."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        time.sleep(SAMPLE_S)
        return {"row": torch.arange(8, dtype=torch.float32) + index, "index": index}


def samples_per_s(batches):
    """Return how many samples of a pass come in a second."""
    began_s = time.perf_counter()
    count = sum(len(batch["index"]) for batch in batches)
    return count / (time.perf_counter() - began_s)


def torchs(num_workers):
    context = "forkserver" if num_workers else None
    return DataLoader(
        Slow(),
        BATCH,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        multiprocessing_context=context,
    )


def ours(readers):
    # Without a cache: the second epoch would be read from it.
    settings = {"mode": "streaming", "reader_kind": "process", "sample_cache": False}
    return Loader(Slow(), batch_size=BATCH, readers=readers, **settings)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=3)
    options = arguments.parse_args()
    print(machine())
    multiprocessing.set_forkserver_preload(["torch", "numpy"])
    rates = {"torch, none": [], "torch, 2": [], "ours, none": [], "ours, 2": []}
    with ours(0) as none, ours(2) as two:
        contenders = dict(zip(rates, (torchs(0), torchs(2), none, two), strict=True))
        for batches in contenders.values():
            samples_per_s(batches)
        for _ in range(options.repeats):
            for name, batches in contenders.items():
                rates[name].append(samples_per_s(batches))
    print("\nsamples/s                 median     min     max")
    for name, found in rates.items():
        middle, low, high = median(found)
        print(f"  {name:21s} {middle:9,.0f} {low:9,.0f} {high:9,.0f}")
    print("targets")
    met = []
    for one, other, target in (
        ("torch, 2", "torch, none", 1.3),
        ("ours, 2", "ours, none", 1.3),
        ("ours, 2", "torch, 2", 0.7),
    ):
        ratios = [own / theirs for own, theirs in zip(rates[one], rates[other], strict=True)]
        met.append(check(f"{one} / {other}", median(ratios)[0], target))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
