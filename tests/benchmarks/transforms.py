"""Crop, flip and normalise against torch's DataLoader, in one run: 50,000 x 3 x 32 x 32 uint8, batch 512, shuffled.

All deliver float32 pictures, cropped to 32 x 32 after 4 pixels of zero padding, mirrored with probability 1/2 and
normalised, with int64 labels; 50,000 records drawn with a fixed seed.

- ``sample``: a Dataset over tensors in memory whose ``__getitem__`` transforms one picture with the operations that
  torchvision's transforms make: pad, a slice at two random integers, a flip, then to float, and divide, subtract and
  divide in place. Its own collation; num_workers 0, 2 and 4. The target is against the best.
- ``getitems`` (no target): the same Dataset with ``__getitems__``, which gathers and transforms a whole batch with as
  few tensor operations as we found, scale and shift folded; num_workers 0 and 2.
- ``ours``: a loader over the same records, kept in memory, and the package's transforms; readers as by default.
- ``pass``: the transforms alone, without gathering rows, order or ownership, in one thread, and in two at once.

Without workers, torch's own number of threads and one thread are tried, and the better counts.
"""

import argparse
import itertools
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from images import same, write_cifar
from timing import check, machine, median, rate
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from flodl_pipe.batch.spec import SampleSpec
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.cifar import CIFAR10, open_cifar
from flodl_pipe.transforms.image_basic import HorizontalFlip, Normalize, RandomCrop
from flodl_pipe.transforms.image_fused import fuse

BATCH, PADDING = 512, 4
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
MEANS, STDS = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
SCALE = (1 / (255 * torch.tensor(STD, dtype=torch.float64))).float()[:, None, None]
SHIFT = -MEANS / STDS


class Samples(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = functional.pad(self.images[index], (PADDING,) * 4)
        top, left = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        if torch.rand(1) < 0.5:
            image = image.flip(-1)
        return image.float().div_(255).sub_(MEANS).div_(STDS), int(self.labels[index])


class Batches(Samples):
    def __getitems__(self, indices):
        images, labels = self.images[indices], self.labels[indices]
        rows = torch.arange(len(indices))
        tops, lefts = torch.randint(0, 2 * PADDING + 1, (2, len(indices)))
        images = functional.pad(images, (PADDING,) * 4).unfold(2, 32, 1).unfold(3, 32, 1)[rows, :, tops, lefts]
        mirrored = rows[torch.rand(len(indices)) < 0.5]
        images[mirrored] = images[mirrored].flip(-1)
        return images.float().mul_(SCALE).add_(SHIFT), labels


class Pass:
    """The fused transforms over one batch of rows, again and again, in some threads at once."""

    def __init__(self, images, num_threads):
        self.rows = {"image": images[:BATCH].numpy()}
        self.keys = PickKeys(np.arange(BATCH), np.zeros(BATCH, np.int64), 0, 42)
        steps = [(1, RandomCrop(32, padding=PADDING)), (2, HorizontalFlip()), (3, Normalize(MEAN, STD))]
        self.fused = fuse(steps, SampleSpec.of(image=("uint8", (3, 32, 32))))
        self.num_threads = num_threads

    def run(self, seconds, counts):
        out = self.fused.spec.empty(BATCH)
        for _ in range(5):
            self.fused.apply(self.rows, self.fused.draw(self.keys), out)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            self.fused.apply(self.rows, self.fused.draw(self.keys), out)
            count += 1
        counts.append(count / (time.perf_counter() - began))

    def rate(self, seconds):
        counts = []
        threads = [threading.Thread(target=self.run, args=(seconds, counts)) for _ in range(self.num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts)


def read_tensors(paths):
    records = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in paths])
    images = np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(images), torch.from_numpy(records[:, 0].astype(np.int64))


def endless(loader, seconds):
    # The first batches of a run wait for workers and readers.
    return rate(itertools.chain.from_iterable(itertools.repeat(loader)), seconds, skip=64)


def better(loader, seconds):
    """Return the better rate of torch's own number of threads and of one."""
    found, threads = [], torch.get_num_threads()
    for count in (threads, 1):
        torch.set_num_threads(count)
        found.append(endless(loader, seconds))
    torch.set_num_threads(threads)
    return max(found)


def contenders(paths):
    """Return name -> function of seconds that gives batches per second."""
    images, labels = read_tensors(paths)
    plain = {"batch_size": BATCH, "shuffle": True, "drop_last": True}
    found = {}
    for kind, dataset, workers in (("sample", Samples, (0, 2, 4)), ("getitems", Batches, (0, 2))):
        extra = {"collate_fn": same} if dataset is Batches else {}
        for number in workers:
            loader = DataLoader(
                dataset(images, labels), **plain, **extra, num_workers=number, persistent_workers=number > 0
            )
            measure = endless if number else better
            found[f"{kind}, {number} workers"] = lambda seconds, loader=loader, measure=measure: measure(
                loader, seconds
            )
    transforms = [RandomCrop(32, padding=PADDING), HorizontalFlip(), Normalize(MEAN, STD)]
    ours = Loader(open_cifar(CIFAR10, paths, in_memory=True, num_classes=10), batch_size=BATCH, transforms=transforms)
    found["ours"] = lambda seconds: endless(ours, seconds)
    for number in (1, 2):
        found[f"pass, {number} thread{'s' if number > 1 else ''}"] = Pass(images, number).rate
    return found


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=2.0)
    arguments.add_argument("--only", default="", help="contenders whose name begins so")
    options = arguments.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as temporary:
        measured = contenders(write_cifar(Path(temporary)))
        measured = {name: measure for name, measure in measured.items() if name.startswith(options.only)}
        rates = {name: [] for name in measured}
        for _ in range(options.repeats):
            for name, measure in measured.items():
                rates[name].append(measure(options.seconds))
    print("\nbatches/s              median     min     max")
    for name, found in rates.items():
        print(f"  {name:20s} {median(found)[0]:7,.0f} {median(found)[1]:7,.0f} {median(found)[2]:7,.0f}")
    print("targets")
    met = []
    if "pass, 2 threads" in rates:
        met.append(check("the pass in two threads, batches/s", median(rates["pass, 2 threads"])[0], 960))
    if "ours" in rates and "sample, 0 workers" in rates:
        peers = [rates[f"sample, {workers} workers"] for workers in (0, 2, 4)]
        ratios = [ours / max(theirs) for ours, *theirs in zip(rates["ours"], *peers, strict=True)]
        met.append(check("loader / best DataLoader with transforms per sample", median(ratios)[0], 10))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
