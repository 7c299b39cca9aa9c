"""Pictures against torch's DataLoader, in one run: MNIST in memory, CIFAR-10 from warm files; batch 128, shuffled.

MNIST, 60,000 synthetic 1 x 28 x 28 uint8 with int64 labels; ours is resident, out of IDX files:

- ``tensors``: DataLoader(TensorDataset(images, labels)), its own collation.
- ``sampled``: the same TensorDataset, a whole batch of indices at a time (sampler=BatchSampler, batch_size=None).
- ``getitems``: a Dataset whose ``__getitems__`` is one fancy index of each tensor, collate_fn the identity.

The target is against the best of the three, each with torch's threads as they are and with one: threads make indexing
quicker on an idle machine and much slower on a busy one.

CIFAR-10, 50,000 records in five files; ours streams, readers as by default. The peer opens the files once and reads a
record per sample: os.pread, torch.frombuffer, the picture a view, the label an int; its own collation; num_workers 0
and 2, the better counts. ``vectorised`` (no target) makes the same reads in ``__getitems__`` and fills two tensors.

All deliver image uint8 and label int64. ``bare`` is a loop of index_select over the same tensors in memory, by a
permutation that torch draws each epoch, with no loader around it. ``rows`` gathers rows of 785 bytes 15 batches at a
time and copies pictures and labels out of them.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from timing import best_rate, check, machine, median
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

from flodl_pipe.loader.loader import Loader
from flodl_pipe.sources.cifar import CIFAR10, open_cifar
from flodl_pipe.sources.idx import open_idx

BATCH, MNIST, CIFAR_FILES, CIFAR_RECORDS, RECORD = 128, 60_000, 5, 10_000, 3073


class Indexed(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitems__(self, indices):
        return self.images[indices], self.labels[indices]


class Records(Dataset):
    def __init__(self, paths):
        self.paths, self.descriptors = paths, None

    def __len__(self):
        return CIFAR_FILES * CIFAR_RECORDS

    def open(self):
        if self.descriptors is None:  # once in each worker
            self.descriptors = [os.open(path, os.O_RDONLY) for path in self.paths]

    def __getitem__(self, index):
        self.open()
        file, record = divmod(index, CIFAR_RECORDS)
        row = torch.frombuffer(bytearray(os.pread(self.descriptors[file], RECORD, record * RECORD)), dtype=torch.uint8)
        return row[1:].view(3, 32, 32), int(row[0])


class Vectorised(Records):
    def __getitems__(self, indices):
        self.open()
        rows = np.empty((len(indices), RECORD), np.uint8)
        for row, index in zip(rows, indices, strict=True):
            file, record = divmod(index, CIFAR_RECORDS)
            os.preadv(self.descriptors[file], [row], record * RECORD)
        rows = torch.from_numpy(rows)
        return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()


def same(batch):
    return batch


def write_mnist(folder):
    images = np.random.default_rng(0).integers(0, 256, (MNIST, 28, 28), dtype=np.uint8)
    labels = np.random.default_rng(1).integers(0, 10, MNIST, dtype=np.uint8)
    paths = [str(folder / "images"), str(folder / "labels")]
    for path, array in zip(paths, (images, labels), strict=True):
        sizes = np.array(array.shape, dtype=">u4").tobytes()
        Path(path).write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
    return paths, torch.from_numpy(images)[:, None], torch.from_numpy(labels).long()


def write_cifar(folder):
    paths = [str(folder / f"data_batch_{number}.bin") for number in range(1, CIFAR_FILES + 1)]
    for number, path in enumerate(paths):
        records = np.random.default_rng(number).integers(0, 256, (CIFAR_RECORDS, RECORD), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(path)
    return paths


class Bare:
    """What a loop does for itself with two tensors."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __iter__(self):
        for indices in torch.randperm(MNIST).split(BATCH)[: MNIST // BATCH]:
            yield self.images.index_select(0, indices), self.labels.index_select(0, indices)


class Rows:
    """Batches from one array of rows, without order, ring or ownership."""

    def __init__(self, images, labels):
        rows = [images.numpy().reshape(MNIST, -1), labels.numpy().astype(np.uint8)[:, None]]
        self.windows = np.concatenate(rows, axis=1).view("V785")[:, 0]

    def __iter__(self):
        group, order = 15 * BATCH, np.random.default_rng(0).permutation(MNIST)
        pictures, classes = np.empty((group, 784), np.uint8), np.empty(group, np.int64)
        for first in range(0, MNIST - group, group):
            stored = self.windows[order[first : first + group]].view(np.uint8).reshape(group, 785)
            np.copyto(pictures, stored[:, :784])
            np.copyto(classes, stored[:, 784])
            yield from range(15)


def contenders(mnist, cifar):
    """Return name -> batches without end. Every call makes new loaders, ours are kept."""
    paths, images, labels = mnist
    tensors = TensorDataset(images, labels)
    sampler = BatchSampler(RandomSampler(tensors), BATCH, drop_last=True)
    plain = {"batch_size": BATCH, "shuffle": True, "drop_last": True}
    resident = Loader(open_idx(*paths, num_classes=10), batch_size=BATCH, mode="resident")
    streaming = Loader(open_cifar(CIFAR10, cifar, in_memory=False, num_classes=10), batch_size=BATCH, mode="streaming")
    return {
        "mnist tensors": DataLoader(tensors, **plain),
        "mnist sampled": DataLoader(tensors, sampler=sampler, batch_size=None),
        "mnist getitems": DataLoader(Indexed(images, labels), **plain, collate_fn=same),
        "mnist bare": Bare(images, labels),
        "mnist rows": Rows(images, labels),
        "mnist ours": resident,
        "cifar peer, 0 workers": DataLoader(Records(cifar), **plain),
        "cifar peer, 2 workers": DataLoader(Records(cifar), **plain, num_workers=2, persistent_workers=True),
        "cifar vectorised": DataLoader(Vectorised(cifar), **plain, collate_fn=same),
        "cifar ours": streaming,
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=1.0)
    arguments.add_argument("--only", default="", help="contenders whose name begins so")
    options = arguments.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        loaders = contenders(write_mnist(folder), write_cifar(folder))
        loaders = {name: loader for name, loader in loaders.items() if name.startswith(options.only)}
        rates = {name: [] for name in loaders}
        for _ in range(options.repeats):
            for name, loader in loaders.items():
                rates[name].append(best_rate(loader, options.seconds))
    print("\nbatches/s                 median     min     max")
    for name, found in rates.items():
        print(f"  {name:23s} {median(found)[0]:7,.0f} {median(found)[1]:7,.0f} {median(found)[2]:7,.0f}")
    print("targets")
    met = []
    if "mnist ours" in rates:
        peers = [rates[f"mnist {name}"] for name in ("tensors", "sampled", "getitems")]
        ratios = [ours / max(theirs) for ours, *theirs in zip(rates["mnist ours"], *peers, strict=True)]
        met.append(check("MNIST resident / best DataLoader", median(ratios)[0], 5))
        ratios = [ours / bare for ours, bare in zip(rates["mnist ours"], rates["mnist bare"], strict=True)]
        met.append(check("MNIST resident / bare index_select", median(ratios)[0], 0.85))
    if "cifar ours" in rates:
        peers = [rates[f"cifar peer, {workers} workers"] for workers in (0, 2)]
        ratios = [ours / max(theirs) for ours, *theirs in zip(rates["cifar ours"], *peers, strict=True)]
        met.append(check("cifar10_disk warm / best DataLoader of the same reads", median(ratios)[0], 3))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
